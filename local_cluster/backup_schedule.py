"""Scheduled backups of a server: the thread, the record of the last backup, and old archives."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_errors import BucketError
from lambdas.clock import now_ms
from local_cluster.background_thread import BackgroundThread
from local_cluster.backup_places import BackupPlace
from local_cluster.home import HomeFolder

log = logging.getLogger(__name__)

RECORD = "backup"
"""The record of the data folder about the last backup and the last failure."""
SCRATCH = ".scheduled-backup"
"""The subfolder of the data folder for the archive that is being written."""
CHECK_SECONDS = 10.0
RETRY_MS_MAX = 10 * 60 * 1000
# A stop does not wait for a large backup: the partial archive is deleted.
STOP_SECONDS_MAX = 5.0
NICENESS = 19


class BackupFailed(Exception):
    """A backup could not be written. The message has the reason."""


@dataclass(frozen=True)
class BackupSchedule:
    """The settings of scheduled backups."""

    place: str
    """The folder or bucket, as `open_backup_place` reads it."""
    every_ms: int
    """The time between two backups."""
    keep: int
    """The number of archives of this cluster to keep, at least 1."""


class BackupThread(BackgroundThread):
    """A thread that writes a backup when the last backup is older than the schedule allows.

    The time of the last backup is in the record RECORD, so that a restart of the server does not
    cause another backup. A failed backup is repeated after the shorter of RETRY_MS_MAX and
    `every_ms`. Each failure is logged.

    Args:
        home: the data folder.
        cluster_id: the id of the cluster, which is a part of the archives' names.
        schedule: the settings.
        place: the place of the archives.
        clock: returns the time in epoch ms.
    """

    def __init__(
        self,
        home: HomeFolder,
        cluster_id: str,
        schedule: BackupSchedule,
        place: BackupPlace,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        super().__init__("backups", STOP_SECONDS_MAX)
        self._home = home
        self._cluster_id = cluster_id
        self._schedule = schedule
        self._place = place
        self._clock = clock
        self._process: subprocess.Popen[str] | None = None

    def stop(self) -> None:
        """Stop the thread, and end a backup that is being written."""
        self._stopped.set()
        process = self._process
        if process is not None:
            process.terminate()
        super().stop()

    def run_if_due(self) -> bool:
        """Write a backup if the schedule requires a backup now, and record the outcome.

        Return whether the schedule required a backup.
        """
        record = self._home.read_record(RECORD)
        if self._clock() < self._due_ms(record):
            return False
        try:
            record = self._store_backup()
        except (BackupFailed, BucketError, OSError, ValueError) as error:
            if self._stopped.is_set():
                return True
            log.error("the backup to %s failed: %s", self._schedule.place, error)
            record |= {"failed_ms": self._clock(), "error": str(error)[:1000]}
        self._home.write_record(RECORD, {**record, **self._description()})
        self._delete_old_archives()
        return True

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            try:
                self.run_if_due()
            except Exception:
                log.exception("the scheduled backup failed")

    def _due_ms(self, record: dict[str, Any]) -> int:
        """Return the time of the next backup in epoch ms: 0 without a backup and a failure."""
        every_ms = self._schedule.every_ms
        due_ms = _time_of(record, "taken_ms", every_ms)
        return max(due_ms, _time_of(record, "failed_ms", min(RETRY_MS_MAX, every_ms)))

    def _store_backup(self) -> dict[str, Any]:
        """Write an archive, and store the archive under a new name; return the new record.

        Raises BackupFailed, BucketError, OSError and ValueError.
        """
        began = time.monotonic()
        folder = self._home.folder / SCRATCH
        # A killed server leaves the folder with a part of an archive.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            archive = folder / "backup.tar"
            report = self._write_archive(archive)
            name = archive_name(self._cluster_id, int(report["taken_ms"]))
            self._place.store(name, archive)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = round(time.monotonic() - began, 1)
        log.info("backup %s was stored in %s", name, self._schedule.place)
        return {
            "taken_ms": report["taken_ms"],
            "archive": name,
            "size_bytes": report["size_bytes"],
            "seconds": seconds,
        }

    def _delete_old_archives(self) -> None:
        """Delete the archives that the schedule does not keep. An error is logged."""
        try:
            for old in old_archives(self._place.names(), self._cluster_id, self._schedule.keep):
                self._place.delete(old)
        except (BucketError, OSError) as error:
            log.warning("old backups in %s were not deleted: %s", self._schedule.place, error)

    def _write_archive(self, archive: Path) -> dict[str, Any]:
        """Write a backup to a file, in a separate process, and return the report.

        The process has the lowest priority, so that the server answers meanwhile. Raises
        BackupFailed and OSError.
        """
        command = [sys.executable, "-P", "-m", "local_cluster.backups"]
        command += ["--home", str(self._home.folder), "backup", "--", str(archive)]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            self._process = process
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            output, errors = process.communicate()
            self._process = None
        if process.returncode:
            lines = [line for line in errors.splitlines() if not line.startswith("copied ")]
            raise BackupFailed(lines[-1] if lines else f"the process ended: {process.returncode}")
        report: dict[str, Any] = json.loads(output)
        return report

    def _description(self) -> dict[str, Any]:
        schedule = self._schedule
        return {"place": schedule.place, "every_ms": schedule.every_ms, "keep": schedule.keep}


def archive_name(cluster_id: str, taken_ms: int) -> str:
    """Return the name of an archive. Names of a cluster sort by time."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken_ms // 1000))
    return f"detcloud-{cluster_id[:8]}-{moment}.tar"


def old_archives(names: Sequence[str], cluster_id: str, keep: int) -> list[str]:
    """Return the archives to delete: all archives of the cluster but the `keep` newest.

    Other files and archives of other clusters are left out.
    """
    form = re.compile(rf"detcloud-{re.escape(cluster_id[:8])}-\d{{8}}T\d{{6}}Z\.tar")
    own = sorted(name for name in names if form.fullmatch(name))
    return own[:-keep]


def _time_of(record: dict[str, Any], name: str, after_ms: int) -> int:
    """Return a time of the record plus `after_ms`. Return 0 if the record lacks the time."""
    time_ms = record.get(name)
    return time_ms + after_ms if isinstance(time_ms, int) else 0
