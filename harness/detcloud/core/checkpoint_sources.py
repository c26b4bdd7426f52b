"""The files of a checkpoint that is not stored yet.

During an upload in the background, a framework may delete old checkpoints and write new ones. The
upload therefore uses hard links. A link keeps a file that is deleted or replaced, and needs no
space. A change within a file is visible through the link. Such a change is an error, because the
checkpoint would mix two moments.
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
from detcloud.shared.json_values import to_json_value
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage import StorageError

# Longer than any upload, even if the clocks of machines that share a file system differ.
ABANDONED_SECONDS = 7 * 24 * 3600
_PREFIX = "detcloud-upload-"


@dataclass(frozen=True)
class Sources:
    """The files of a checkpoint that is not stored yet."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """The paths of the files, by their names in the checkpoint."""
    failure: str = ""
    """The reason why the files are missing; empty if they are present."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    """The stamps of the files that must not change, by name."""
    folder: tempfile.TemporaryDirectory[str] | None = None
    """The temporary folder of links, which `close` deletes; None if the files were not linked."""
    is_none: bool = False
    """Whether the caller gave no directory."""

    def check_unchanged(self) -> None:
        """Raise StorageError if a linked file has changed since the link was made."""
        for name, stamp in self.stamps.items():
            if file_stamp(self.files[name]) != stamp:
                raise StorageError(
                    f"{name} was modified while it was uploaded: name it in `growing`, or upload "
                    "without `asynchronous`"
                )

    def close(self) -> None:
        """Delete the folder of links, if any. The original directory stays unchanged."""
        if self.folder is not None:
            self.folder.cleanup()


def list_sources(directory: Path, selector: Selector | None = None) -> Sources:
    """Return the files of `directory`, or only the files that `selector` accepts. Copy nothing.

    Raises DetcloudError if `directory` is no directory or cannot be read, and for special files, a
    file with the manifest's name, or too many files. Raises StorageError for an invalid name.
    """
    if not directory.is_dir():
        raise DetcloudError(f"{directory} is not a directory: nothing can be uploaded from it")
    return Sources(files_to_store(directory, selector, follows_links=True))


def link_sources(
    directory: Path, selector: Selector | None, growing: Selector | None, spec: TrialSpec
) -> Sources:
    """Link the files of `directory` into a temporary folder and return the links.

    With a `selector`, link only the files whose names the selector accepts. Files that `growing`
    accepts are copied, as are files that cannot be linked. Delete the link folders beside
    `directory` that earlier runs of this trial left, and those of any trial after a week.

    Raises DetcloudError if `directory` is no directory or cannot be read, and for special files, a
    file with the manifest's name, or too many files. Raises DetcloudError if a file can be neither
    linked nor copied, and StorageError for an invalid name.
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
    """Return the result of `take`. If `take` raises DetcloudError or OSError, return empty Sources.

    The field `failure` of the empty Sources contains the error's text, which can be sent to the
    other ranks.
    """
    try:
        return take()
    except (DetcloudError, OSError) as error:
        return Sources(failure=str(error))


def describe_shard(sources: Sources, metadata: dict[str, Any] | None) -> Shard:
    """Return this rank's part of a checkpoint, with the size and SHA-256 of each file.

    Read every file. If a file cannot be read or the metadata is no JSON data, return a Shard with
    only the text `failure`. Sources with a `failure` give a Shard with this text; no file is read.
    """
    if sources.failure:
        return Shard(failure=sources.failure)
    try:
        contents = {name: size_and_sha256(path) for name, path in sources.files.items()}
        plain = to_json_value(metadata or {}, "metadata")
        return Shard(contents, plain, is_none=sources.is_none)
    except (DetcloudError, OSError) as error:
        return Shard(failure=str(error))


def _new_folder(directory: Path, spec: TrialSpec) -> tempfile.TemporaryDirectory[str]:
    """Create and return a temporary folder next to `directory`, on that file system.

    First delete the link folders there that earlier runs of this trial left, and link folders older
    than a week. If the place is not writable, create the folder among the process's temporary
    folders.
    """
    parent = directory.absolute().parent
    try:
        _remove_abandoned_folders(parent, spec)
        prefix = f".{_owner_prefix(spec)}{spec.epoch}-"
        return tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    except OSError:
        return make_temporary_folder(_PREFIX)


def _remove_abandoned_folders(parent: Path, spec: TrialSpec) -> None:
    """Delete the link folders in `parent` of earlier runs of this trial, and of any trial after a
    week.

    A trial whose folder is a week old may never run again. A run that still lives, but has lost its
    trial, then fails to store its checkpoint, which would not count.
    """
    with os.scandir(parent) as found:
        names = [entry.name for entry in found if entry.name.startswith(f".{_PREFIX}")]
    for name in names:
        if _is_of_earlier_run(name, spec) or _is_abandoned(parent / name):
            shutil.rmtree(parent / name, ignore_errors=True)


def _is_of_earlier_run(name: str, spec: TrialSpec) -> bool:
    """Return whether the link folder `name` belongs to an earlier run of this trial."""
    prefix = f".{_owner_prefix(spec)}"
    epoch = name.removeprefix(prefix).partition("-")[0]
    return name.startswith(prefix) and epoch.isdecimal() and int(epoch) < spec.epoch


def _is_abandoned(folder: Path) -> bool:
    """Return whether a link folder is older than a week. False for a folder that is missing."""
    try:
        return time.time() - folder.lstat().st_mtime > ABANDONED_SECONDS
    except FileNotFoundError:
        # The run that made the folder has removed it in the meantime.
        return False


def _owner_prefix(spec: TrialSpec) -> str:
    """Return the part that the names of a trial's link folders share: the cluster and the trial.

    A link folder is the temporary folder of `link_sources`. Its name is a dot, this part, the
    run's epoch and random text. A digest of the cluster's id is included, since several clusters
    may share a file system.
    """
    cluster = hashlib.sha256(spec.cluster_id.encode()).hexdigest()[:8]
    return f"{_PREFIX}{cluster}-{spec.trial_id}."


def _link(source: Path, link: Path, *, is_growing: bool) -> None:
    """Link `source` at `link`, or copy a file that is growing or cannot be linked.

    Create missing folders of `link`. Raises OSError if the file can be neither linked nor copied.
    """
    link.parent.mkdir(parents=True, exist_ok=True)
    if is_growing or not _try_to_link(source, link):
        shutil.copyfile(source, link)


def _try_to_link(source: Path, link: Path) -> bool:
    """Create a hard link at `link` to `source`. Return False after any OSError.

    Such errors are an existing `link`, a missing `source`, and a file system without links.
    """
    try:
        os.link(source, link)
    except OSError:
        return False
    return True
