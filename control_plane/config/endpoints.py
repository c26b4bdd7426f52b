"""Endpoints of checkpoint stores: the hosts of URLs."""

import re

# With a login or an escape, another parser of URLs could see a different host.
_ENDPOINT = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])"
    r"(:(?P<port>[0-9]{1,5}))?(/[a-z0-9._~/-]*)?",
    re.IGNORECASE | re.ASCII,
)
_PORT_MAX = 65_535
_PORTS = {"http": "80", "https": "443"}


def endpoint_origin(url: str) -> str | None:
    """Return the origin of a URL: scheme, host and port, for example "https://host:443".

    Scheme and host are in lower case, without a dot at the end of the host. The scheme's default
    port is added if absent. Return None for any other text, for example a URL with another scheme
    than http and https, a port above 65535, a login, a query, a fragment, or an escape in the path.
    """
    found = _ENDPOINT.fullmatch(url)
    if found is None:
        return None
    scheme, host = found["scheme"].lower(), found["host"].lower().rstrip(".")
    port = int(found["port"] or _PORTS[scheme])
    return f"{scheme}://{host}:{port}" if port <= _PORT_MAX else None
