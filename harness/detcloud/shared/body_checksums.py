"""The digests by which a store that speaks S3's protocol refuses what came otherwise than it was
sent.

All stores compare an MD5, and the newer ones a CRC-32, which takes an eighth of the time. A store
that compared one repeats it in its answer; one that does not is sent MD5s. The hash that signs a
request counts for nothing here: some stores never compare it with the content.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Any

from detcloud.shared.file_parts import FilePart, body_blocks

SendPart = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""Sends a part with these digests, as botocore names them; the store's answer."""

_CRC = "ChecksumCRC32"
# How a store refuses a digest that it does not know.
_REFUSALS = (400, 501)


class BodyChecksums:
    """The digests of requests to one store; may be used by many threads at once."""

    def __init__(self, *, is_amazons_own: bool) -> None:
        """To Amazon's own botocore sends digests by itself."""
        self._is_amazons_own = is_amazons_own
        # Whether the store compares CRCs; None before its first answer.
        self._compares_crc: bool | None = None
        self._has_sent = False
        self._lock = threading.Lock()

    def object_fields(self, body: bytes) -> dict[str, str]:
        """The fields of a request that stores an object whole."""
        return {} if self._is_amazons_own else _md5_fields(body)

    def upload_fields(self) -> dict[str, str]:
        """The fields of a request that begins an upload in parts."""
        if self._is_amazons_own or self._compares_crc is False:
            return {}
        return {"ChecksumAlgorithm": "CRC32"}

    def send_part(self, part: bytes | FilePart, request: SendPart) -> Mapping[str, Any]:
        """Send a part by `request` with a digest that the store compares; returns the answer.

        Raises what `request` raises, except a refusal of the kind of digest.
        """
        if self._is_amazons_own:
            return request({})
        if self._compares_crc is False:
            return request(_md5_fields(part))
        crc = _crc_fields(part)
        # Until its first answer nobody knows what the store compares: one part has both, and parts
        # that are sent beside it are sent again where the store compares none.
        is_known = self._compares_crc is True
        is_first = self._is_first()
        try:
            answer = request({**crc, **_md5_fields(part)} if is_first else crc)
        except Exception as error:
            if is_known or not _refuses_kind(error):
                raise
            self._compares_crc = False
            return request(_md5_fields(part))
        is_compared = answer.get(_CRC) == crc[_CRC]
        if not is_first and not is_compared:
            answer = request(_md5_fields(part))
        self._compares_crc = is_compared
        return answer

    def _is_first(self) -> bool:
        """Whether no part was sent before."""
        with self._lock:
            is_first, self._has_sent = not self._has_sent, True
        return is_first


def _crc_fields(body: bytes | FilePart) -> dict[str, str]:
    crc = 0
    for block in body_blocks(body):
        crc = zlib.crc32(block, crc)
    return {_CRC: _to_base64(crc.to_bytes(4, "big"))}


def _md5_fields(body: bytes | FilePart) -> dict[str, str]:
    digest = md5(usedforsecurity=False)
    for block in body_blocks(body):
        digest.update(block)
    return {"ContentMD5": _to_base64(digest.digest())}


def _refuses_kind(error: Any) -> bool:
    """Whether an error is a store's answer that may be about the kind of digest, and not about the
    content.
    """
    answered = getattr(error, "response", None) or {}
    status = answered.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status in _REFUSALS and answered.get("Error", {}).get("Code") != "BadDigest"


def _to_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
