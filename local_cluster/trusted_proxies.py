"""Requests that arrive through reverse proxies: the caller's address, the protocol and the paths.

The headers `X-Forwarded-*` count only in requests of proxies that the operator has named. Anybody
else can send the headers with any content.
"""

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.errors import error_response
from control_plane.api.prefix import set_prefix
from control_plane.errors import Code, RequestError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_OWN_PATHS = frozenset({"api", "ui", "tunnel", "healthz", "readyz"})
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,260}")


class TrustedProxies:
    """ASGI middleware that restores the caller's request behind reverse proxies.

    For a request of a proxy, the last address of `X-Forwarded-For` that is no proxy replaces the
    client's address. The last values of `X-Forwarded-Proto`, `X-Forwarded-Host` and
    `X-Forwarded-Prefix` replace the protocol, the host and the prefix. Invalid values are ignored.
    The headers of other clients are ignored.

    A path that begins with the prefix loses the prefix, so that a proxy may keep or remove it.

    Args:
        app: the application.
        proxies: the addresses of the trusted proxies.
        prefix: the prefix of requests without `X-Forwarded-Prefix`, or "".
        only_proxies: whether to refuse requests of other machines that come past the proxies. A
            server without TLS behind a proxy does so.
    """

    def __init__(
        self,
        app: ASGIApp,
        proxies: Sequence[Network],
        prefix: str = "",
        *,
        only_proxies: bool = False,
    ) -> None:
        self._app = app
        self._proxies = tuple(proxies)
        self._prefix = prefix
        self._only_proxies = only_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the restored request, or refuse a request that comes past the proxies."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = str((scope.get("client") or ("", 0))[0])
        is_proxy = self._is_proxy(peer)
        if self._only_proxies and not is_proxy and not _is_loopback(peer):
            text = "this server only answers requests through its proxy; call the proxy's address"
            await error_response(RequestError(Code.FORBIDDEN, text))(scope, receive, send)
            return
        restored = dict(scope)
        prefix = self._prefix
        if is_proxy:
            prefix = self._restore(restored, Headers(scope=scope)) or prefix
        _remove_prefix(restored, prefix)
        # uvicorn and the limits of connections read `state` in the scope of the request.
        restored["state"] = scope.setdefault("state", {})
        set_prefix(restored, prefix)
        await self._app(restored, receive, send)

    def _restore(self, scope: Scope, headers: Headers) -> str:
        """Change a proxy's request to the caller's request; return the forwarded prefix, or ""."""
        caller = self._find_caller(headers)
        if caller is not None:
            # The port of the caller is not forwarded.
            scope["client"] = (caller, 0)
        proto = _last_value(headers, "x-forwarded-proto").lower()
        if proto in ("http", "https"):
            scope["scheme"] = proto
        host = _last_value(headers, "x-forwarded-host")
        if _HOST.fullmatch(host):
            changed = MutableHeaders(raw=[pair for pair in scope["headers"] if pair[0] != b"host"])
            changed.append("host", host)
            scope["headers"] = changed.raw
        prefix = _last_value(headers, "x-forwarded-prefix").rstrip("/")
        return prefix if _PREFIX.fullmatch(prefix) else ""

    def _find_caller(self, headers: Headers) -> str | None:
        """Return the last address of X-Forwarded-For that is no proxy. None if all are proxies.

        Each proxy appends the address of its client. Addresses before the result are claims of the
        caller. An entry that is no address ends the search without a result.
        """
        entries = ",".join(headers.getlist("x-forwarded-for")).split(",")
        for entry in reversed(entries):
            address = _parse_address(entry.strip())
            if address is None:
                return None
            if not self._is_proxy(address):
                return address
        return None

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._proxies)


def parse_network(text: str) -> Network:
    """Return the network of `ADDRESS[/MASK]`. Raises ValueError for another text."""
    return ipaddress.ip_network(text.strip(), strict=False)


def parse_prefix(text: str) -> str:
    """Return a prefix of paths without a slash at the end.

    Raises ValueError for another text, and for a prefix that is a path of the API itself.
    """
    prefix = text.rstrip("/")
    if prefix and (not _PREFIX.fullmatch(prefix) or prefix.split("/")[1] in _OWN_PATHS):
        raise ValueError(f"{text!r} is not a possible prefix; expected for example /detcloud")
    return prefix


def _remove_prefix(scope: Scope, prefix: str) -> None:
    """Remove the prefix from the path of a request, if the path has the prefix."""
    path: str = scope["path"]
    if not prefix or not (path == prefix or path.startswith(f"{prefix}/")):
        return
    scope["path"] = path[len(prefix) :] or "/"
    raw: bytes = scope.get("raw_path") or b""
    if raw.startswith(prefix.encode()):
        scope["raw_path"] = raw[len(prefix) :] or b"/"


def _last_value(headers: Headers, name: str) -> str:
    """Return the last of the comma-separated values of a header, or "" without the header."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


def _parse_address(text: str) -> str | None:
    """Return the IP address of an entry, without a port. Return None for another text."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
