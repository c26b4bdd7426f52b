"""HTTPS connections that accept a pinned certificate, and nothing else."""

from __future__ import annotations

import hmac
import ssl
from http.client import HTTPSConnection
from typing import Any

from detcloud.shared.pins import WrongCertificate, certificate_pin


class PinnedConnection(HTTPSConnection):
    """An HTTPS connection to a server with a pinned certificate.

    The digest is compared after the handshake, before any byte of a request is sent. Authorities,
    names and times of the certificate are not checked.

    Args:
        pin: the pin in standard form, as `parse_pin` returns it.
        options: the host, the port and other arguments of HTTPSConnection.
    """

    def __init__(self, *place: Any, pin: str, **options: Any) -> None:
        super().__init__(*place, context=unverified_context(), **options)
        self._pin = pin

    def connect(self) -> None:
        """Connect, and raise WrongCertificate if the server presents another certificate."""
        super().connect()
        found = certificate_pin(self.sock.getpeercert(binary_form=True) or b"")
        if not hmac.compare_digest(found, self._pin):
            self.close()
            raise WrongCertificate(found, self._pin)


def unverified_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate, for callers that compare the digest."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Like http.client's own context.
    context.set_alpn_protocols(["http/1.1"])
    return context
