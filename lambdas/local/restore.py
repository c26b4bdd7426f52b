"""Restoring a backup into a data folder on which no server runs.

The folder's state is replaced by one rename at the very end, and what was there is kept beside it,
so a restore that is cut short has changed nothing: files that were added by then are named by no
state.
"""

import os
import shutil
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from control_plane.engine.engine import Engine
from control_plane.restoration.restart import RestartReport, begin_incarnation, read_next_ids
from control_plane.state.sqlite import SqliteTable, check_table_file, copy_table_file
from control_plane.state.table import TableError
from lambdas.clock import now_ms
from lambdas.local.adapters import read_cluster_id
from lambdas.local.backup_archive import (
    FOLDERS,
    SECRETS,
    STATE,
    BackupDescription,
    BackupInvalid,
    OnProgress,
    copy_file,
    read_description,
    read_files,
)
from lambdas.local.home import HomeFolder
from lambdas.local.state_mark import StateMark

_LOG_SUFFIXES = ("-wal", "-shm")


@dataclass(frozen=True)
class RestoreReport:
    """The outcome of a restore: the backup, the restart from it, and where the former state is kept
    (None: there was none).
    """

    backup: BackupDescription
    restart: RestartReport
    kept: Path | None


def restore_backup(
    home: HomeFolder, archive: Path, on_progress: OnProgress = lambda done, total: None
) -> RestoreReport:
    """Restore a backup into `home`, whose lock the caller holds.

    Raises:
        BackupInvalid: the archive is no backup, or is damaged; nothing has changed.
        TableError: the state in it is damaged; nothing has changed.
        OSError: a file cannot be read or written.
    """
    description = read_description(archive)
    total = archive.stat().st_size
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=home.folder) as scratch:
        staged = Path(scratch) / STATE
        done = 0
        for file in read_files(archive):
            target = _target(home, file.name, staged)
            if target is not None:
                copy_file(file, target)
            done += file.size
            on_progress(min(done, total), total)
        if not staged.exists():
            raise BackupInvalid(f"{archive} is damaged: it has no {STATE}")
        check_table_file(staged)
        restart = _restart(home, staged)
        kept = _keep_state(home)
        for suffix in _LOG_SUFFIXES:
            Path(f"{home.state}{suffix}").unlink(missing_ok=True)
        _sync_file(staged)
        staged.replace(home.state)
    return RestoreReport(description, restart, kept)


def _target(home: HomeFolder, name: str, staged: Path) -> Path | None:
    """The place that a file of a backup goes to; None for one that is left out."""
    if name == STATE:
        return staged
    if name.split("/")[0] in FOLDERS:
        return home.folder / name
    if name in SECRETS and not (home.folder / name).exists():
        # Those that are there may have been changed since for good reasons.
        return home.folder / name
    return None


def _restart(home: HomeFolder, staged: Path) -> RestartReport:
    with closing(SqliteTable(staged)) as table:
        cluster_id = read_cluster_id(table)
        if cluster_id is None:
            raise BackupInvalid("the backup is damaged: its state is not that of a cluster")
        report = begin_incarnation(Engine(table, now_ms), _read_given_ids(home, cluster_id))
        StateMark(home, table, cluster_id).advance()
    return report


def _read_given_ids(home: HomeFolder, cluster_id: str) -> dict[str, int] | None:
    """Read the next ids of the state that is to be replaced; None where it is lost, or another
    cluster's.
    """
    if not home.state.is_file():
        return None
    try:
        with closing(SqliteTable(home.state)) as table:
            return read_next_ids(table) if read_cluster_id(table) == cluster_id else None
    except (TableError, OSError, ValueError):
        return None


def _keep_state(home: HomeFolder) -> Path | None:
    """Keep the present state under another name, even if it is damaged."""
    if not home.state.exists():
        return None
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    kept = home.folder / f"state-before-restore-{when}.db"
    try:
        copy_table_file(home.state, kept)
    except TableError:
        shutil.copyfile(home.state, kept)
    kept.chmod(0o600)
    return kept


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
