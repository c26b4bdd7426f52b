"""The certificates of a tunnel's ends as text. The API checks this text without importing `ssl`."""

from __future__ import annotations

import base64
import binascii

CERTIFICATE_BYTES_MAX = 1_024


def decode_certificate(text: str) -> bytes:
    """Return the bytes of a certificate in base64.

    Raise ValueError for invalid base64, and for more than CERTIFICATE_BYTES_MAX bytes.
    """
    try:
        decoded = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the certificate of a tunnel is not base64: {error}") from None
    if not 0 < len(decoded) <= CERTIFICATE_BYTES_MAX:
        raise ValueError(
            f"the certificate of a tunnel has {len(decoded)} bytes; expected 1 to "
            f"{CERTIFICATE_BYTES_MAX}"
        )
    return decoded
