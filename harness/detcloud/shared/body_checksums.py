"""The digests with which an S3-compatible store detects content that was damaged on the way.

All stores compare an MD5. Newer stores also compare a CRC-32, which takes an eighth of the time,
and repeat the CRC-32 in the answer. Other stores get MD5s. The hash in a request's signature does
not help, because some stores never compare the hash with the content.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Any

from detcloud.shared.file_parts import FilePart, body_blocks
from detcloud.shared.s3_errors import may_be_refusal
from detcloud.shared.s3_features import Feature, StoreFeatures

SendPart = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""Sends a part with digests, under botocore's names, and returns the store's answer."""

_CRC = "ChecksumCRC32"


class BodyChecksums:
    """The digests of requests to a store. Several threads may share the object."""

    def __init__(self, features: StoreFeatures) -> None:
        """Store the known features of the store. `send_part` records newly learned features."""
        # Botocore itself sends digests to Amazon's own store.
        self._is_amazons_own = features.is_amazons_own
        self._features = features
        self._has_sent = False
        self._lock = threading.Lock()

    def object_fields(self, body: bytes) -> dict[str, str]:
        """Return the digest fields of a request that stores a whole object.

        The fields are botocore's arguments with an MD5. Empty for Amazon's own store, whose digests
        botocore adds itself.
        """
        return {} if self._is_amazons_own else md5_fields(body)

    def upload_fields(self) -> dict[str, str]:
        """Return the digest fields of a request that begins an upload in parts.

        Return botocore's argument `ChecksumAlgorithm` with CRC32. Empty for Amazon's own store, and
        for a store that is known to lack newer checksums. A store whose support is unknown gets the
        field as well and may refuse the request. Nothing is recorded.
        """
        if self._is_amazons_own or self._features.lacks(Feature.CHECKSUMS):
            return {}
        return {"ChecksumAlgorithm": "CRC32"}

    def send_part(self, part: bytes | FilePart, request: SendPart) -> Mapping[str, Any]:
        """Send a part with a digest that the store compares, and return the store's last answer.

        `request` is called once or twice. Amazon's own store gets no fields, because botocore adds
        the digests. A store that is known to lack CRCs gets an MD5. Any other store gets a CRC, in
        the first call of this object with an MD5.

        If the store refuses the CRC, as `may_be_refusal` says, or ignores a CRC without an MD5, the
        second call follows at once, with an MD5. Record whether the store compares CRCs. Other
        errors of `request`, and all errors of the second call, are passed on; nothing is recorded
        then. The part is read for the digests, which moves a FilePart to position 0.
        """
        if self._is_amazons_own:
            return request({})
        if self._features.lacks(Feature.CHECKSUMS):
            return request(md5_fields(part))
        crc = _crc_fields(part)
        # Whether the store compares CRCs is unknown before its first response. The first part
        # carries both digests; parts sent in parallel are sent again if the store ignores CRCs.
        is_first = self._is_first()
        try:
            answer = request({**crc, **md5_fields(part)} if is_first else crc)
        except Exception as error:
            if not may_be_refusal(error):
                raise
            answer = request(md5_fields(part))
            self._features.note(Feature.CHECKSUMS, is_there=False)
            return answer
        is_compared = answer.get(_CRC) == crc[_CRC]
        if not is_first and not is_compared:
            answer = request(md5_fields(part))
        self._features.note(Feature.CHECKSUMS, is_there=is_compared)
        return answer

    def _is_first(self) -> bool:
        """Return True for the first call of this method, and False for all later calls.

        Record the call. The calls of all uploads and threads with this object count together.
        """
        with self._lock:
            is_first, self._has_sent = not self._has_sent, True
        return is_first


def _crc_fields(body: bytes | FilePart) -> dict[str, str]:
    crc = 0
    for block in body_blocks(body):
        crc = zlib.crc32(block, crc)
    return {_CRC: _to_base64(crc.to_bytes(4, "big"))}


def md5_fields(body: bytes | FilePart) -> dict[str, str]:
    """Return botocore's argument `ContentMD5` with the MD5 of the body in base64.

    A part is read completely, and its position is 0 afterwards.
    """
    digest = md5(usedforsecurity=False)
    for block in body_blocks(body):
        digest.update(block)
    return {"ContentMD5": _to_base64(digest.digest())}


def _to_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
