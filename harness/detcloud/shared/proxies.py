"""The choice of a proxy for a request, by the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

`urllib.request` has a similar function, but takes 20 ms to import, ignores networks in NO_PROXY,
and sends requests for this machine through a proxy. Every command imports this module, so modules
that only a proxy needs are imported in functions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from detcloud.shared.errors import InvalidValue

PORT_DEFAULT = 80


@dataclass(frozen=True)
class Proxy:
    """A proxy that is reached by plain HTTP."""

    host: str
    port: int
    headers: Mapping[str, str]
    """The headers for the proxy only, with the user and password if any."""

    def __str__(self) -> str:
        """Return the address without user and password."""
        return f"http://{self.host}:{self.port}"


def find_proxy(url: str, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """Return the proxy for requests to an address with a scheme and a host.

    The variable is HTTPS_PROXY or HTTP_PROXY, by the scheme of `url`. A proxy without a port has
    PORT_DEFAULT. Return None for a direct connection: if the variable is missing or empty, if
    NO_PROXY lists the host (by name, parent domain, address, network or `*`), for `localhost` and
    its subdomains, and for loopback and unspecified addresses. A variable in lower case precedes
    the variable in upper case, even if it is empty. HTTP_PROXY is ignored in CGI scripts, because
    clients can set it there.

    Raises:
        InvalidValue: the variable contains no valid address of a proxy. Only `http` proxies are
            valid. Not raised for a direct connection.
        ValueError: the port in `url` is invalid. Not raised if no variable is set.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    name = f"{parts.scheme}_proxy"
    text = _read_variable(name, environment)
    if not text or _is_loopback(host) or _is_excepted(host, parts.port, environment):
        return None
    return _parse_proxy(name.upper(), text)


def _read_variable(name: str, environment: Mapping[str, str]) -> str:
    if name in environment:
        return environment[name].strip()
    if name == "http_proxy" and "REQUEST_METHOD" in environment:
        return ""
    return environment.get(name.upper(), "").strip()


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_excepted(host: str, port: int | None, environment: Mapping[str, str]) -> bool:
    """Whether NO_PROXY lists the host by name, domain, address, network or `*`.

    Entries are separated by commas or spaces, in any case. A name or domain, with or without a
    leading `.` or `*.`, lists the host of this name and all subdomains. Names are not resolved to
    addresses. An entry with a port only excepts requests to the port.
    """
    entries = _read_variable("no_proxy", environment).lower().replace(",", " ").split()
    return any(_matches(entry, host, port) for entry in entries)


def _matches(entry: str, host: str, port: int | None) -> bool:
    from ipaddress import ip_address, ip_network

    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        # The host or the entry is no address.
        pass
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit():
        if port is None or int(entry_port) != port:
            return False
        entry = name
    domain = entry.strip("[]").removeprefix("*").strip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _parse_proxy(name: str, text: str) -> Proxy:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port or PORT_DEFAULT
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        # The message must not repeat the value, which may contain a password.
        raise InvalidValue(f"{name} is not an address of a proxy; expected http://HOST:PORT")
    headers = {}
    if parts.username is not None:
        import base64

        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        encoded = base64.b64encode(pair.encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {encoded}"
    return Proxy(parts.hostname, port, headers)
