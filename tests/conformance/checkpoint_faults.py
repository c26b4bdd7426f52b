"""Trials whose store fails within a checkpoint, from a drawn moment on: a network that is silent, a
credential that expires, a disk or a store without room.

A trial stores some checkpoints; in the next one the fault comes. The run must end by itself, with
an error that says what to do; the next one must go on from the checkpoint before, or from the new
one if that was stored; and at the end nothing may be lost or left behind.
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

# The next checkpoint is the one with a large file, which comes after three others.
STEPS_BEFORE = LARGE_EVERY - 1
# The writes of a checkpoint to a bucket: its metadata, up to five small files, the begin, two or
# three parts and the end of the large one, the manifest.
WRITES_MAX = 11
# The second part of the large file, which comes first.
PART_WRITE = 3
# What a client waits for an answer, and how often it asks, so that a test need not wait for hours.
SILENCE_SECONDS_MAX, SILENT_ATTEMPTS_MAX = 0.5, 2
DISK_BYTES = 24 << 20
NOTICE_SECONDS = 60
ROOT = Path(__file__).parents[2]
# A trial that is told, within an upload, that its machine ends. At a kilobyte a second the upload
# would take hours.
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
    """A cluster whose trials meet faults."""

    def run(
        self,
        break_store: Callable[[], None],
        mend_store: Callable[[], None],
        storage: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run an experiment whose third run meets the fault; the error that this one ended with.

        `storage` and `environment` are the way of trials to the store, which may fail. Raises
        AssertionError for what was lost, damaged or left behind, and for a run without an error.
        """
        way = {**self.environment, **(environment or {})}
        experiment_id = self.create()
        assert self._run_trial(storage, way, STEPS_BEFORE) == ("", STEPS_BEFORE)
        break_store()
        try:
            error, commits = self._run_trial(storage, way, LARGE_EVERY + 1, _train_impatiently)
        finally:
            mend_store()
        assert error, "the fault was met by nobody"
        # The first of the two may have been stored whole before the other met the fault.
        left = LARGE_EVERY + 1 - STEPS_BEFORE - commits
        after = self._run_trial(storage, way, LARGE_EVERY + 1)
        assert after == ("", left), f"{after} after {error}"
        assert self.check_to_the_end(experiment_id) == LARGE_EVERY + 1
        return error

    def leave_at_notice(
        self, front: FaultyFront, storage: Mapping[str, str], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Run an experiment whose second run gets a notice while a part of its upload is on its
        way, in vain; the line with which that one left. Errors as for `run`.
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
                told, _ = trial.communicate(timeout=PROCESS_SECONDS_MAX)
            finally:
                trial.kill()
                front.mend()
        assert trial.returncode == 0, told
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
        """Let a run store checkpoints up to so many steps; its error, and how many it stored."""
        entry = self.next_allocation()
        place = self.make_place(entry, storage)
        end = run_victim(place / "phases", None, work, place, environment, steps_max)
        lines = report_lines(place)
        self.report_exit(entry["allocation"], self.exit_request(entry["allocation"], lines))
        return end.error, count_commits(lines)


def _train_impatiently(
    enter: Enter, place: Path, environment: Mapping[str, str], steps_max: int
) -> None:
    """Train as others do, but give up soon a store that does not answer."""
    import google.cloud.storage.retry as gcs_retry

    from detcloud.shared import azure, gcs, s3, s3_client

    seconds, attempts = SILENCE_SECONDS_MAX, SILENT_ATTEMPTS_MAX
    impatient = gcs_retry.DEFAULT_RETRY.with_timeout(seconds * attempts)
    with (
        patch.multiple(s3_client, READ_SECONDS_MAX=seconds, ATTEMPTS_MAX=attempts),
        patch.object(s3, "ATTEMPTS_MAX", attempts),
        patch.multiple(azure, READ_SECONDS_MAX=seconds, RETRIES_MAX=attempts - 1),
        patch.multiple(gcs, SECONDS_MAX=seconds, ATTEMPTS_MAX=attempts),
        patch.object(gcs_retry, "DEFAULT_RETRY", impatient),
    ):
        train(enter, place, environment, steps_max)


@dataclass(frozen=True)
class SmallDisk:
    """A disk of little room, at `place`."""

    place: Path

    def fill(self, bytes_left: int) -> None:
        """Leave so many bytes for others."""
        room = os.statvfs(self.place)
        size = room.f_bavail * room.f_frsize - bytes_left
        with (self.place / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, size)

    def make_room(self) -> None:
        """Leave all the room to others."""
        (self.place / "filler").unlink()

    def environment(self) -> dict[str, str]:
        """The environment of a trial whose temporary folders lie here."""
        return {TEMPORARY_FOLDER_VARIABLE: str(self.place)}


@contextmanager
def small_disk(place: Path) -> Iterator[SmallDisk]:
    """A disk of its own at `place`, which is made, until the block ends."""
    if os.geteuid() != 0:
        missing("root", "only root mounts a small disk")
    place.mkdir()
    options = f"size={DISK_BYTES},mode=1777"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        missing("root", f"no small disk can be mounted: {told.stderr.strip()}")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)
