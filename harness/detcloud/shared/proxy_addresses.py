"""Addresses of proxies and lists of exceptions, as in HTTPS_PROXY and NO_PROXY.

Every command imports this module, so modules that only a proxy needs are imported in functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from detcloud.shared.errors import InvalidValue

PORT_DEFAULT = 80
EXPECTED = "http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT with special characters as %XX"
PROXY_VARIABLES = ("http_proxy", "https_proxy")
EXCEPTIONS_VARIABLE = "no_proxy"
METADATA_HOSTS = ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "metadata.google.internal")
"""The metadata services of the clouds. A proxy would answer with its own machine's metadata."""
DIRECT_HOSTS = ("localhost", "127.0.0.1", "::1", *METADATA_HOSTS)
"""The hosts that `complete_proxies` adds to NO_PROXY, for programs that do not except them."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that is reached by plain HTTP."""

    host: str
    port: int
    headers: Mapping[str, str] = field(repr=False)
    """The headers for the proxy only, with the user and password if any."""
    address: str = field(repr=False)
    """The address with user and password if any, for clients of other libraries."""

    def __str__(self) -> str:
        """Return the address without user and password."""
        return f"http://{self.host}:{self.port}"


def parse_proxy(name: str, text: str) -> Proxy:
    """Return the proxy with the address `text`, which may lack `http://` and the port.

    Raise InvalidValue for any other text, also for other schemes. The message names `name`, the
    place of the address, and does not repeat the address, which may contain a password.
    """
    address = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or PORT_DEFAULT
    except ValueError:
        host = None
    if not host or parts.scheme != "http" or address.rstrip("/") != f"http://{parts.netloc}":
        raise InvalidValue(f"{name} is not an address of a proxy; expected {EXPECTED}")
    headers = {}
    if parts.username is not None:
        import base64

        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        encoded = base64.b64encode(pair.encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {encoded}"
    return Proxy(host, port, headers, address)


def find_exceptions_problem(text: str) -> str:
    """Return the fault of the first invalid entry of a NO_PROXY. Return "" for a valid text.

    Entries are separated by commas or spaces: `*`, a host name or domain, with or without a leading
    `.` or `*.`, an address or a network, all but networks with an optional port. An empty text is
    valid. The result quotes the entry and says what was expected.
    """
    for entry in text.replace(",", " ").split():
        if not _is_exception(entry):
            # An entry with @ may be an address with a password.
            shown = "an entry with @" if "@" in entry else f"{entry!r:.80}"
            return (
                f"{shown} is no host, .domain, address or network such as 10.0.0.0/8; "
                "write names without scheme and path"
            )
    return ""


def complete_proxies(
    environment: Mapping[str, str], overriding: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the proxy variables for programs of other libraries, each in lower and upper case.

    A variable of `overriding`, in either case, replaces the variable of `environment`. If a proxy
    is set, NO_PROXY is completed by `complete_exceptions`. Variables that both lack are missing;
    empty variables stay empty.
    """
    found: dict[str, str] = {}
    for name in (*PROXY_VARIABLES, EXCEPTIONS_VARIABLE):
        for source in (overriding or {}, environment):
            value = read_proxy_variable(name, source)
            if value is not None:
                found[name] = value
                break
    if any(found.get(name) for name in PROXY_VARIABLES):
        found[EXCEPTIONS_VARIABLE] = complete_exceptions(found.get(EXCEPTIONS_VARIABLE, ""))
    return {**found, **{name.upper(): value for name, value in found.items()}}


def complete_exceptions(text: str) -> str:
    """Return a NO_PROXY with DIRECT_HOSTS added, in the form that most programs understand.

    `*` stays alone, because several programs understand it alone only.
    """
    entries = text.replace(",", " ").split()
    if "*" in entries:
        return "*"
    plain = [entry[1:] if entry.startswith("*.") else entry for entry in entries]
    return ",".join(dict.fromkeys((*plain, *DIRECT_HOSTS)))


def read_proxy_variable(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the value of a variable, a name in lower case, or else in upper case, or else None.

    HTTP_PROXY is ignored in CGI scripts, because clients can set it there.
    """
    value = environment.get(name)
    if value is None and not (name == "http_proxy" and "REQUEST_METHOD" in environment):
        value = environment.get(name.upper())
    return None if value is None else value.strip()


def is_never_proxied(host: str) -> bool:
    """Whether a host is this machine, a link-local address, or a cloud's metadata service."""
    from ipaddress import ip_address

    if host == "localhost" or host.endswith(".localhost") or host in METADATA_HOSTS:
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_excepted(host: str, port: int | None, exceptions: str) -> bool:
    """Whether a NO_PROXY lists the host by name, domain, address, network or `*`.

    Entries are separated by commas or spaces, in any case. A name or domain, with or without a
    leading `.` or `*.`, lists the host of this name and all subdomains. Names are not resolved to
    addresses. An entry with a port only excepts requests to the port.
    """
    entries = exceptions.lower().replace(",", " ").split()
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


def _is_exception(entry: str) -> bool:
    from ipaddress import ip_network

    if entry == "*":
        return True
    try:
        ip_network(entry.strip("[]"), strict=False)
        return True
    except ValueError:
        # The entry is no address or network.
        pass
    name, colon, port = entry.rpartition(":")
    if colon:
        if not (port.isdigit() and 0 < int(port) < 65_536):
            return False
        try:
            ip_network(name.strip("[]"))
            return "/" not in name
        except ValueError:
            entry = name
    labels = entry.removeprefix("*").removeprefix(".").rstrip(".").split(".")
    return all(
        label.replace("-", "").replace("_", "").isalnum() and label.isascii() for label in labels
    )
