"""Origins of web servers, besides the cluster, that may serve the web page."""

from __future__ import annotations

import re
from typing import Final

PAGE_ORIGINS_MAX: Final = 20

# Browsers send origins in lower case, without a path and without the default port of the scheme.
_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[::1\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?",
    re.ASCII,
)
_OWN_PORTS: Final = {"http": "80", "https": "443"}
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

# On Amazon's and Google's hosts for buckets, the buckets of all users share an origin.
_SHARED_HOST: Final = re.compile(
    r"s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com|storage\.(?:googleapis|cloud\.google)\.com"
)


def page_origin_fault(text: str) -> str | None:
    """Return the reason why a text cannot be an allowed origin of the web page.

    Return None for a valid origin: https, or http on a loopback host, with a host and an optional
    port up to 65535 that is not the scheme's default. Wildcards, `null`, and the shared hosts of
    buckets on Amazon S3 and Google Cloud Storage are refused. Plain http is refused because anybody
    in the network could change the page.
    """
    found = _ORIGIN.fullmatch(text)
    if found is None:
        return "must be an origin as browsers write it, like https://page.example.com"
    if found["scheme"] == "http" and found["host"] not in _LOOPBACK:
        return "must begin with https://, or be http:// on this machine"
    if _SHARED_HOST.fullmatch(found["host"]):
        return "must be an origin of your own: every bucket of everybody is below this host"
    port = found["port"]
    if port is not None and int(port) > 65535:
        return "must have a port up to 65535"
    if port == _OWN_PORTS[found["scheme"]]:
        return f"must leave :{port} out, as browsers do"
    return None
