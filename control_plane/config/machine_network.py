"""The proxy and the authorities of a pool's machines: fields of a cloud's section `provider`."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Final

from pydantic import BeforeValidator, SerializationInfo, field_serializer, field_validator

from control_plane.config.section import REVEAL, Section, refuse
from control_plane.findings import value_text
from detcloud.shared.errors import InvalidValue
from detcloud.shared.masking import mask_urls
from detcloud.shared.proxy_addresses import (
    EXPECTED,
    find_exceptions_problem,
    parse_proxy,
)

# The boot script writes the address between single quotes, for the shell and for systemd.
_ADDRESS: Final = re.compile(r"http://[A-Za-z0-9._~%!$&()*+,;=:@\[\]-]+/?\Z")
_BLOCK: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END CERTIFICATE-----"
)
CERTIFICATES_CHARACTERS_MAX: Final = 8_000
"""The limit that keeps a boot script below the 16 KB of EC2's user data, with a reserve for a
startup script. A certificate has 1,200 to 2,200 characters.
"""
MACHINE_NETWORK_FIELDS: Final = ("proxy", "ca_certificates")
"""The fields of a provider's section that a deployment fills in from its own settings."""
_DER_SEQUENCE: Final = 0x30


def _check_certificates(text: object) -> str:
    """Return the certificates of a text in PEM form, without the comments of the text.

    Raise PydanticCustomError for a text with a private key, without certificates, with a damaged
    certificate, or with too many. The messages do not quote the text.
    """
    hint = "write the certificate in PEM form: cat authority.pem"
    if not isinstance(text, str):
        refuse(f"must be a string, not {value_text(text)}", hint)
    if not text.strip():
        return ""
    if "PRIVATE KEY" in text:
        refuse("contains a private key", "write only the authority's certificate", shown=False)
    blocks = list(_BLOCK.finditer(text))
    if not blocks or len(blocks) != text.count("-----BEGIN"):
        refuse("must be certificates, each from BEGIN to END CERTIFICATE", hint, shown=False)
    for number, block in enumerate(blocks, 1):
        if not _is_der_sequence(block[1]):
            refuse(f"has a damaged certificate, number {number}", hint, shown=False)
    plain = "\n".join(
        "\n".join(("-----BEGIN CERTIFICATE-----", *block[1].split(), "-----END CERTIFICATE-----"))
        for block in blocks
    )
    if len(plain) > CERTIFICATES_CHARACTERS_MAX:
        refuse(
            f"has {len(plain)} characters of certificates, and a boot script has room for "
            f"{CERTIFICATES_CHARACTERS_MAX}",
            "write only the company's own root authorities, or use a machine image with them",
            shown=False,
        )
    return f"{plain}\n"


def _is_der_sequence(text: str) -> bool:
    """Whether a text in base64 is a whole DER sequence, as each certificate is."""
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        return False
    if len(content) < 4 or content[0] != _DER_SEQUENCE:
        return False
    length_bytes = content[1] & 0x7F
    # A certificate is longer than the 127 bytes of a short length.
    if not content[1] & 0x80 or not 1 <= length_bytes <= 2:
        return False
    length = int.from_bytes(content[2 : 2 + length_bytes], "big")
    return len(content) == 2 + length_bytes + length


Certificates = Annotated[str, BeforeValidator(_check_certificates)]


class MachineProxy(Section):
    """The proxy of a pool's machines, agents and trials."""

    http_proxy: str = ""
    """The proxy for http addresses, `http://HOST:PORT` or `http://USER:PASSWORD@HOST:PORT`. None if
    empty. User and password are shown as a mask.
    """
    https_proxy: str = ""
    """The proxy for https addresses, in the same form."""
    no_proxy: str = ""
    """The hosts that the machines reach directly, separated by commas: names, `.domain`, addresses,
    networks such as 10.0.0.0/8, each also with a port, or `*`. The machine itself and the cloud's
    metadata service are always reached directly.
    """

    @field_validator("http_proxy", "https_proxy", mode="before")
    @classmethod
    def _check_address(cls, address: object) -> str:
        """Return the address of a proxy unchanged, or "".

        Raise PydanticCustomError for other values. The message does not quote the value, which may
        contain a password.
        """
        if address == "":
            return ""
        if not isinstance(address, str):
            refuse("must be a string", f"expected {EXPECTED}", shown=False)
        try:
            parse_proxy("proxy", address)
        except InvalidValue:
            refuse("is not an address of a proxy", f"expected {EXPECTED}", shown=False)
        if not _ADDRESS.match(address):
            hint = "write special characters of the user and password as %XX, for example %40 for @"
            refuse(f"must be {EXPECTED}", hint, shown=False)
        return address

    @field_validator("no_proxy")
    @classmethod
    def _check_exceptions(cls, exceptions: str) -> str:
        """Return a list of exceptions unchanged. Raise PydanticCustomError for a wrong entry."""
        if problem := find_exceptions_problem(exceptions):
            refuse(f"has an entry that is wrong: {problem}", shown=False)
        return exceptions

    @field_serializer("http_proxy", "https_proxy")
    def _mask_login(self, address: str, info: SerializationInfo) -> str:
        return address if info.context == REVEAL else mask_urls(address)
