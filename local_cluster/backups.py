"""`python -m local_cluster.backups`: write or restore a backup of an embedded cluster.

The program prints a JSON object. Lines `copied N of M` on stderr report the progress in KiB.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import TableError
from lambdas.clock import now_ms
from local_cluster.backup_archive import BackupDescription, BackupInvalid, write_backup
from local_cluster.cluster_id import read_cluster_id
from local_cluster.home import FILES_ID, HomeFolder, HomeInUse, HomeInvalid
from local_cluster.restore import restore_backup

PROGRESS_SECONDS = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or restore a backup, and print a report as JSON.

    Return the exit status: 0, or 1 after an error, with the reason on stderr. Invalid options end
    the process with status 2. The progress is printed to stderr. All new files are readable by the
    owner only, since the process's umask is changed.
    """
    options = _options(arguments)
    os.umask(0o077)
    try:
        report = options.handler(HomeFolder(options.home), options)
    except HomeInUse:
        print("a cluster runs here: stop it with `detcloud down` first", file=sys.stderr)
        return 1
    except (BackupInvalid, HomeInvalid, TableError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


def _make_backup(home: HomeFolder, options: argparse.Namespace) -> dict[str, Any]:
    """Write a backup to the file `options.archive`, and return the report.

    With `options.checkpoints`, include the checkpoints. Print the progress to stderr. The report
    contains `archive`, `size_bytes`, `taken_ms`, `has_checkpoints` and `bucket`, the address of the
    bucket with the objects, or "". Raises OSError if the
    archive exists, the folder has no state, or a file cannot be read or written. Raises TableError
    if the state is damaged.
    """
    archive = Path(options.archive)

    def describe(state: Path) -> BackupDescription:
        with closing(SqliteTable(state)) as table:
            cluster_id = read_cluster_id(table) or ""
        return BackupDescription(cluster_id, now_ms(), has_checkpoints=options.checkpoints)

    description = write_backup(
        home, archive, describe, with_checkpoints=options.checkpoints, on_progress=_ProgressLines()
    )
    return {
        "archive": str(archive),
        "size_bytes": archive.stat().st_size,
        "taken_ms": description.taken_ms,
        "has_checkpoints": description.has_checkpoints,
        "bucket": description.bucket,
    }


def _restore(home: HomeFolder, options: argparse.Namespace) -> dict[str, Any]:
    """Restore the backup `options.archive` while holding the server's lock; return the report.

    Print the progress to stderr. The report contains `taken_ms`, `version`, `experiments`,
    `next_ids`, `kept`, the path of a copy of the replaced state, or None, and `bucket`, the address
    of the bucket with the backup's objects, or "". Raises HomeInUse if a
    server runs, BackupInvalid for a damaged or foreign archive, TableError and OSError.
    """
    with home.claim(), home.state.claim():
        report = restore_backup(home, Path(options.archive), _ProgressLines())
    return {
        "taken_ms": report.backup.taken_ms,
        "version": report.backup.version,
        "experiments": report.restart.experiments,
        "next_ids": dict(report.restart.next_ids),
        "kept": None if report.kept is None else str(report.kept),
        "bucket": report.backup.bucket,
    }


def _delete_state(home: HomeFolder, options: argparse.Namespace) -> dict[str, Any]:
    """Delete the state of a stopped cluster, also from a database; return an empty report.

    Also delete objects and checkpoints outside of the data folder. Objects in a bucket stay. Raises
    HomeInUse if a server runs, TableError and OSError.
    """
    with home.claim(), home.state.claim():
        home.state.delete()
        if home.files != home.folder:
            for folder in (home.objects, home.checkpoints):
                shutil.rmtree(folder, ignore_errors=True)
            (home.files / FILES_ID).unlink(missing_ok=True)
    return {}


class _ProgressLines:
    """A callback that prints the progress at most every PROGRESS_SECONDS, and at the end."""

    def __init__(self) -> None:
        self._printed_seconds = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Print a line with the completed and total numbers in KiB, or do nothing if too early."""
        now = time.monotonic()
        if done >= total or now - self._printed_seconds >= PROGRESS_SECONDS:
            self._printed_seconds = now
            print(f"copied {done // 1024} of {max(1, total // 1024)}", file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options in `arguments`, by default of the command line.

    Invalid options end the process with status 2.

    The options are `home`, `archive` and `handler`, the function that runs the command. The command
    `backup` also has `checkpoints`.
    """
    parser = argparse.ArgumentParser(prog="python -m local_cluster.backups")
    parser.add_argument("--home", type=Path, required=True, help="the cluster's data folder")
    commands = parser.add_subparsers(required=True)
    backup = commands.add_parser("backup", help="write a backup, also while the cluster runs")
    backup.add_argument("--checkpoints", action="store_true", help="with the trials' checkpoints")
    backup.set_defaults(handler=_make_backup)
    delete = commands.add_parser("delete-state", help="delete the state; no server may run")
    delete.set_defaults(handler=_delete_state)
    restore = commands.add_parser("restore", help="restore a backup; no server may run")
    restore.set_defaults(handler=_restore)
    for command in (backup, restore):
        command.add_argument("archive", help="the backup file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
