"""One file that somebody else uploads to a bucket of Google Cloud Storage, part after part.

The parts belong to one session of Google's, which knows how many bytes are there. It ends a week
after it began; the file is no object before its last part, and none of another content than that of
its MD5, which the session was begun with.
"""

from __future__ import annotations

from functools import cached_property

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.upload_parts import PartSizes, SessionMemory


class GcsPartsUpload:
    """The upload in parts of a file of `size` bytes to a key. Every method raises BucketError."""

    is_in_order = True
    whole_bytes_max: int | None = None

    def __init__(
        self, bucket: GcsBucket, key: str, size: int, md5: str, memory: SessionMemory
    ) -> None:
        """`md5` is in hexadecimal; `memory` has the session of who began the upload."""
        self._bucket = bucket
        self._key = key
        self._md5 = md5
        self._memory = memory
        self.sizes = PartSizes(size)

    def stored_parts(self) -> list[int]:
        """The numbers, from 1, of the parts that are there."""
        if self._bucket.object_size(self._key) is not None:
            return [*self.sizes.numbers]
        _, stored = self._session
        return [*range(1, stored // self.sizes.part_bytes + 1)]

    def sign_part(self, number: int, md5: str, seconds: int) -> tuple[str, dict[str, str]]:
        """A URL by which anybody may store that part, and its headers."""
        session, _ = self._session
        start, size = self.sizes.start_of(number), self.sizes.size_of(number)
        return session, {
            "Content-Length": str(size),
            "Content-Range": f"bytes {start}-{start + size - 1}/{self.sizes.size}",
            # Else Google's answer to all but the last one is a redirection that leads nowhere.
            "X-GUploader-No-308": "yes",
        }

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Raise BucketError: parts are sent to the session."""
        raise BucketError(f"part {number} of {self._key} has to be sent to its session")

    def join(self) -> bool:
        """Compare the object that the last part has made; BucketError where a part is missing."""
        found = self._bucket.stored_digest(self._key)
        if found is None:
            missing = len(self.stored_parts()) + 1
            raise BucketError(f"part {missing} of {self._key} is missing")
        size, md5 = found
        if size != self.sizes.size or (self._md5 and md5 and md5 != self._md5):
            self._bucket.delete(self._key)
            self._forget()
            raise BucketError(f"{self._key} differs from what was sent: upload it again")
        self._forget()
        return True

    def _forget(self) -> None:
        """Forget the session; one that is open still, since the object came otherwise, is ended."""
        session = self._memory.find()
        if session is not None and self._bucket.session_bytes(session) is not None:
            self._bucket.end_session(session)
        self._memory.forget()

    @cached_property
    def _session(self) -> tuple[str, int]:
        """The session of this file, and how many bytes it has."""
        session = self._memory.find()
        stored = None if session is None else self._bucket.session_bytes(session)
        if session is not None and stored is not None:
            return session, stored
        begun = self._bucket.begin_session(self._key, self.sizes.size, self._md5)
        kept = self._memory.keep(begun, instead_of=session)
        if kept != begun:
            self._bucket.end_session(begun)
        return kept, self._bucket.session_bytes(kept) or 0
