"""Signed requests on objects: creating and verifying signatures.

A signature is an HMAC-SHA256 of everything that the signature permits: the method, the key, the
size and digest of the content, and the expiry. It is valid for at most 15 minutes.
"""

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from control_plane.objects.store import Method, ObjectKey, SignedUrl

VALIDITY_MS_MAX = 15 * 60 * 1000
SECRET_BYTES_MIN = 32
# The path at which the API accepts signed requests.
OBJECTS_PATH = "/api/v1/objects"

_VERSION = "detcloud-object-1"


class InvalidSignature(Exception):
    """A signature does not match the request, or has expired."""


@dataclass(frozen=True)
class Grant:
    """The request that a signature permits."""

    method: Method
    key: ObjectKey
    size: int | None
    """The size of the content in bytes. None for a GET."""
    sha256: str | None
    """The hexadecimal SHA-256 of the content. None for a GET."""
    expires_ms: int
    """The epoch ms at which the signature expires."""


class HmacUrlSigner:
    """Creates and verifies signatures with a secret of at least 32 bytes.

    This is the UrlSigner for a store that cannot sign requests itself.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"the signing secret has {len(secret)} bytes, the minimum is {SECRET_BYTES_MIN}"
            )
        self._secret = secret

    def sign(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None,
        sha256: str | None,
        expires_ms: int,
    ) -> SignedUrl:
        """Sign a request to the API. Raises ValueError for a PUT without size or SHA-256."""
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
        """Return the hexadecimal signature of a grant.

        The fields of the grant are signed as lines. No field can contain a line end.
        """
        parts = (_VERSION, grant.method, grant.key, grant.size, grant.sha256, grant.expires_ms)
        signed = "\n".join(str(part) for part in parts).encode()
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()

    def verify(self, grant: Grant, signature: str, now_ms: int) -> None:
        """Raise InvalidSignature unless `signature` is a valid signature of this grant now.

        The error does not tell whether the request was altered or the signature belongs to another
        request.
        """
        expected = self.signature(grant).encode()
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise InvalidSignature("the signature does not match this request")
        if not now_ms < grant.expires_ms <= now_ms + VALIDITY_MS_MAX:
            raise InvalidSignature("the signature has expired; request a new one")
