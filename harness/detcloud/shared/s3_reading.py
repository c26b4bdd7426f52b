"""Readers of S3 objects, whole or in ranges, with all bytes from the same version of the object.

A store may answer a request for a range with the whole object. The reader then skips the bytes
before the range, and later requests of this process use no ranges. For stores without usable ETags,
the reader cannot detect that two answers are of different versions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.http import backoff_seconds
from detcloud.shared.s3_client import ATTEMPTS_MAX
from detcloud.shared.s3_errors import client_error, error_code, http_status, transfer_errors
from detcloud.shared.s3_features import Feature, StoreFeatures
from detcloud.shared.transfers import Digest, fetch_parts, write_blocks

_BLOCK_BYTES = 256 * 1024
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_WHOLE = 200


@dataclass(frozen=True)
class Content:
    """The open content of an object, or of a range of the object."""

    body: Any
    """The answer's body, to be read and closed."""
    start: int
    """The offset of the first byte in the object."""
    end: int | None
    """The offset after the last byte. None if unknown."""
    size: int | None
    """The bytes of the whole object. None if the answer does not contain the size."""
    etag: str
    """The ETag of the object's version. "" if the answer has none."""


class ObjectReader:
    """A reader of the objects of a bucket. Several threads may share the object.

    Each request is repeated as the given `send` does. Errors of botocore become bucket errors by
    the given `translate_errors`: NoSuchKey without the object, also if it is deleted meanwhile, and
    BucketError for other failures. An answer that breaks off is continued by further requests, with
    pauses, for the rest of the same version. Errors of local files are passed on as OSError.
    """

    def __init__(
        self,
        send: Callable[[str, str, Mapping[str, Any]], Mapping[str, Any]],
        translate_errors: Callable[[str], AbstractContextManager[None]],
        features: StoreFeatures,
        size_of: Callable[[str], int | None],
    ) -> None:
        """Create a reader.

        Args:
            send: sends a request, given by botocore's name, the key and optional fields.
            translate_errors: a context that raises botocore's errors about a key as bucket errors.
            features: the known features of the store, which the reader updates.
            size_of: returns an object's size, or None without the object.
        """
        self._send = send
        self._translate_errors = translate_errors
        self._features = features
        self._size_of = size_of

    def read(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        """Return the bytes from `start` to before `end`, in blocks. None means the object's end.

        The object is opened by this call, which raises NoSuchKey without the object. The result
        yields nothing if `start` is at or behind the object's end. Both the call and the result
        raise BucketError if the store fails. The result continues broken answers and raises errors
        as `blocks` does.
        """
        return self.blocks(key, self.open(key, start, end))

    def fetch(
        self, key: str, destination: Path, part_bytes: int, digest: Digest | None = None
    ) -> None:
        """Copy an object to a file, in parts of `part_bytes`, several parts at a time.

        Use a single request at a time if the store lacks ranges or the size is unknown. Replace an
        existing file once the object is open. Raise NoSuchKey without the object; the file then
        stays as it was. Raise BucketError if the object is replaced meanwhile, or if not all bytes
        are received, and NoSuchKey if the object is deleted meanwhile; the file may then contain a
        part. Answers that break off are continued as `blocks` does. Update `digest` with the bytes.
        """
        first = self.open(key, 0, None if self._features.lacks(Feature.RANGES) else part_bytes)
        if first is None:
            destination.write_bytes(b"")
            return
        size = self._size_of(key) if first.size is None else first.size
        if size is None or self._features.lacks(Feature.RANGES):
            self._fetch_whole(key, destination, first, size, digest)
            return

        def read(start: int, end: int) -> Iterator[bytes]:
            part = self.open(key, start, end, first.etag) if start else first
            return self.blocks(key, part)

        fetch_parts(destination, size, part_bytes, read, digest)

    def open(
        self, key: str, start: int = 0, end: int | None = None, etag: str = ""
    ) -> Content | None:
        """Open the content from `start` to before `end`. None means the object's end.

        The caller closes the content. Return None if `start` is at or behind the object's end.
        Raise NoSuchKey without the object. With an ETag, raise BucketError if the object has
        another version, as far as the store shows this. If the store sends the whole object, record
        that the store lacks ranges, and cut out the range.
        """
        fields: dict[str, Any] = {}
        if start > 0 or end is not None:
            fields["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        # In a condition, a weak ETag never matches.
        if etag and not etag.startswith("W/") and not self._features.lacks(Feature.MATCHES):
            fields["IfMatch"] = etag
        with self._translate_errors(key):
            try:
                answer = self._send("get_object", key, fields)
            except client_error() as error:
                if error_code(error) == "InvalidRange" or http_status(error) == 416:
                    return None
                raise
        found = str(answer.get("ETag") or "")
        if etag and found and found != etag:
            raise BucketError(f"{key!r:.200} was replaced while it was read")
        if "Range" in fields and answer["ResponseMetadata"]["HTTPStatusCode"] == _WHOLE:
            return self._cut(key, answer, start, end)
        return _part_content(key, answer, start, end)

    def blocks(self, key: str, content: Content | None) -> Iterator[bytes]:
        """Yield the bytes of a content in blocks, and close the content. Nothing for None.

        The content is also closed if the iteration is given up. If the answer breaks off, request
        the rest of the same version, with pauses. Raise BucketError after ATTEMPTS_MAX failures in
        total, or if the object is replaced meanwhile, and NoSuchKey if it is deleted meanwhile.
        """
        failures = 0
        while content is not None:
            start, end = content.start, content.end
            try:
                with self._translate_errors(key), closing(content.body) as body:
                    while block := body.read(_BLOCK_BYTES):
                        start += len(block)
                        yield block
                return
            except BucketError as error:
                failures += 1
                if not isinstance(error.__cause__, transfer_errors()) or failures >= ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_seconds(failures))
            is_rest = end is None or start < end
            content = self.open(key, start, end, content.etag) if is_rest else None

    def _cut(
        self, key: str, answer: Mapping[str, Any], start: int, end: int | None
    ) -> Content | None:
        """Return the content from `start` to before `end` of an answer with the whole object.

        Record that the store lacks ranges. None as `end` means the object's end, and a later `end`
        is cut. Return None, and close the answer, if `start` is at or behind the object's end. An
        unknown size counts as large enough. Nothing is read yet.
        """
        self._features.note(Feature.RANGES, is_there=False)
        whole = _part_content(key, answer, 0, None)
        body, size = answer["Body"], whole.size
        if start > 0 and size is not None and start >= size:
            body.close()
            return None
        ends = [place for place in (end, size) if place is not None]
        last = min(ends) if ends else None
        return Content(_CutBody(body, start, last), start, last, size, whole.etag)

    def _fetch_whole(
        self,
        key: str,
        destination: Path,
        content: Content,
        size: int | None,
        digest: Digest | None,
    ) -> None:
        """Copy an object to a file in a single stream, without parallel parts; update `digest`.

        Replace an existing file. `content` is open from the object's first byte on. `content` is
        reused if it is known to reach the object's end. Otherwise it is closed, and the same
        version is opened again. If an answer breaks off, further requests fetch the rest, with
        pauses, as `blocks` does. The content is closed afterwards.

        Raise BucketError if the store fails, the object is replaced meanwhile, or the number of
        received bytes differs from `size`; None skips this check. Raise NoSuchKey if the object is
        deleted meanwhile. The file stays unchanged if the object cannot be opened again. After
        later errors, the received bytes stay in the file.
        """
        if content.end is None or content.end != size:
            # The request was for a part, before the store was known to lack ranges.
            content.body.close()
            opened = self.open(key, 0, None, content.etag)
            assert opened is not None, "a whole object has no range"
            content = opened
        received = write_blocks(destination, self.blocks(key, content), digest)
        if size not in (None, received):
            raise BucketError(f"{received} of {size} bytes of {key!r:.200} were received")


class _CutBody:
    """A body without the bytes before `start` and from `end` on. None means the body's end."""

    def __init__(self, body: Any, start: int, end: int | None) -> None:
        self._body = body
        self._skipped = start
        self._left = None if end is None else end - start

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes of the range, maybe fewer. Return b"" at the end.

        The first call reads and drops the bytes before the range. Errors of the body are passed on.
        """
        while self._skipped > 0:
            skipped = self._body.read(min(_BLOCK_BYTES, self._skipped))
            if not skipped:
                return b""
            self._skipped -= len(skipped)
        block: bytes = self._body.read(size if self._left is None else min(size, self._left))
        if self._left is not None:
            self._left -= len(block)
        return block

    def close(self) -> None:
        """Close the connection of the answer."""
        self._body.close()


def _part_content(key: str, answer: Mapping[str, Any], start: int, end: int | None) -> Content:
    """Return the content of an answer to a request for the bytes from `start` to before `end`.

    Nothing is read yet. Raise BucketError if the answer names another first byte. An answer without
    a range counts as the requested bytes.
    """
    length = answer.get("ContentLength")
    size = None if length is None or start > 0 or end is not None else int(length)
    if told := _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange") or "")):
        if int(told[1]) != start:
            raise BucketError(f"{key!r:.200}: the store sent bytes {told[1]} and not {start} on")
        size = None if told[3] == "*" else int(told[3])
    last = end if length is None else start + int(length)
    return Content(answer["Body"], start, last, size, str(answer.get("ETag") or ""))
