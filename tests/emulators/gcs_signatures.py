"""Google's checks of signed requests, which fake-gcs-server lacks, and a signing service for a
service account without a key.
"""

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from google.auth.credentials import Credentials

from control_plane.objects.store import SignedUrl
from tests.emulators.strangers import send

EMAIL = "server@project.iam.gserviceaccount.com"
_SIGNATURE = "X-Goog-Signature"


class MachineCredentials(Credentials):
    """Credentials of a machine: a token with an account name but no key."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = None
        self.service_account_email = "default"

    def refresh(self, request: object) -> None:
        self.token = "of the machine"
        self.service_account_email = EMAIL


@dataclass(frozen=True)
class Response:
    """An answer in google-auth's format."""

    status: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class SigningService:
    """Google's service that signs for a service account, in the form of google-auth's transport.

    `send` sends a signed request to the store like a client without credentials.
    """

    def __init__(self) -> None:
        self._key = _service_key()
        self.signed = 0

    def __call__(self, url: str, method: str, body: bytes, headers: Any, **more: Any) -> Response:
        assert f"serviceAccounts/{EMAIL}:signBlob" in url
        assert headers["authorization"] == "Bearer of the machine"
        payload = base64.b64decode(json.loads(body)["payload"])
        self.signed += 1
        signature = self._key.sign(payload, padding.PKCS1v15(), SHA256())
        answer = {"keyId": "1", "signedBlob": base64.b64encode(signature).decode()}
        return Response(200, json.dumps(answer).encode())

    def send(self, signed: SignedUrl, body: bytes) -> tuple[int, bytes]:
        """Send the request if Google's store would accept the signature. Return Google's refusal
        otherwise.
        """
        parts = urlsplit(signed.url)
        query = dict(parse_qsl(parts.query))
        headers = {name.lower(): value for name, value in signed.headers.items()}
        if not self._is_signed(signed.method, parts.netloc, parts.path, query, headers):
            return 403, b"SignatureDoesNotMatch"
        began = datetime.strptime(query["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if time.time() > began.timestamp() + int(query["X-Goog-Expires"]):
            return 403, b"ExpiredToken"
        if signed.method == "PUT" and (refused := _refused_content(headers, body)):
            return 400, refused
        return send(signed, body)

    def _is_signed(
        self, method: str, host: str, path: str, query: dict[str, str], headers: dict[str, str]
    ) -> bool:
        signature = bytes.fromhex(query.pop(_SIGNATURE))
        names = query["X-Goog-SignedHeaders"].split(";")
        values = {**headers, "host": host}
        canonical = "\n".join(
            (
                method,
                path,
                "&".join(
                    f"{_query_text(name)}={_query_text(query[name])}" for name in sorted(query)
                ),
                *(f"{name}:{values.get(name, '')}" for name in names),
                "",
                ";".join(names),
                values.get("x-goog-content-sha256", "UNSIGNED-PAYLOAD"),
            )
        )
        scope = query["X-Goog-Credential"].partition("/")[2]
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join(("GOOG4-RSA-SHA256", query["X-Goog-Date"], scope, digest))
        try:
            self._key.public_key().verify(signature, text.encode(), padding.PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return query["X-Goog-Credential"].startswith(f"{EMAIL}/")


@cache
def _service_key() -> rsa.RSAPrivateKey:
    """Return the service's private key. The key is cached, because making a key takes longer than a
    test.
    """
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _refused_content(headers: Mapping[str, str], body: bytes) -> bytes | None:
    least, most = map(int, headers["x-goog-content-length-range"].split(","))
    if not least <= len(body) <= most:
        return b"EntityTooLarge or EntityTooSmall"
    matches = hashlib.sha256(body).hexdigest() == headers["x-goog-content-sha256"]
    return None if matches else b"ContentSHA256Mismatch"


def _query_text(text: str) -> str:
    return quote(text, safe="-_.~")
