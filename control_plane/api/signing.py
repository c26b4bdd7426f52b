"""Signed requests on objects: what they carry, how they are made and checked.

A signature is an HMAC-SHA256 over everything that it allows: the method, the key, the length and
the digest of the content, and the time it ends. It lives at most 15 minutes.
"""

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from control_plane.api.errors import ApiError, Code
from control_plane.objects.store import Key, Method, SignedUrl

LIFE_MS_MAX = 15 * 60 * 1000
SECRET_BYTES_MIN = 32
OBJECTS_PATH = "/api/v1/objects"

_VERSION = "detcloud-object-1"


@dataclass(frozen=True)
class Grant:
    """What a signature allows. A PUT has a size (bytes) and a SHA-256 (hexadecimal)."""

    method: Method
    key: Key
    size: int | None
    sha256: str | None
    expires_ms: int


class Signer:
    """Makes and checks signatures with one secret of at least 32 bytes.

    It is the UrlSigner of a store without signatures of its own.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"the signing secret has {len(secret)} bytes, {SECRET_BYTES_MIN} is the least"
            )
        self._secret = secret

    def sign(
        self, method: Method, key: Key, *, size: int | None, sha256: str | None, expires_ms: int
    ) -> SignedUrl:
        if method == "PUT" and (size is None or sha256 is None):
            raise ValueError(f"a signed PUT of {key} needs the size and the SHA-256 of its content")
        grant = Grant(method, key, size, sha256, expires_ms)
        fields = {"expires_ms": expires_ms, "size": size, "sha256": sha256}
        query = {name: value for name, value in fields.items() if value is not None}
        query["signature"] = self.signature(grant)
        headers = {} if size is None else {"Content-Length": str(size)}
        url = f"{OBJECTS_PATH}/{quote(key.text)}?{urlencode(query)}"
        return SignedUrl(method, url, headers, expires_ms)

    def signature(self, grant: Grant) -> str:
        """The signature in hexadecimal; the parts are lines, and no part can hold a line end."""
        parts = (_VERSION, grant.method, grant.key, grant.size, grant.sha256, grant.expires_ms)
        signed = "\n".join(str(part) for part in parts).encode()
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()

    def check(self, grant: Grant, signature: str, now_ms: int) -> None:
        """Accepts what `sign` made and the clock allows.

        Raises:
            ApiError: forbidden, with the same words whether it was altered or never ours.
        """
        expected = self.signature(grant).encode()
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise ApiError(Code.FORBIDDEN, "the signature does not fit this request")
        if not now_ms < grant.expires_ms <= now_ms + LIFE_MS_MAX:
            raise ApiError(Code.FORBIDDEN, "the signature has expired; ask for a new one")
