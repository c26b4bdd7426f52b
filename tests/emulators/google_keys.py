"""Google's signatures of identity tokens: signing keys, and a server of certificates."""

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.emulators.http_server import AnsweringHandler, serve_requests

ISSUER = "https://accounts.google.com"
MAX_AGE_SECONDS = 3600


class GoogleKeys:
    """Signing keys, of which the last signs. `certificates`: published certificates by key id."""

    def __init__(self) -> None:
        self.certificates: dict[str, str] = {}
        self.requests = 0
        self.max_age_seconds = MAX_AGE_SECONDS
        self.status = 200
        self.rotate()

    def rotate(self) -> None:
        """Sign with a new key from now on and publish its certificate in addition."""
        self._key, certificate = _make_key(len(self.certificates))
        self.key_id = secrets.token_hex(20)
        self.certificates[self.key_id] = certificate

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """Return the claims as a signed token. `header` replaces fields of the header."""
        fields = {"alg": "RS256", "kid": self.key_id, "typ": "JWT", **header}
        signed = f"{token_part(fields)}.{token_part(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256())
        return f"{signed}.{encode_part(signature)}"


def token_part(fields: Mapping[str, Any]) -> str:
    """Return fields as an encoded part of a token."""
    return encode_part(json.dumps(fields).encode())


def encode_part(content: bytes) -> str:
    """Return bytes in base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@contextmanager
def certificate_server(keys: GoogleKeys) -> Iterator[str]:
    """Serve the keys' certificates as Google does; the URL."""

    class Handler(AnsweringHandler):
        def do_GET(self) -> None:
            keys.requests += 1
            body = json.dumps(keys.certificates).encode()
            cache_control = f"public, max-age={keys.max_age_seconds}, must-revalidate"
            self.answer(keys.status, body, {"Cache-Control": cache_control})

    with serve_requests(Handler) as address:
        yield f"http://{address}/oauth2/v1/certs"


@cache
def _make_key(number: int) -> tuple[rsa.RSAPrivateKey, str]:
    """Return a key and its certificate (PEM). Keys are cached, because making a key takes longer
    than a test.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"federated-signon-{number}")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=16))
        .sign(key, SHA256())
    )
    return key, certificate.public_bytes(Encoding.PEM).decode()
