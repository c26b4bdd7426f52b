"""The check whether a server's certificate needs a pin."""

from __future__ import annotations

import contextlib
import ssl

from detcloud.shared.connection_failures import UNKNOWN_AUTHORITY
from detcloud.shared.connections import open_connection
from detcloud.shared.pins import WrongCertificate, certificate_pin

# The digest of no certificate.
_NO_CERTIFICATE = certificate_pin(b"")


def find_untrusted_pin(url: str, timeout_seconds: float) -> str | None:
    """Return the pin of an https server if no known authority signed the certificate.

    Return None for a certificate that connections accept without a pin. No request is sent. Raise
    OSError if the server cannot be reached or its certificate is invalid for another reason, for
    example expired. Raise ValueError for an invalid address or environment.
    """
    with contextlib.closing(open_connection(url, timeout_seconds)) as verified:
        try:
            verified.connect()
            return None
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in UNKNOWN_AUTHORITY:
                raise
    pinned = open_connection(url, timeout_seconds, pin=_NO_CERTIFICATE)
    with contextlib.closing(pinned):
        try:
            pinned.connect()
        except WrongCertificate as error:
            return error.found
    return None
