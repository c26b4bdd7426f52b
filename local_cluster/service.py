"""The settings of `detcloud server`: an embedded cluster that other machines call."""

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from control_plane.api.request_limits import ANY_ADDRESS
from local_cluster.adapters import LOOPBACK
from local_cluster.backup_schedule import BackupSchedule
from local_cluster.certificates import (
    ServedCertificate,
    load_or_create_certificate,
    machine_names,
)
from local_cluster.home import HomeFolder, HomeInvalid
from local_cluster.http_server import PublicListener, open_listener, open_public_listener
from local_cluster.trusted_proxies import Network

# An address for documentation (RFC 5737), which decides the interface. No packet is sent.
_FAR_ADDRESS = ("192.0.2.1", 9)


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of a server that other machines call."""

    host: str
    """The IP address to listen at."""
    port: int
    """The port to listen at; 0 for a free port."""
    url: str = ""
    """The address by which clients and agents call the server; "" to derive the address."""
    certificate: Path | None = None
    """The file with the server's certificate, or None for a self-signed certificate."""
    key: Path | None = None
    """The file with the certificate's key. Given together with `certificate`."""
    insecure_http: bool = False
    """Whether the server listens without TLS for other machines."""
    has_agent: bool = True
    """Whether this machine also runs trials."""
    proxies: tuple[Network, ...] = ()
    """The addresses of reverse proxies whose `X-Forwarded-*` headers count."""
    prefix: str = ""
    """The prefix of the paths at a reverse proxy, for example `/detcloud`."""
    backups: BackupSchedule | None = None
    """The schedule of backups, or None for a server without scheduled backups."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can call the server."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def has_tls(self) -> bool:
        """Whether the server listens with TLS."""
        if self.certificate is not None:
            return True
        return not (self.is_loopback or self.insecure_http or self.proxies)

    @property
    def is_self_signed(self) -> bool:
        """Whether the server presents the self-signed certificate of the data folder."""
        return self.has_tls and self.certificate is None

    @property
    def only_proxies(self) -> bool:
        """Whether other machines may call the server only through a proxy.

        A server without TLS in a network would otherwise get tokens in plain text.
        """
        return bool(self.proxies) and not (self.has_tls or self.is_loopback or self.insecure_http)


@dataclass(frozen=True)
class OpenService:
    """The open sockets and the addresses of a server."""

    local: socket.socket
    """The listening socket for this machine's own agent and commands, at 127.0.0.1."""
    public: PublicListener | None
    """The listening socket for other machines, or None if `local` is the only socket."""
    url: str
    """The address by which other machines call the server."""
    hosts: frozenset[str]
    """The hosts that requests may address."""
    certificate: ServedCertificate | None
    """The certificate of `public`, or None without TLS."""

    @property
    def local_url(self) -> str:
        """The address for this machine's own agent and commands."""
        host, port = self.local.getsockname()
        return f"http://{host}:{port}"

    def close(self) -> None:
        """Close the sockets."""
        self.local.close()
        if self.public is not None:
            self.public.socket.close()


def open_service(
    home: HomeFolder, settings: ServiceSettings, former_port: int | None
) -> OpenService:
    """Open the sockets of a server, and create a missing self-signed certificate.

    This machine's own agent and commands call the server at 127.0.0.1 without TLS. If `settings`
    name another address or a certificate, the socket for this machine is a further socket.

    Args:
        home: the data folder, which stores a self-signed certificate.
        settings: the settings of the server.
        former_port: the former port of the socket for this machine, if any.

    Raises:
        OSError: an address is not available, or a file cannot be read or written.
        HomeInvalid: the certificate or its key is not usable, or a setting is invalid.
    """
    if settings.is_loopback and not settings.has_tls:
        if settings.host != "127.0.0.1":
            raise HomeInvalid("--listen: the loopback address of a server is 127.0.0.1")
        local = open_listener(settings.port)
        url = settings.url or f"http://127.0.0.1:{local.getsockname()[1]}{settings.prefix}"
        return OpenService(local, None, url, _allowed_hosts(settings, url), None)
    listener = open_public_listener(settings.host, settings.port)
    try:
        url = settings.url or _default_url(settings, listener.getsockname()[1])
        certificate = _load_certificate(home, settings, url) if settings.has_tls else None
        # The public socket is first, so that the socket for this machine gets another port.
        local = open_listener(None, former_port)
    except BaseException:
        listener.close()
        raise
    context = None if certificate is None else certificate.context
    public = PublicListener(listener, context)
    return OpenService(local, public, url, _allowed_hosts(settings, url), certificate)


def create_certificate(home: HomeFolder, settings: ServiceSettings) -> None:
    """Write a missing self-signed certificate to the data folder.

    Raises HomeInvalid if the present file is damaged, and OSError.
    """
    url = settings.url or _default_url(settings, settings.port)
    _load_certificate(home, settings, url)


def machine_address() -> str:
    """Return this machine's IP address on the default network, or "127.0.0.1" without a network."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_FAR_ADDRESS)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _default_url(settings: ServiceSettings, port: int) -> str:
    """Return the public address: the machine's name, or the address of `--listen`."""
    address = ipaddress.ip_address(settings.host)
    host = socket.gethostname() if address.is_unspecified else settings.host
    scheme = "https" if settings.has_tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.prefix}"


def _load_certificate(home: HomeFolder, settings: ServiceSettings, url: str) -> ServedCertificate:
    if settings.certificate is not None and settings.key is not None:
        return ServedCertificate(settings.certificate, settings.key)
    names = machine_names(settings.host, urlsplit(url).hostname or "")
    return load_or_create_certificate(home, names)


def _allowed_hosts(settings: ServiceSettings, url: str) -> frozenset[str]:
    """Return the hosts that requests may address: this machine's names and all IP addresses."""
    names = machine_names(settings.host, urlsplit(url).hostname or "")
    return LOOPBACK | {ANY_ADDRESS, *names, *(f"{n}.local" for n in names if "." not in n)}
