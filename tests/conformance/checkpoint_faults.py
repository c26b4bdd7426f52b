"""Stores that fail during a checkpoint, from a drawn moment on.

The network is silent, a credential expires, or a disk or store is full. A trial stores some
checkpoints before the fault. The run must end by itself, with an error that says what to do. The
next run must continue from the previous checkpoint, or from the new checkpoint if that was stored.
At the end no checkpoint may be lost and no file may remain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE
from tests.conformance.checkpoint_cluster import CheckpointCluster, count_commits, report_lines
from tests.conformance.kill_phases import Enter
from tests.conformance.kill_victims import LARGE_EVERY, run_victim, train
from tests.emulators.faulty_front import Fault, FaultyFront
from tests.emulators.server import missing
from tests.patience import PROCESS_SECONDS_MAX, wait_until

# The next checkpoint is the first with a large file, after three others.
STEPS_BEFORE = LARGE_EVERY - 1
# Writes of a checkpoint to a bucket: the metadata, up to five small files, the begin, two or three
# parts and the end of the large file, and the manifest.
WRITES_MAX = 11
# The second part of the large file, which is sent first.
PART_WRITE = 3
# Short limits of a client for answers and attempts, so that a test takes seconds.
SILENCE_SECONDS_MAX, SILENT_ATTEMPTS_MAX = 0.5, 2
DISK_BYTES = 24 << 20
NOTICE_SECONDS = 60
ROOT = Path(__file__).parents[2]
# A trial that gets a notice of its machine's end during an upload. At a kilobyte a second the
# upload would take hours.
LEAVER = """
import time
from detcloud import core
from detcloud.core.background_save import BackgroundSave
from tests.conformance.kill_victims import LARGE_EVERY, checkpoint_content

BackgroundSave.bytes_per_second = property(lambda saves: 1000.0)
with core.init() as context:
    steps = {"steps_completed": LARGE_EVERY}
    with context.checkpoint.store_path(steps, asynchronous=True) as (folder, _):
        for name, content in checkpoint_content(LARGE_EVERY):
            (folder / name).write_bytes(content)
    while not context.preempt.should_preempt():
        time.sleep(0.01)
    context.plan_last_save()
"""


@dataclass
class CheckpointFaults(CheckpointCluster):
    """A cluster with trials that meet faults."""

    def run(
        self,
        break_store: Callable[[], None],
        mend_store: Callable[[], None],
        storage: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run an experiment and break the store in the third run; return this run's error.

        `storage` and `environment` are the trials' way to the store, which may fail. Raises
        AssertionError for lost or damaged checkpoints, remaining files, and a run without an error.
        """
        way = {**self.environment, **(environment or {})}
        experiment_id = self.create()
        assert self._run_trial(storage, way, STEPS_BEFORE) == ("", STEPS_BEFORE)
        break_store()
        try:
            error, commits = self._run_trial(storage, way, LARGE_EVERY + 1, _train_impatiently)
        finally:
            mend_store()
        assert error, "no request met the fault"
        # The first checkpoint may have been stored before the second met the fault.
        left = LARGE_EVERY + 1 - STEPS_BEFORE - commits
        after = self._run_trial(storage, way, LARGE_EVERY + 1)
        assert after == ("", left), f"{after} after {error}"
        assert self.check_to_the_end(experiment_id) == LARGE_EVERY + 1
        return error

    def leave_at_notice(
        self, front: FaultyFront, storage: Mapping[str, str], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Give a notice to a run during a part of an upload that cannot end; return the exit line.

        Raises AssertionError as `run` does.
        """
        way = {**self.environment, **environment}
        experiment_id = self.create()
        assert self._run_trial(storage, way, STEPS_BEFORE) == ("", STEPS_BEFORE)
        entry = self.next_allocation()
        place = self.make_place(entry, storage)
        front.break_at(Fault.SILENCE, PART_WRITE)
        variables = {**os.environ, **way, "DETCLOUD_TRIAL_DIR": str(place)}
        command = [sys.executable, "-c", LEAVER]
        with subprocess.Popen(command, env=variables, cwd=ROOT, stdout=subprocess.PIPE) as trial:
            try:
                wait_until(lambda: front.met or trial.poll() is not None)
                self._give_notice(place, entry)
                output, _ = trial.communicate(timeout=PROCESS_SECONDS_MAX)
            finally:
                trial.kill()
                front.mend()
        assert trial.returncode == 0, output
        lines = report_lines(place)
        self.report_exit(entry["allocation"], self.exit_request(entry["allocation"], lines))
        assert self._run_trial(storage, way, LARGE_EVERY) == ("", 1)
        assert self.check_to_the_end(experiment_id) == LARGE_EVERY
        return lines[-1]

    def _give_notice(self, place: Path, entry: Mapping[str, Any]) -> None:
        deadline_ms = int((time.time() + NOTICE_SECONDS) * 1000)
        preempt = {"deadline_ms": deadline_ms, "reason": "the market"}
        revision = entry["directives"]["revision"] + 1
        fresh = place / "in" / "directives.new"
        fresh.write_text(
            json.dumps({**entry["directives"], "revision": revision, "preempt": preempt})
        )
        fresh.rename(place / "in" / "directives.json")

    def _run_trial(
        self,
        storage: Mapping[str, str] | None,
        environment: Mapping[str, str],
        steps_max: int,
        work: Callable[..., None] = train,
    ) -> tuple[str, int]:
        """Run a trial until `steps_max`; return the error and the number of stored checkpoints."""
        entry = self.next_allocation()
        place = self.make_place(entry, storage)
        end = run_victim(place / "phases", None, work, place, environment, steps_max)
        lines = report_lines(place)
        self.report_exit(entry["allocation"], self.exit_request(entry["allocation"], lines))
        return end.error, count_commits(lines)


def _train_impatiently(
    enter: Enter, place: Path, environment: Mapping[str, str], steps_max: int
) -> None:
    """Train as usual, but abandon a silent store early."""
    import google.cloud.storage.retry as gcs_retry

    from detcloud.shared import azure, gcs, s3_client, s3_reading, s3_writing

    seconds, attempts = SILENCE_SECONDS_MAX, SILENT_ATTEMPTS_MAX
    impatient = gcs_retry.DEFAULT_RETRY.with_timeout(seconds * attempts)
    with (
        patch.multiple(s3_client, READ_SECONDS_MAX=seconds, ATTEMPTS_MAX=attempts),
        patch.object(s3_reading, "ATTEMPTS_MAX", attempts),
        patch.object(s3_writing, "ATTEMPTS_MAX", attempts),
        patch.multiple(azure, READ_SECONDS_MAX=seconds, RETRIES_MAX=attempts - 1),
        patch.multiple(gcs, SECONDS_MAX=seconds, ATTEMPTS_MAX=attempts),
        patch.object(gcs_retry, "DEFAULT_RETRY", impatient),
    ):
        train(enter, place, environment, steps_max)


@dataclass(frozen=True)
class SmallDisk:
    """A small disk, mounted at `place`."""

    place: Path

    def fill(self, bytes_left: int) -> None:
        """Fill the disk until `bytes_left` bytes are free."""
        room = os.statvfs(self.place)
        size = room.f_bavail * room.f_frsize - bytes_left
        with (self.place / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, size)

    def make_room(self) -> None:
        """Delete the filler, so that the whole disk is free."""
        (self.place / "filler").unlink()

    def environment(self) -> dict[str, str]:
        """Return the environment of a trial with temporary folders on this disk."""
        return {TEMPORARY_FOLDER_VARIABLE: str(self.place)}


@contextmanager
def small_disk(place: Path) -> Iterator[SmallDisk]:
    """Mount a small disk at `place` until the block ends; create the folder."""
    if os.geteuid() != 0:
        missing("root", "only root mounts a small disk")
    place.mkdir()
    options = f"size={DISK_BYTES},mode=1777"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        missing("root", f"no small disk can be mounted: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)
