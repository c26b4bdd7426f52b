"""Endpoints of stores: the hosts that URLs lead to."""

import re

# No login, no escapes: nothing that another reader of URLs may take for another host.
_ENDPOINT = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])"
    r"(:(?P<port>[0-9]{1,5}))?(/[a-z0-9._~/-]*)?",
    re.IGNORECASE | re.ASCII,
)
_PORTS = {"http": "80", "https": "443"}


def endpoint_origin(url: str) -> str | None:
    """The scheme, host and port that the URL leads to; None for one that is not plain."""
    found = _ENDPOINT.fullmatch(url)
    if found is None:
        return None
    scheme, host = found["scheme"].lower(), found["host"].lower().rstrip(".")
    return f"{scheme}://{host}:{int(found['port'] or _PORTS[scheme])}"
