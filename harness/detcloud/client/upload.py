"""Upload of model code: packs a folder with what it includes, and sends the archive."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from detcloud.client.upload_filter import upload_filter
from detcloud.shared.archive import Archive, extract, pack
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport

OnProgress = Callable[[int, int], None]


def pack_model_code(model_dir: str | Path | None, includes: Sequence[str | Path] = ()) -> Archive:
    """Pack a folder, with more files and folders beside its contents.

    The `.detignore` of each folder names what of it stays here.

    Raises:
        detcloud.shared.archive.ArchiveInvalid: too large, or it holds what cannot be sent.
        DetcloudError: there is nothing to pack, or an include is missing or in the way.
    """
    if model_dir is None and not includes:
        raise DetcloudError("there is no code to send; name a model folder or files to include")
    if model_dir is not None and not includes:
        return pack(Path(model_dir), upload_filter(Path(model_dir)))
    with tempfile.TemporaryDirectory(prefix="detcloud-code-") as name:
        staged = Path(name) / "code"
        if model_dir is None:
            staged.mkdir()
        else:
            _copy_folder(Path(model_dir), staged)
        for include in map(Path, includes):
            _copy_include(include, staged)
        return pack(staged)


def upload_archive(
    transport: Transport,
    archive: Archive,
    upload: dict[str, Any],
    on_progress: OnProgress | None = None,
) -> None:
    """Send an archive where the cluster wants it (`upload` of `POST /model-code`)."""
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
    # Not `resolve`, which raises a RuntimeError where links lead to each other.
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
    """Copy what of a folder would be sent, checked and with links followed by the packer."""
    with pack(folder, upload_filter(folder)) as archive:
        extract(archive.path, destination)


class ProgressReader(io.FileIO):
    """A file that reports every read; a repeated request reads, and so counts, from the start."""

    def __init__(self, path: Path, total: int, on_progress: OnProgress) -> None:
        super().__init__(path, "rb")
        self._total = total
        self._on_progress = on_progress

    def read(self, size: int | None = -1, /) -> Any:
        block = super().read(-1 if size is None else size)
        self._on_progress(self.tell(), self._total)
        return block


class PartReader(ProgressReader):
    """A file from `start` on for so many bytes, which reports every read by its position."""

    def __init__(self, path: Path, start: int, size: int, on_progress: OnProgress) -> None:
        super().__init__(path, size, on_progress)
        self._end = start + size
        self.seek(start)

    def read(self, size: int | None = -1, /) -> Any:
        left = max(0, self._end - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))
