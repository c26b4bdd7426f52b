"""Upload of model code: packs a folder with the includes, and sends the archive."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.upload_filter import upload_filter
from detcloud.shared.archive import Archive, extract, pack
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Transport

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

OnProgress = Callable[[int, int], None]
# HTTP statuses of stores that refuse to replace an existing object.
REPLACING = (403, 409, 412)


def send_model_code(
    client: Requester,
    model_dir: str | Path | None,
    includes: Sequence[str | Path] = (),
    on_progress: OnProgress | None = None,
) -> str:
    """Pack a folder or a file with the includes, upload the archive, and return the SHA-256.

    Skip the upload if the cluster has the archive. The temporary archive is deleted in any case.

    Args:
        model_dir: the folder or file. None for an archive of the includes alone.
        includes: further files and folders.
        on_progress: called with the bytes sent and the total bytes.

    Raises:
        detcloud.shared.archive.ArchiveInvalid: `model_dir` does not exist, the files are too
            large, or a file cannot be sent.
        DetcloudError: an include does not exist, two includes have one name, or `.detignore` is
            invalid.
        ApiError: the cluster or the store refuses the archive.
        Unreachable: the cluster or the store does not answer.
    """
    with pack_model_code(model_dir, includes) as archive:
        request = {"sha256": archive.sha256, "size": archive.size}
        answer = client.post("/model-code", request)
        if not answer["needed"]:
            return archive.sha256
        try:
            upload_archive(client.http, archive, answer["upload"], on_progress)
        except ApiError as error:
            # A store refuses to replace an object. The object may come from an earlier attempt of
            # this upload whose answer was lost.
            if error.status not in REPLACING or client.post("/model-code", request)["needed"]:
                raise
        return archive.sha256


def pack_model_code(model_dir: str | Path | None, includes: Sequence[str | Path] = ()) -> Archive:
    """Pack the contents of a folder and all includes into a temporary archive.

    The caller deletes the archive, or uses it as a context manager. The archive is empty without
    `model_dir` and `includes`. If `model_dir` is a file, it is packed like an include. Patterns in
    a folder's `.detignore` exclude files of that folder. Files that NOTED_IGNORED excludes are
    named in a LeftOutWarning.

    Raises:
        detcloud.shared.archive.ArchiveInvalid: `model_dir` does not exist, the files are too
            large, or a file cannot be sent.
        DetcloudError: an include does not exist, two includes have one name, or `.detignore` is
            invalid.
    """
    if model_dir is not None and Path(model_dir).is_file():
        includes = [model_dir, *includes]
        model_dir = None
    if model_dir is not None and not includes:
        return _pack_folder(Path(model_dir))
    with tempfile.TemporaryDirectory(prefix="detcloud-code-") as name:
        staged = Path(name) / "code"
        if model_dir is None:
            staged.mkdir()
        else:
            _copy_folder(Path(model_dir), staged)
        for include in map(Path, includes):
            _copy_include(include, staged)
        shown = " and ".join(str(part) for part in (model_dir, *includes) if part is not None)
        return pack(staged, shown_root=shown)


def upload_archive(
    transport: Transport,
    archive: Archive,
    upload: dict[str, Any],
    on_progress: OnProgress | None = None,
) -> None:
    """Send an archive with the request that the cluster chose: `upload` of `POST /model-code`.

    `on_progress` is called with the bytes sent and the total bytes. After a transient failure, the
    upload is repeated from the beginning. Raises ApiError if the store refuses, and Unreachable
    without an answer.
    """
    tell = on_progress or (lambda done, total: None)
    with ProgressReader(archive.path, archive.size, tell) as file:
        transport.upload(
            upload["path"],
            file,
            archive.size,
            method=upload.get("method", "PUT"),
            headers=upload.get("headers") or {},
        )


def _copy_include(include: Path, staged: Path) -> None:
    # `resolve` would raise a RuntimeError for links that lead to each other.
    place = staged / Path(os.path.realpath(include)).name
    if place.exists():
        raise DetcloudError(f"--include {include}: the code has a {place.name} already")
    if include.is_dir():
        _copy_folder(include, place)
    elif include.is_file():
        shutil.copy(include, place)
    else:
        raise DetcloudError(f"--include {include}: there is no such file or folder")


def _copy_folder(folder: Path, destination: Path) -> None:
    """Copy the files of a folder that an upload would contain to a new folder.

    The files are packed and unpacked: the packer checks names and follows links. Raises
    ArchiveInvalid if the folder does not exist, is too large or has a file that cannot be sent.
    Raises DetcloudError if `.detignore` is invalid.
    """
    with _pack_folder(folder) as archive:
        extract(archive.path, destination)


def _pack_folder(folder: Path) -> Archive:
    keep = upload_filter(folder)
    archive = pack(folder, keep)
    keep.warn_of_noted()
    return archive


class ProgressReader(io.FileIO):
    """A readable file that calls `on_progress` with the position and `total` after each read.

    A repeated request reads from the start, and so reports small numbers again.
    """

    def __init__(self, path: Path, total: int, on_progress: OnProgress) -> None:
        super().__init__(path, "rb")
        self._total = total
        self._on_progress = on_progress

    def read(self, size: int | None = -1, /) -> Any:
        block = super().read(-1 if size is None else size)
        self._on_progress(self.tell(), self._total)
        return block


class PartReader(ProgressReader):
    """The part of a file that begins at `start` and has `size` bytes. Reads end at its end.

    `on_progress` is called with the position in the whole file and `size`.
    """

    def __init__(self, path: Path, start: int, size: int, on_progress: OnProgress) -> None:
        super().__init__(path, size, on_progress)
        self._end = start + size
        self.seek(start)

    def read(self, size: int | None = -1, /) -> Any:
        left = max(0, self._end - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))
