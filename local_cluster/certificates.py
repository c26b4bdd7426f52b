"""Certificates of a server that other machines call: given files, or a self-signed certificate.

The files of a given certificate may change at any time, for example by certbot. New connections
then get the new certificate, and open connections stay open.
"""

import ipaddress
import logging
import socket
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from detcloud.shared.pins import certificate_pin
from local_cluster.home import HomeFolder, HomeInvalid

log = logging.getLogger(__name__)

SELF_SIGNED_FILE = "server.pem"
"""The file of the data folder with the key and the self-signed certificate."""
# Clients pin the certificate, and do not check its end. Browsers accept long times for certificates
# that no public authority has signed.
SELF_SIGNED_DAYS = 3650
# Clocks of other machines may be behind this machine's clock.
_EARLIER = timedelta(days=1)

_Stamp = tuple[tuple[int, int, int], ...]


class ServedCertificate:
    """The certificate that a server presents, read again after a change of the files.

    Args:
        certificate: the file with the certificate, followed by its issuers, in PEM form.
        key: the file with the key, in PEM form. It may be the same file.

    Raises:
        HomeInvalid: the files cannot be read, or do not contain a certificate with its key.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._stamp = self._read_stamp()
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:
            raise HomeInvalid(f"{self._describe(error)}; see --tls-cert and --tls-key") from None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """The context of the listening socket, which presents the latest certificate."""
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.sni_callback = self._choose

    @property
    def pin(self) -> str:
        """The pin of the certificate in the file, in the form of `detcloud login --pin`.

        Raises HomeInvalid if the file contains no certificate.
        """
        return read_pin(self._certificate)

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Let a new connection present the latest certificate. OpenSSL calls this function.

        OpenSSL also calls the function for clients that send no name. The files are read only after
        a change. Files that do not fit together are logged once, and the former certificate stays.
        """
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._current = self._load()
                log.info("the server presents the changed certificate of %s", self._certificate)
            except (OSError, ValueError) as error:
                log.warning("the former certificate stays: %s", self._describe(error))
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        """Return a context with the present content of the files.

        Raises OSError, also for files that do not fit together, and ValueError.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        # Without a function for the password, OpenSSL would ask the terminal.
        context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        return context

    def _read_stamp(self) -> _Stamp:
        """Return a value that changes with the files. A missing file counts as zeros."""
        stamps = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                stamps.append((0, 0, 0))
        return tuple(stamps)

    def _describe(self, error: Exception) -> str:
        """Return a message that names the files. OpenSSL's errors name no file."""
        cause = "they do not contain a certificate and its key without a password"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            cause = f"they cannot be read: {error.strerror}"
        return f"the files {self._certificate} and {self._key} are not usable: {cause}"


def load_or_create_certificate(home: HomeFolder, names: Iterable[str]) -> ServedCertificate:
    """Return the self-signed certificate of the data folder. Create the certificate at first.

    The file SELF_SIGNED_FILE has the key and the certificate, and is readable by its owner only. A
    present certificate stays, also if its names differ.

    Args:
        home: the data folder.
        names: host names and IP addresses for a new certificate.

    Raises:
        HomeInvalid: the file does not contain a certificate and its key.
        OSError: the file cannot be read or written.
    """
    path = home.folder / SELF_SIGNED_FILE
    if not path.exists():
        home.write_text(SELF_SIGNED_FILE, make_certificate(names, datetime.now(UTC)))
    path.chmod(0o600)
    return ServedCertificate(path, path)


def make_certificate(names: Iterable[str], now: datetime) -> str:
    """Return a new key and a self-signed certificate for `names`, in PEM form.

    Args:
        names: at least one host name or IP address.
        now: the time from which the certificate lasts SELF_SIGNED_DAYS.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "detcloud server")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (secret + certificate.public_bytes(serialization.Encoding.PEM)).decode("ascii")


def read_pin(certificate: Path) -> str:
    """Return the pin of the first certificate in a PEM file.

    Raises HomeInvalid if the file cannot be read or contains no certificate.
    """
    try:
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except (OSError, ValueError, IndexError) as error:
        raise HomeInvalid(f"{certificate} contains no certificate: {error}") from None
    return certificate_pin(first.public_bytes(serialization.Encoding.DER))


def machine_names(listen: str, url_host: str) -> list[str]:
    """Return the names and addresses under which clients may call this machine, without repeats.

    Args:
        listen: the address at which the server listens. An unspecified address such as 0.0.0.0 is
            left out.
        url_host: the host of the public address.
    """
    names = [url_host, socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1", "::1"]
    if not _is_unspecified(listen):
        names.append(listen)
    return list(dict.fromkeys(name.lower() for name in names if name))


def _is_unspecified(listen: str) -> bool:
    try:
        return ipaddress.ip_address(listen).is_unspecified
    except ValueError:
        return False


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
