"""The files that a checkpoint is made of, as they lie on this machine until they are stored.

A framework deletes old checkpoints and writes new ones while one is uploaded behind the training.
So the upload has links of its own: a link keeps a file that is deleted or replaced meanwhile, and
takes no room. Of a file that is written on in its place it shows the change, which is an error: a
checkpoint of two moments would be none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint_writer import (
    Selector,
    Stamp,
    file_stamp,
    files_to_store,
    size_and_sha256,
)
from detcloud.core.shards import Shard
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import TrialSpec, to_json_value
from detcloud.storage import StorageError

# No upload takes so long, whatever the clocks of machines that share a file system say.
ABANDONED_SECONDS = 7 * 24 * 3600
_PREFIX = "detcloud-upload-"


@dataclass(frozen=True)
class Sources:
    """Files by their names in the checkpoint, or in `failure` why there are none.

    `stamps` are the sizes and times of those that must not change; `folder` is ours, and goes.
    With `is_none` the caller had no directory of files.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    failure: str = ""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    folder: tempfile.TemporaryDirectory[str] | None = None
    is_none: bool = False

    def check_unchanged(self) -> None:
        """Raise StorageError for a file that was written on since it was linked."""
        for name, stamp in self.stamps.items():
            if file_stamp(self.files[name]) != stamp:
                raise StorageError(
                    f"{name} was modified while it was uploaded: name it in `growing`, or upload "
                    "without `asynchronous`"
                )

    def close(self) -> None:
        """Remove the links, if any; the directory keeps its files."""
        if self.folder is not None:
            self.folder.cleanup()


def list_sources(directory: Path, selector: Selector | None = None) -> Sources:
    """The wanted files where they lie.

    Raises DetcloudError where there is no such directory, or it holds what cannot be stored.
    """
    if not directory.is_dir():
        raise DetcloudError(f"{directory} is not a directory: nothing can be uploaded from it")
    return Sources(files_to_store(directory, selector, follows_links=True))


def link_sources(
    directory: Path, selector: Selector | None, growing: Selector | None, spec: TrialSpec
) -> Sources:
    """The wanted files as they are now, as links, and as copies those that `growing` takes.

    What earlier runs of the trial left beside the directory is removed, and after a week what any
    left: a process that was killed by force could not do it. Errors as for `list_sources`.
    """
    found = list_sources(directory, selector).files
    folder = _new_folder(directory, spec)
    files = {name: Path(folder.name, name) for name in found}
    try:
        for name, source in found.items():
            _link(source, files[name], is_growing=growing is not None and growing(name))
        return Sources(files, "", {name: file_stamp(path) for name, path in files.items()}, folder)
    except OSError as error:
        folder.cleanup()
        raise DetcloudError(f"{directory} cannot be uploaded: {error}") from error


def try_to_take(take: Callable[[], Sources]) -> Sources:
    """The sources that `take` returns, or why it has failed, for the other ranks to hear."""
    try:
        return take()
    except (DetcloudError, OSError) as error:
        return Sources(failure=str(error))


def describe_shard(sources: Sources, metadata: dict[str, Any] | None) -> Shard:
    """A rank's part of a checkpoint, as the others need to know it; reads every file."""
    if sources.failure:
        return Shard(failure=sources.failure)
    try:
        contents = {name: size_and_sha256(path) for name, path in sources.files.items()}
        plain = to_json_value(metadata or {}, "metadata")
        return Shard(contents, plain, is_none=sources.is_none)
    except (DetcloudError, OSError) as error:
        return Shard(failure=str(error))


def _new_folder(directory: Path, spec: TrialSpec) -> tempfile.TemporaryDirectory[str]:
    """A folder on the directory's file system, beside it; where none can be, the machine's own."""
    parent = directory.absolute().parent
    try:
        _remove_abandoned_folders(parent, spec)
        prefix = f".{_owner_prefix(spec)}{spec.epoch}-"
        return tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    except OSError:
        return make_temporary_folder(_PREFIX)


def _remove_abandoned_folders(parent: Path, spec: TrialSpec) -> None:
    """Remove the links of earlier runs of this trial, and those of any trial a week after they were
    made: it may never run again. A run that has lost its trial and still lives fails to
    store what it had there, which counts for nothing.
    """
    with os.scandir(parent) as found:
        names = [entry.name for entry in found if entry.name.startswith(f".{_PREFIX}")]
    for name in names:
        if _is_of_earlier_run(name, spec) or _is_abandoned(parent / name):
            shutil.rmtree(parent / name, ignore_errors=True)


def _is_of_earlier_run(name: str, spec: TrialSpec) -> bool:
    prefix = f".{_owner_prefix(spec)}"
    epoch = name.removeprefix(prefix).partition("-")[0]
    return name.startswith(prefix) and epoch.isdecimal() and int(epoch) < spec.epoch


def _is_abandoned(folder: Path) -> bool:
    try:
        return time.time() - folder.lstat().st_mtime > ABANDONED_SECONDS
    except FileNotFoundError:
        # Its own run has removed it.
        return False


def _owner_prefix(spec: TrialSpec) -> str:
    """The beginning of the names of a trial's folders: several clusters may share a file system."""
    cluster = hashlib.sha256(spec.cluster_id.encode()).hexdigest()[:8]
    return f"{_PREFIX}{cluster}-{spec.trial_id}."


def _link(source: Path, link: Path, *, is_growing: bool) -> None:
    """Link a file; copy one that is growing, or where the file system has no links."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if is_growing or not _try_to_link(source, link):
        shutil.copyfile(source, link)


def _try_to_link(source: Path, link: Path) -> bool:
    try:
        os.link(source, link)
    except OSError:
        return False
    return True
