"""Origins that the web page may be served from beside the cluster itself."""

from __future__ import annotations

import re
from typing import Final

PAGE_ORIGINS_MAX: Final = 20

# As browsers write an origin: in small letters, without a path, and without the scheme's own port.
_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[::1\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?",
    re.ASCII,
)
_OWN_PORTS: Final = {"http": "80", "https": "443"}
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

# Below these hosts are the buckets of everybody, all of them of one origin.
_SHARED_HOST: Final = re.compile(
    r"s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com|storage\.(?:googleapis|cloud\.google)\.com"
)


def page_origin_fault(text: str) -> str | None:
    """Return the fault of an origin of a page; None for one that can be allowed.

    A wildcard or `null`, which is the origin of every file and sandbox, is none, and neither is one
    whose page anybody on the way could change.
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
