"""The pins of this process: the only certificate that each pinned server may present.

A server of one's own machines mostly has a self-signed certificate, which no authority vouches for.
A pin is the SHA-256 digest of the certificate in DER form, written `sha256:` and 64 hexadecimal
digits. `connections.py` opens all connections to servers, and applies the pins there. Every command
imports this module, so `pinned_connections.py` has the code that needs `ssl`.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

from detcloud.shared.address_list import split_addresses
from detcloud.shared.errors import InvalidValue

PIN_VARIABLE = "DETCLOUD_PIN"
"""The variable with the pin of the server at DETCLOUD_URL."""

_PREFIX = "sha256:"
_PIN = re.compile(rf"(?:{_PREFIX})?([0-9a-fA-F:]+)", re.ASCII)
_DIGITS = 64

_pins: dict[tuple[str, int], str] = {}


class WrongCertificate(OSError):
    """The server presents another certificate than the pinned certificate."""

    def __init__(self, found: str, pin: str) -> None:
        super().__init__(f"the server's certificate is {found}, not the pinned {pin}")
        self.found = found
        self.pin = pin


def parse_pin(text: str) -> str:
    """Return a pin in the standard form: `sha256:` and 64 lower-case hexadecimal digits.

    The prefix may be missing, upper case is accepted, and colons may separate the digits, as in the
    output of `openssl x509 -fingerprint`. Raise InvalidValue for another text.
    """
    match = _PIN.fullmatch(text.strip())
    digits = match[1].replace(":", "").lower() if match else ""
    if len(digits) != _DIGITS:
        raise InvalidValue(
            f"{text!r} is not a pin; expected sha256: and the 64 hexadecimal digits that the "
            "server printed"
        )
    return _PREFIX + digits


def certificate_pin(certificate: bytes) -> str:
    """Return the pin of a certificate in DER form."""
    return _PREFIX + hashlib.sha256(certificate).hexdigest()


def pin_server(url: str, pin: str) -> None:
    """Let connections of this process to the server of `url` accept only the pinned certificate.

    The pin replaces an earlier pin, and applies to every path of the host and port. Several
    addresses, separated by commas, are servers with the same certificate. Raise InvalidValue for an
    invalid pin, or if an address is not https.
    """
    standard = parse_pin(pin)
    addresses = split_addresses(url)
    for address in addresses:
        if urlsplit(address).scheme != "https":
            raise InvalidValue(f"a pin needs an address with https, not {address}")
    _pins.update({_place(address): standard for address in addresses})


def find_pin(url: str) -> str | None:
    """Return the pin of the server of `url`. Return None for http, and without a pin."""
    if not _pins or urlsplit(url).scheme != "https":
        return None
    return _pins.get(_place(url))


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 443
