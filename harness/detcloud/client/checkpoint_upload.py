"""Upload of a folder's files as a checkpoint of a trial, several files at a time.

The UUID of the checkpoint is derived from the content. A repeated upload therefore finds its
earlier attempt and sends only missing files. With changed files, the upload is another checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from detcloud.client.upload import OnProgress, PartReader, ProgressReader
from detcloud.core.checkpoint_writer import (
    METADATA,
    files_to_store,
    manifest_content,
    write_document,
)
from detcloud.shared.archive_names import NameChecker
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ATTEMPTS_MAX, ApiError, Unreachable, backoff_seconds
from detcloud.shared.json_values import to_json_value
from detcloud.shared.transfers import call_at_once
from detcloud.shared.upload_parts import PartSizes, signed_part_bytes

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

FILES_AT_ONCE = 6
# URLs expire after 15 minutes. All uploads of one batch must begin within this time.
BATCH_FILES_MAX = 100
BATCH_BYTES_MAX = 256 << 20

_NAMESPACE = uuid.UUID("6f1d7c1e-5f0b-4b7e-9a53-0c1f8f6a2d11")
# How often the same content can be uploaded and deleted again.
_DELETED_MAX = 100
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file to upload."""

    path: str
    """The path in the checkpoint."""
    source: Path
    """The local path."""
    size: int
    sha256: str
    """The SHA-256 in hexadecimal."""
    md5: str
    """The MD5 in hexadecimal."""
    part_md5s: tuple[str, ...] = ()
    """The MD5 of each part. Empty if the file is too small for several parts."""

    @property
    def offer(self) -> dict[str, Any]:
        """The description of the file in a request for a whole upload: path, size and digests."""
        return {**self.place, "sha256": self.sha256}

    @property
    def place(self) -> dict[str, Any]:
        """The description of the file in a request for an upload in parts: path, size and MD5."""
        return {"path": self.path, "size": self.size, "md5": self.md5}


def upload_checkpoint(
    client: Requester,
    trial_id: int,
    directory: Path,
    *,
    steps_completed: int | None,
    metadata: Mapping[str, Any],
    on_progress: OnProgress | None = None,
    uploads_at_once: int = FILES_AT_ONCE,
) -> dict[str, Any]:
    """Upload the files of a folder as a checkpoint of a trial, and return the API's checkpoint.

    If the trial has a checkpoint with this content, return that checkpoint and send nothing.

    Args:
        directory: the folder. Values in its `metadata.json`, as downloads contain it, are added to
            `metadata` where `metadata` and `steps_completed` do not replace them.
        steps_completed: None for the value in `metadata.json`, or 0.
        on_progress: called with the bytes that are stored and the total bytes.
        uploads_at_once: the largest number of files or parts that are sent at a time.

    Raises:
        DetcloudError: the folder is missing or empty, a file or `metadata.json` is not allowed in a
            checkpoint, or the cluster refuses.
    """
    if not directory.is_dir():
        raise DetcloudError(f"{directory} is not a directory: nothing can be uploaded from it")
    with tempfile.TemporaryDirectory(prefix="detcloud-upload-") as folder:
        merged = _merged_metadata(directory, metadata, steps_completed)
        sources = files_to_store(directory, None)
        if not sources:
            raise DetcloudError(f"{directory} has no files: there is nothing to upload")
        _check_together(sources)
        sources[METADATA] = write_document(folder, METADATA, merged)
        files = call_at_once(_describe_source, sorted(sources.items()), FILES_AT_ONCE)
        begun = _begin(client, trial_id, files)
        if begun["state"] == "UPLOADING":
            entries = {file.path: {"size": file.size, "sha256": file.sha256} for file in files}
            steps = merged["steps_completed"]
            content = manifest_content(
                begun["uuid"], begun["cluster_id"], trial_id, steps, entries, merged
            )
            manifest = write_document(folder, MANIFEST, content)
            sender = _Sender(client, trial_id, begun["uuid"], on_progress, uploads_at_once)
            sender.send_all(files, _describe_source((MANIFEST, manifest)))
        described: dict[str, Any] = client.get(f"/checkpoints/{begun['uuid']}")
        return described


def _merged_metadata(
    directory: Path, given: Mapping[str, Any], steps: int | None
) -> dict[str, Any]:
    """Return the folder's metadata, updated with `given` and `steps`. `steps_completed` defaults to
    0.

    Raises DetcloudError if `metadata.json` is no JSON object, or the steps are no count.
    """
    metadata: dict[str, Any] = {}
    path = directory / METADATA
    if path.is_file():
        try:
            metadata = json.loads(path.read_bytes())
        except ValueError as error:
            raise DetcloudError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(metadata, dict):
            raise DetcloudError(f"{path} must hold an object: the checkpoint's metadata")
    metadata = {**metadata, **to_json_value(dict(given), "metadata")}
    if steps is not None:
        metadata["steps_completed"] = steps
    completed = metadata.setdefault("steps_completed", 0)
    if type(completed) is not int or completed < 0:
        raise DetcloudError(
            f"steps_completed is {completed!r}: expected a number of batches; --steps gives it"
        )
    return metadata


def _check_together(names: Iterable[str]) -> None:
    """Raise DetcloudError if a name is unsafe, or two names are equal on some file systems."""
    checker = NameChecker()
    for name in names:
        checker.add(name, is_directory=False)


def _describe_source(item: tuple[str, Path]) -> SourceFile:
    path, source = item
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    part_bytes = signed_part_bytes(source.stat().st_size)
    parts: list[Any] = []
    with source.open("rb") as file:
        # The last block of a part is shortened, so that no block belongs to two parts.
        while block := file.read(min(_BLOCK_BYTES, part_bytes - size % part_bytes)):
            if size % part_bytes == 0:
                parts.append(hashlib.md5(usedforsecurity=False))
            for digest in (sha256, md5, parts[-1]):
                digest.update(block)
            size += len(block)
    part_md5s = tuple(part.hexdigest() for part in parts) if len(parts) > 1 else ()
    return SourceFile(path, source, size, sha256.hexdigest(), md5.hexdigest(), part_md5s)


def _begin(client: Requester, trial_id: int, files: Sequence[SourceFile]) -> dict[str, Any]:
    """Start or find the upload of this content, and return the API's answer.

    The state in the answer is UPLOADING, or COMPLETED if the checkpoint exists. If the checkpoint
    was deleted, try another UUID. Raises DetcloudError after _DELETED_MAX of them.
    """
    cluster_id = client.overview()["cluster_id"]
    content = json.dumps([cluster_id, trial_id, [file.offer for file in files]])
    for attempt in range(_DELETED_MAX):
        name = uuid.uuid5(_NAMESPACE, f"{attempt} {content}")
        body = {"trial_id": trial_id, "uuid": str(name)}
        begun: dict[str, Any] = client.post("/checkpoint-uploads", body)
        if begun["state"] in ("UPLOADING", "COMPLETED"):
            return begun
    raise DetcloudError(
        f"these files were uploaded to trial {trial_id} and deleted {_DELETED_MAX} times; add "
        "metadata that tell them apart"
    )


class _Sender:
    """The upload of all files of a checkpoint."""

    def __init__(
        self,
        client: Requester,
        trial_id: int,
        name: str,
        on_progress: OnProgress | None,
        at_once: int,
    ) -> None:
        self._client = client
        self._at_once = at_once
        self._path = f"/checkpoint-uploads/{trial_id}/{name}"
        self._tell = on_progress or (lambda done, total: None)
        self._lock = threading.Lock()
        self._sent: dict[str, int] = {}
        self._total = 0

    def send_all(self, files: Sequence[SourceFile], manifest: SourceFile) -> None:
        """Send the missing files, then the manifest, and record the checkpoint.

        `on_progress` is called for stored files too. Raises ApiError and Unreachable, and OSError
        if a file cannot be read. Files that were sent stay stored for a repeated upload.
        """
        there = {item["path"]: item["size"] for item in self._client.items(f"{self._path}/files")}
        missing = [file for file in files if there.get(file.path) != file.size]
        self._total = sum(file.size for file in files)
        for file in files:
            if file not in missing:
                self._count(file.path, file.size)
        whole = [file for file in missing if not self._send_in_parts(file)]
        call_at_once(self._send, self._offers(whole), self._at_once)
        for offered in self._offers([manifest]):
            self._send(offered)
        self._client.post(f"{self._path}/complete", {"manifest_sha256": manifest.sha256})

    def _send_in_parts(self, file: SourceFile) -> bool:
        """Send the missing parts of a large file, join the parts, and return True.

        Return False without sending anything if the file or the store needs a whole upload. Raises
        ApiError and Unreachable, and OSError if the file cannot be read.
        """
        if not file.part_md5s:
            return False
        answer = self._ask_parts(file, ())
        if answer["part_bytes"] is None:
            return False
        progress = _PartsProgress(file, set(answer["stored"]), self._count)
        if answer["in_order"]:
            self._send_in_order(file, progress)
        else:
            missing = (
                number for number in progress.sizes.numbers if number not in answer["stored"]
            )
            call_at_once(partial(self._send_part, file, progress), missing, self._at_once)
        self._post_fresh("parts/join", file.place)
        return True

    def _send_part(self, file: SourceFile, progress: _PartsProgress, number: int) -> None:
        # Each URL is requested just before its upload, so that even a slow upload has 15 minutes.
        with self._lock:
            [request] = self._ask_parts(file, (number,))["uploads"]
        with progress.reader(number) as reader:
            self._upload(request, reader, progress.sizes.size_of(number))

    def _send_in_order(self, file: SourceFile, progress: _PartsProgress) -> None:
        """Send the parts in order, beginning with the first part that the store lacks.

        After a failed upload of a part, wait, ask the cluster for the stored parts, and continue.
        Raise the part's ApiError or Unreachable after ATTEMPTS_MAX failures in a row. Raise an
        ApiError at once if it is not transient and a new upload session cannot help. Raise
        ApiError or Unreachable if the question fails, OSError if the file cannot be read.
        """
        failures, number = 0, 1
        while number <= progress.sizes.count:
            answer = self._ask_parts(file, (number,))
            behind = len(answer["stored"]) + 1
            if behind != number:
                number = behind
                continue
            [request] = answer["uploads"]
            try:
                with progress.reader(number) as reader:
                    size = progress.sizes.size_of(number)
                    self._upload(request, reader, size, is_repeated=False)
                failures, number = 0, number + 1
            except (ApiError, Unreachable) as error:
                failures += 1
                # The next request for a part starts a new session if the session has ended.
                is_over = isinstance(error, ApiError) and error.status in (404, 410, 499)
                is_final = isinstance(error, ApiError) and not (error.is_transient or is_over)
                if is_final or failures >= ATTEMPTS_MAX:
                    raise
                time.sleep(backoff_seconds(failures))

    def _ask_parts(self, file: SourceFile, numbers: Sequence[int]) -> dict[str, Any]:
        """Ask how to send a large file in parts, and return the API's answer.

        `part_bytes` of the answer is the size of parts, or None if the file must be sent whole.
        `stored` lists the numbers of stored parts. `in_order` is whether parts must be sent in
        order. `uploads` has a request for each of the parts `numbers`, which count from 1. Raises
        ApiError and Unreachable.
        """
        parts = [{"number": number, "md5": file.part_md5s[number - 1]} for number in numbers]
        answer: dict[str, Any] = self._post_fresh("parts", {**file.place, "parts": parts})
        return answer

    def _post_fresh(self, name: str, body: Mapping[str, Any]) -> Any:
        """Post `body` to a route of the upload, and return the parsed answer.

        After a transient failure, the request is repeated. The request has no idempotency key,
        because a repeated request must return new URLs. Raises ApiError and Unreachable.
        """
        return self._client.http.request("POST", f"/api/v1{self._path}/{name}", body)

    def _offers(self, files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, dict[str, Any]]]:
        """Yield each file with the request that uploads the file. Requests are fetched in batches
        when needed.

        Raises ApiError and Unreachable.
        """
        for batch in _batches(files):
            yield from zip(batch, self._offer(batch), strict=True)

    def _offer(self, files: Sequence[SourceFile]) -> list[dict[str, Any]]:
        answer = self._post_fresh("files", {"files": [file.offer for file in files]})
        uploads: list[dict[str, Any]] = answer["uploads"]
        return uploads

    def _send(self, offered: tuple[SourceFile, dict[str, Any]]) -> None:
        file, request = offered
        try:
            self._put(file, request)
        except ApiError as error:
            # The URL expired before its turn.
            if error.status != 403:
                raise
            self._put_again(file)

    def _put_again(self, file: SourceFile) -> None:
        with self._lock:
            [request] = self._offer([file])
        self._put(file, request)

    def _put(self, file: SourceFile, request: Mapping[str, Any]) -> None:
        def tell(done: int, total: int) -> None:
            self._count(file.path, done)

        with ProgressReader(file.source, file.size, tell) as reader:
            self._upload(request, reader, file.size)

    def _upload(
        self,
        request: Mapping[str, Any],
        reader: BinaryIO,
        size: int,
        *,
        is_repeated: bool = True,
    ) -> None:
        self._client.http.upload(
            request["url"],
            reader,
            size,
            method=request["method"],
            headers=request["headers"],
            retry=is_repeated,
        )

    def _count(self, path: str, done: int) -> None:
        """Record that `done` bytes of a file are sent, and report the sum of all files.

        The manifest is not counted. A repeated upload can decrease the sum.
        """
        if path == MANIFEST:
            return
        with self._lock:
            self._sent[path] = done
            self._tell(sum(self._sent.values()), self._total)


class _PartsProgress:
    """The progress of a file's upload in parts.

    `there` are the numbers of stored parts. `tell` is called with the file's path and the bytes
    sent.
    """

    def __init__(
        self,
        file: SourceFile,
        there: Collection[int],
        tell: Callable[[str, int], None],
    ) -> None:
        self._file = file
        self.sizes = PartSizes(file.size)
        self._tell = tell
        self._lock = threading.Lock()
        self._done = {number: self.sizes.size_of(number) for number in there}
        tell(file.path, sum(self._done.values()))

    def reader(self, number: int) -> BinaryIO:
        """Open the source file, and return a reader of the bytes of part `number`, counted from 1.

        Each read passes the file's path and the number of sent bytes, of all parts, to `tell`. A
        repeated part counts from its beginning again. Raises OSError if the file cannot be opened.
        """
        start = self.sizes.start_of(number)

        def tell(position: int, total: int) -> None:
            with self._lock:
                self._done[number] = position - start
                self._tell(self._file.path, sum(self._done.values()))

        reader = PartReader(self._file.source, start, self.sizes.size_of(number), tell)
        return cast("BinaryIO", reader)


def _batches(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == BATCH_FILES_MAX or size + file.size > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch
