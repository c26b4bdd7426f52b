"""The upload of a file to Google Cloud Storage in parts, which a user sends in order.

The parts belong to a session of Google's, which knows the number of stored bytes and expires after
a week. The last part completes the object. The session is bound to an MD5, so that Google accepts
no other content.
"""

from __future__ import annotations

from functools import cached_property

from detcloud.shared.bucket_errors import PartsConflict
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.upload_parts import PartSizes, SessionMemory, check_stored_size


class GcsPartsUpload:
    """The upload in parts of a file of `size` bytes to a key.

    Every method that sends a request may raise BucketError if the store refuses or does not answer;
    GcsBucket repeats the requests. The session is Google's upload of the file, and its URL is kept
    in a memory. The session and its number of stored bytes are looked up once per instance, at the
    first need; an error is not cached.
    """

    is_in_order = True
    whole_bytes_max: int | None = None

    def __init__(
        self, bucket: GcsBucket, key: str, size: int, md5: str, memory: SessionMemory
    ) -> None:
        """Store the arguments. No request is sent.

        Args:
            bucket: the bucket of the object.
            key: the key of the object.
            size: the size of the file in bytes.
            md5: the file's MD5 in hexadecimal, or "" for any content.
            memory: stores the session, so that a later client continues the upload.
        """
        self._bucket = bucket
        self._key = key
        self._md5 = md5
        self._memory = memory
        self.sizes = PartSizes(size)

    def stored_parts(self) -> list[int]:
        """Return the sorted numbers, from 1, of the stored parts. All numbers if the object exists.

        An existing object counts with any size. Parts that are stored completely count. Begin a
        session if no session is stored or the stored session has ended. Each call asks for the
        object; the session's answer is cached, so later parts are not shown.
        """
        if self._bucket.object_size(self._key) is not None:
            return [*self.sizes.numbers]
        _, stored = self._session
        return [*range(1, stored // self.sizes.part_bytes + 1)]

    def sign_part(self, number: int, md5: str, seconds: int) -> tuple[str, dict[str, str]]:
        """Return a URL that allows anybody to store the part, and the headers of the request.

        `md5` and `seconds` are ignored: the URL is the session's, the same for all parts and valid
        for a week. All the headers must be sent, and the parts in order. The number is not checked.
        Begin a session as `stored_parts` does; without need for this, nothing is sent.
        """
        session, _ = self._session
        start, size = self.sizes.start_of(number), self.sizes.size_of(number)
        return session, {
            "Content-Length": str(size),
            "Content-Range": f"bytes {start}-{start + size - 1}/{self.sizes.size}",
            # Without this header, Google answers all parts except the last with a redirect.
            "X-GUploader-No-308": "yes",
        }

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Raise PartsConflict always, because clients send parts to the session directly."""
        raise PartsConflict(f"part {number} of {self._key} has to be sent to its session")

    def join(self) -> bool:
        """Verify the object that the last part has created, end the session, and return True.

        Return True also if the object existed before this upload. Raise PartsConflict if no object
        exists, because a part is missing; a session may then be begun, as by `stored_parts`. Raise
        PartsConflict if the object has another size; object and session stay. If the MD5 differs,
        delete the object, end the session and raise PartsConflict. The MD5 is not compared if it is
        "" here or in the store. The session is deleted from the memory, too.
        """
        found = self._bucket.stored_digest(self._key)
        if found is None:
            missing = len(self.stored_parts()) + 1
            raise PartsConflict(f"part {missing} of {self._key} is missing")
        size, md5 = found
        check_stored_size(self._key, size, self.sizes.size)
        if self._md5 and md5 and md5 != self._md5:
            self._bucket.delete(self._key)
            self._forget()
            raise PartsConflict(f"{self._key} differs from what was sent: upload it again")
        self._forget()
        return True

    def _forget(self) -> None:
        """End a stored session that is still open, then delete the session from the memory.

        Raise BucketError if Google does not answer. The memory then keeps the session.
        """
        session = self._memory.find()
        if session is not None and self._bucket.session_bytes(session) is not None:
            self._bucket.end_session(session)
        self._memory.forget()

    @cached_property
    def _session(self) -> tuple[str, int]:
        """The session of this file and the number of stored bytes, requested once.

        Begin and store a new session if no session is stored or the stored session has ended. If
        another client has stored a session meanwhile, end the new session and use the other. A
        session that Google refuses to describe counts as ended.
        """
        session = self._memory.find()
        stored = None if session is None else self._bucket.session_bytes(session)
        if session is not None and stored is not None:
            return session, stored
        begun = self._bucket.begin_session(self._key, self.sizes.size, self._md5)
        kept = self._memory.keep(begun, instead_of=session)
        if kept != begun:
            self._bucket.end_session(begun)
        return kept, self._bucket.session_bytes(kept) or 0
