"""Packs model code with what it includes, and sends it."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from detcloud import DetcloudError
from detcloud.archive import Archive, extract, pack
from detcloud.client.ignore import kept_names
from detcloud.http import Transport

OnProgress = Callable[[int, int], None]


def packed(model_dir: str | Path | None, includes: Sequence[str | Path] = ()) -> Archive:
    """An archive of a folder and of more files and folders beside its contents.

    Every folder's own `.detignore` says what of it stays here.

    Raises:
        detcloud.archive.ArchiveInvalid: too large, or it holds what cannot be sent.
        DetcloudError: there is nothing to pack, or an include is missing or in the way.
    """
    if model_dir is None and not includes:
        raise DetcloudError("there is no code to send; name a model folder or files to include")
    if model_dir is not None and not includes:
        return pack(Path(model_dir), kept_names(Path(model_dir)))
    with tempfile.TemporaryDirectory(prefix="detcloud-code-") as name:
        staged = Path(name) / "code"
        if model_dir is None:
            staged.mkdir()
        else:
            _copy(Path(model_dir), staged)
        for include in map(Path, includes):
            _include(include, staged)
        return pack(staged)


def upload_archive(
    transport: Transport,
    archive: Archive,
    upload: dict[str, Any],
    on_progress: OnProgress | None = None,
) -> None:
    """Sends an archive where the cluster wants it (`upload` of `POST /model-code`)."""
    tell = on_progress or (lambda done, total: None)
    with _Counted(archive.path, archive.size, tell) as file:
        transport.upload(
            upload["path"],
            file,
            archive.size,
            method=upload.get("method", "PUT"),
            headers=upload.get("headers") or {},
        )


def _include(include: Path, staged: Path) -> None:
    place = staged / include.resolve().name
    if place.exists():
        raise DetcloudError(f"--include {include}: the code has a {place.name} already")
    if include.is_dir():
        _copy(include, place)
    elif include.is_file():
        shutil.copy(include, place)
    else:
        raise DetcloudError(f"--include {include}: there is no such file or folder")


def _copy(folder: Path, destination: Path) -> None:
    """What of the folder would be sent: the packer checks it and follows its links."""
    with pack(folder, kept_names(folder)) as archive:
        extract(archive.path, destination)


class _Counted(io.FileIO):
    """Tells of every read; a repeated request reads, and so counts, from the start again."""

    def __init__(self, path: Path, total: int, on_progress: OnProgress) -> None:
        super().__init__(path, "rb")
        self._total = total
        self._on_progress = on_progress

    def read(self, size: int | None = -1, /) -> Any:
        block = super().read(-1 if size is None else size)
        self._on_progress(self.tell(), self._total)
        return block
