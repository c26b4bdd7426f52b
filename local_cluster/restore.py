"""Restoration of a backup into a data folder without a running server.

A rename at the very end replaces the state, and a copy of the former state is kept. If a restore
stops earlier, the former state is still in place. Files that were added until then are harmless,
because no state names them. The mark's file is written after the rename, so that no server treats
the former state as an older copy.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from control_plane.engine.engine import Engine
from control_plane.restoration.restart import RestartReport, begin_incarnation, read_next_ids
from control_plane.state.sqlite import SqliteTable, check_table_file
from control_plane.state.table import TableError
from lambdas.clock import now_ms
from local_cluster.backup_archive import (
    FOLDERS,
    OPTIONAL_SECRETS,
    SECRETS,
    STATE,
    BackupDescription,
    BackupInvalid,
    OnProgress,
    copy_file,
    read_blocks,
    read_description,
    read_files,
)
from local_cluster.cluster_id import read_cluster_id
from local_cluster.home import HomeFolder
from local_cluster.object_bucket import open_bucket
from local_cluster.server_group import forget_group
from local_cluster.state_mark import RESTART_STEP, StateMark

_OBJECTS = f"{FOLDERS[0]}/"


@dataclass(frozen=True)
class RestoreReport:
    """The outcome of a restore."""

    backup: BackupDescription
    """The description of the restored backup."""
    restart: RestartReport
    """The outcome of the restart from the restored state."""
    kept: Path | None
    """The copy of the former state. None if the folder contained no state."""


def restore_backup(
    home: HomeFolder, archive: Path, on_progress: OnProgress = lambda done, total: None
) -> RestoreReport:
    """Restore a backup into the data folder `home`; the caller holds the folder's lock.

    Write the backup's objects and checkpoints into the folder, over files of the same name, and
    secrets that the folder lacks. If a bucket has the objects, write the objects there. In the
    backup's state, skip ids and mark all agents as lost, so that the trials restart from their
    latest checkpoints. Keep a copy of the former state, then replace it.

    Args:
        on_progress: called after each file.

    Raises:
        BackupInvalid: the archive is not a backup or is damaged.
        HomeInvalid: the bucket with the objects cannot be used.
        TableError: the state in the backup is damaged or cannot be changed.
        OSError: a file cannot be read or written, or the bucket failed.

    After an error, the former state is still in place, but files may have been added.
    """
    description = read_description(archive)
    total = archive.stat().st_size
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=home.folder) as scratch:
        staged = Path(scratch) / STATE
        done = 0
        bucket = open_bucket(home)
        for file in read_files(archive):
            target = _target(home, file.name, staged)
            if bucket is not None and file.name.startswith(_OBJECTS):
                bucket.bucket.write(file.name.removeprefix(_OBJECTS), read_blocks(file))
            elif target is not None:
                copy_file(file, target)
            done += file.size
            on_progress(min(done, total), total)
        if not staged.exists():
            raise BackupInvalid(f"{archive} is damaged: it has no {STATE}")
        check_table_file(staged)
        restart, write_mark = _restart(home, staged)
        kept = _keep_state(home)
        home.state.replace_by(staged)
    # Without the file, the next server accepts the state and writes the file.
    with suppress(OSError):
        write_mark()
    return RestoreReport(description, restart, kept)


def _target(home: HomeFolder, name: str, staged: Path) -> Path | None:
    """Return the path to which a file of a backup is restored.

    Return None for a file to skip: the description, and secrets that exist in the folder.

    Args:
        name: the name of the file in the backup.
        staged: the path for the state.
    """
    if name == STATE:
        return staged
    if name.split("/")[0] in FOLDERS:
        return home.files / name
    if name in (*SECRETS, *OPTIONAL_SECRETS) and not (home.folder / name).exists():
        # An existing secret may have been changed on purpose since the backup.
        return home.folder / name
    return None


def _restart(home: HomeFolder, staged: Path) -> tuple[RestartReport, Callable[[], None]]:
    """Make the restored state in the file `staged` safe to use.

    Start a new incarnation in the state: skip ids, mark all agents as lost, and notify the
    experiments. An incarnation is a cluster's life between two restorations; agents delete their
    allocations from before. Then advance the mark in the state: a number by which a server detects
    an older copy of the state. Delete the rows of the group of servers. Raises BackupInvalid if the
    file is not a cluster's state, and TableError.

    Returns:
        The outcome, and a function that writes the mark's number to the file in `home`. The
        function may raise OSError.
    """
    with closing(SqliteTable(staged)) as table:
        cluster_id = read_cluster_id(table)
        if cluster_id is None:
            raise BackupInvalid("the backup is damaged: its state is not that of a cluster")
        report = begin_incarnation(Engine(table, now_ms), _read_given_ids(home, cluster_id))
        mark = StateMark(home, table, cluster_id)
        number = mark.advance_state(RESTART_STEP)
        forget_group(table)
    return report, partial(mark.write_file, number)


def _read_given_ids(home: HomeFolder, cluster_id: str) -> dict[str, int] | None:
    """Read the next ids of the former state, which the restore will replace.

    Return None if the former state is missing, unreadable or another cluster's.
    """
    if not home.state.exists():
        return None
    try:
        with closing(home.state.open()) as table:
            return read_next_ids(table) if read_cluster_id(table) == cluster_id else None
    except (TableError, OSError, ValueError):
        return None


def _keep_state(home: HomeFolder) -> Path | None:
    """Copy the current state to `state-before-restore-TIME.db`, and return the path of the copy.

    TIME is in UTC. Copy a damaged state byte by byte. Return None if the folder contains no state.
    Raises OSError.
    """
    if not home.state.exists():
        return None
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    kept = home.folder / f"state-before-restore-{when}.db"
    # A damaged file is kept as it is.
    with suppress(TableError):
        home.state.copy_to(kept)
    kept.chmod(0o600)
    return kept
