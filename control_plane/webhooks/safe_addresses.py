"""The network addresses to which the cluster sends requests of webhooks.

A user's URL must not reach services of the cluster's own network, such as the metadata of its
machine. The host of a URL is resolved once, every address is checked, and the connection is made to
a checked address. A name that later resolves to another address has no effect.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Iterable[str]]
"""Returns the addresses of a host name and port. Raises OSError if the name has none."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
_REFUSED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # Addresses of carriers, and of the metadata of Alibaba Cloud.
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "fec0::/10",
    )
)
URL_CHARACTERS_MAX = 2_000


class UrlRefused(Exception):
    """A webhook must not use a URL. The message has the reason for users, without the URL."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL of a webhook."""

    is_encrypted: bool
    """Whether the scheme is https."""
    host: str
    """The host name or address, without brackets, in lower case."""
    port: int
    path: str
    """The path with the query, at least `/`."""

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.is_encrypted else 80
        return host if self.port == usual else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AddressRule:
    """The decision which hosts webhooks may reach."""

    allowed: tuple[str, ...] = ()
    """The host names, addresses and networks that the admins allow, for example `10.0.0.0/8`. These
    hosts may have private addresses, and may be called without encryption.
    """

    def allows_host(self, host: str) -> bool:
        """Return whether the admins allow a host by name or address."""
        return host.lower() in {name.lower() for name in self.allowed} or (
            (address := _parse_address(host)) is not None and self.allows_address(address)
        )

    def allows_address(self, address: Address) -> bool:
        """Return whether the admins allow an address."""
        networks = [_parse_network(text) for text in self.allowed]
        return any(network is not None and _contains(network, address) for network in networks)


def parse_url(url: str, rule: AddressRule) -> Target:
    """Return the parts of a URL of a webhook. No name is resolved.

    Raises:
        UrlRefused: the URL is invalid, has a login, is not https and the host is not allowed, or
            has a host or address that is refused.
    """
    if len(url) > URL_CHARACTERS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise UrlRefused(f"a URL has at most {URL_CHARACTERS_MAX} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").rstrip(".")
    except ValueError:
        raise UrlRefused("the URL is not valid") from None
    if parts.scheme not in ("https", "http") or not host or port == 0:
        raise UrlRefused("a URL begins with https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise UrlRefused("the URL must not have a login")
    is_encrypted = parts.scheme == "https"
    if not is_encrypted and not rule.allows_host(host):
        raise UrlRefused(
            f"http is not encrypted: use https, or ask an admin to allow {host} in"
            " webhooks.allowed_private_hosts"
        )
    address = _parse_address(host)
    if address is not None:
        _check_address(address, host, rule)
    elif host == "localhost" or host.endswith(".localhost"):
        _check_address(ipaddress.ip_address("127.0.0.1"), host, rule)
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    return Target(is_encrypted, host, port or (443 if is_encrypted else 80), path + query)


def resolve_checked(
    target: Target, rule: AddressRule, seconds_max: float, resolve: Resolve | None = None
) -> tuple[str, ...]:
    """Resolve the host of a target once, and return the checked addresses.

    Args:
        seconds_max: the time limit of the resolution, in seconds.
        resolve: resolves a name. None: the resolver of the machine.

    Raises:
        UrlRefused: any address of the host is refused.
        OSError: the host has no address, or the time is over.
    """
    literal = _parse_address(target.host)
    if literal is not None:
        names: Iterable[str] = (str(literal),)
    else:
        names = _resolve_within(target, seconds_max, resolve or resolve_name)
    addresses = tuple(dict.fromkeys(names))
    if not addresses:
        raise OSError(f"{target.host} has no address")
    for text in addresses:
        address = _parse_address(text)
        if address is None:
            raise UrlRefused(f"{target.host} has an address of an unknown form")
        _check_address(address, target.host, rule)
    return addresses


def refusal_reason(address: Address) -> str | None:
    """Return why an address is refused. Return None for a public address.

    An IPv6 address that contains an IPv4 address is refused if the IPv4 address is refused.
    """
    embedded = _embedded_address(address)
    if embedded is not None:
        return refusal_reason(embedded)
    reasons = (
        (address.is_loopback, "a loopback address"),
        (address.is_link_local, "a link-local address, which has the metadata of machines"),
        (address.is_multicast, "a multicast address"),
        (address.is_unspecified, "an unspecified address"),
        (address.is_private, "a private address"),
        (address.is_reserved, "a reserved address"),
        (not address.is_global, "an address outside the public network"),
        (any(_contains(network, address) for network in _REFUSED), "a reserved address"),
    )
    return next((reason for is_refused, reason in reasons if is_refused), None)


def resolve_name(host: str, port: int) -> Iterable[str]:
    """Return the addresses of a host name from the machine's resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _check_address(address: Address, host: str, rule: AddressRule) -> None:
    """Raise UrlRefused if an address is refused and the admins allow neither host nor address."""
    reason = refusal_reason(address)
    if reason is None or rule.allows_address(address) or rule.allows_host(host):
        return
    raise UrlRefused(
        f"{host} has {reason}: an admin can allow the host in webhooks.allowed_private_hosts"
    )


def _embedded_address(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address leads. Return None for other addresses.

    The forms are IPv4-mapped, IPv4-compatible, NAT64, 6to4 and Teredo. For NAT64 prefixes of a
    local network, the last 32 bits count.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _NAT64_LOCAL:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _COMPATIBLE and int(address) > 1:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _parse_address(text: str) -> Address | None:
    """Return the address of a text, also in the forms of `inet_aton`. Return None for a name.

    The forms of `inet_aton` are numbers in place of parts, such as 127.1, 2130706433 and
    0x7f000001. A zone of an IPv6 address is ignored.
    """
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        pass
    if not text or not text[0].isdigit():
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):
        return None


def _parse_network(text: str) -> Network | None:
    """Return the network of a text. Return None for a name."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _contains(network: Network, address: Address) -> bool:
    """Return whether a network contains an address. False for another version of IP."""
    return network.version == address.version and address in network


def _resolve_within(target: Target, seconds_max: float, resolve: Resolve) -> Iterable[str]:
    """Resolve the host of a target in a thread. Raises OSError after `seconds_max`.

    The resolver of the machine has no time limit, so that the thread may outlive the call.
    """
    answer: Future[list[str]] = Future()

    def run() -> None:
        try:
            answer.set_result(list(resolve(target.host, target.port)))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name="resolving", daemon=True).start()
    try:
        return answer.result(seconds_max)
    except TimeoutError:
        raise OSError(f"{target.host} was not resolved in {seconds_max:.0f} s") from None
    except UnicodeError:
        raise OSError(f"{target.host} is no valid host name") from None
