"""The progress of an experiment of the self-test, as the cluster's API records the progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from detcloud.cli.rendering.progress import Progress
from detcloud.cli.verification.report import StepFailed
from detcloud.client import Client, Experiment, Trial
from detcloud.shared.http import ApiError
from detcloud.shared.plurals import count_text

POLL_SECONDS: Final = 1.0
BOOT_LINES_MAX: Final = 15
_PLACED: Final = re.compile(r"allocation [\d.]+ has slots .*\bof agent (?P<agent>\S+)")
_RUNNING: Final = re.compile(r"allocation [\d.]+ is RUNNING$")
_SAVED: Final = re.compile(r"^checkpoint \S+ at (?P<batches>[\d,]+) batch")


@dataclass(frozen=True)
class RunLimits:
    """The longest phases of a run, in seconds."""

    launch: float = 600.0
    boot: float = 900.0
    start: float = 900.0
    run: float = 900.0


LIMITS: Final = RunLimits()


@dataclass
class Run:
    """A run of the experiment's trial on a machine: an allocation."""

    agent: str = ""
    """The id of the agent, and of the instance."""
    placed_ms: int = 0
    started_ms: int = 0
    """The time at which the container or process was running; 0 before."""


@dataclass
class TrialRuns:
    """The runs of a trial, and the batches of the trial's checkpoints, oldest first."""

    runs: list[Run] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)
    """Time in epoch milliseconds and batches of each checkpoint."""


@dataclass(frozen=True)
class PoolBefore:
    """The state of a pool before the self-test."""

    instances: frozenset[str]
    """The ids of the pool's instances."""
    failed_boots: dict[str, int] = field(default_factory=dict)
    """The number of consecutive failures of each offering that last failed by a boot."""


def read_before(pool: dict[str, Any]) -> PoolBefore:
    """Return the state before the self-test from the description of a pool."""
    return PoolBefore(frozenset(row["id"] for row in pool["instance_list"]), _failed_boots(pool))


def _failed_boots(pool: dict[str, Any]) -> dict[str, int]:
    """Return the number of consecutive failures of each offering that last failed by a boot."""
    offerings = pool["fleet"]["offerings"]
    return {item["offering"]: item["errors"] for item in offerings if item["kind"] == "boot"}


@dataclass
class Watch:
    """The watch of an experiment.

    `instances` has the rows of all instances of the pool that were seen since the submission, by
    id, except the instances of `before`.
    """

    client: Client
    experiment: Experiment
    pool: str
    before: PoolBefore
    progress: Progress
    sleep: Callable[[float], None] = time.sleep
    seconds: Callable[[], float] = time.monotonic
    limits: RunLimits = LIMITS
    instances: dict[str, dict[str, Any]] = field(default_factory=dict)

    def await_start(self, run: int = 0) -> TrialRuns:
        """Wait until a run of the trial is running, and return all runs. Runs count from 0.

        Return the runs also if the experiment has ended.

        Raises:
            StepFailed: an instance failed to boot, or a phase took too long. The reason has the
                cluster's explanation.
        """
        phase, since = "", self.seconds()
        while True:
            found, pool = self.trial_runs(), self.look_at_pool()
            if (len(found.runs) > run and found.runs[run].started_ms) or self.experiment.has_ended:
                return found
            is_placed = len(found.runs) > run
            if not is_placed:
                self.refuse_failed_boots(pool)
            now, limit = self._phase(pool, found.runs[run].agent if is_placed else "")
            if now != phase:
                phase, since = now, self.seconds()
            if self.seconds() - since > limit:
                raise StepFailed(f"{phase} for {limit:g} s{_explain(pool)}")
            self.pause(f"{phase}{_explain(pool)}")

    def await_end(self) -> None:
        """Wait until the experiment has ended.

        Raises:
            StepFailed: the experiment runs for too long.
        """
        give_up_at = self.seconds() + self.limits.run
        while not self.experiment.has_ended:
            self.look_at_pool()
            if self.seconds() > give_up_at:
                raise StepFailed(f"the experiment is running for {self.limits.run:g} s")
            self.pause("running")
            self.experiment.refresh()

    def pause(self, text: str) -> None:
        """Wait for a poll's pause, and show a text on the progress line."""
        end = self.seconds() + POLL_SECONDS
        while self.seconds() < end:
            self.progress.show_wait(text)
            self.sleep(min(0.2, POLL_SECONDS))

    def look_at_pool(self) -> dict[str, Any]:
        """Return the description of the pool, and record new instances."""
        pool = self.client.resource_pool(self.pool).data
        for row in pool["instance_list"]:
            if row["id"] not in self.before.instances:
                self.instances[row["id"]] = row
        return pool

    def refuse_failed_boots(self, pool: dict[str, Any]) -> None:
        """Raise StepFailed if an instance of the pool failed to boot after the submission."""
        if boots := boot_texts(pool, self.experiment.created_ms):
            raise StepFailed(boots[0])
        # The output of a failed boot may arrive minutes after the failure.
        for offering, errors in _failed_boots(pool).items():
            if errors > self.before.failed_boots.get(offering, 0):
                items = pool["fleet"]["offerings"]
                message = next(one["message"] for one in items if one["offering"] == offering)
                raise StepFailed(f"a boot failed: {message}")

    def trial(self) -> Trial | None:
        """Return the experiment's trial. Return None before the trial exists."""
        trials = list(self.experiment.trials())
        return trials[0] if trials else None

    def trial_runs(self) -> TrialRuns:
        """Read the runs and the checkpoints of the trial from the history of the experiment."""
        self.experiment.refresh()
        found = TrialRuns()
        for entry in self.experiment.history():
            text, time_ms = entry["text"], entry["time_ms"]
            if placed := _PLACED.search(text):
                found.runs.append(Run(placed["agent"], time_ms))
            elif _RUNNING.search(text) and found.runs and not found.runs[-1].started_ms:
                found.runs[-1].started_ms = time_ms
            elif saved := _SAVED.search(text):
                found.saved.append((time_ms, int(saved["batches"].replace(",", ""))))
        return found

    def enrolled_ms(self, agent: str) -> int:
        """Return the time of an agent's enrolment, or 0 for an unknown agent."""
        return next((item.enrolled_ms for item in self.client.agents() if item.id == agent), 0)

    def _phase(self, pool: dict[str, Any], agent: str) -> tuple[str, float]:
        """Return the phase of a run without a start, in words, and the phase's limit in seconds."""
        if agent:
            return f"placed on {agent}, waiting for the start", self.limits.start
        fresh = [row for row in pool["instance_list"] if row["id"] not in self.before.instances]
        if fresh:
            return f"{count_text(len(fresh), 'instance')} launched, booting", self.limits.boot
        return "waiting for a launch", self.limits.launch


def boot_texts(pool: dict[str, Any], since_ms: int) -> list[str]:
    """Return the reason and the last output of each failed boot of a pool since a time."""
    return [
        "\n".join(
            [
                f"instance {boot['id']} did not boot: {boot['reason']}",
                *boot["boot_log"].splitlines()[-BOOT_LINES_MAX:],
            ]
        )
        # Clusters of older versions do not send `failed_boots`.
        for boot in pool["fleet"].get("failed_boots", ())
        if boot["ended_ms"] >= since_ms
    ]


def _explain(pool: dict[str, Any]) -> str:
    """Return the cluster's explanation for missing instances, after a colon, or ""."""
    fleet = pool["fleet"]
    failing = [f"{item['offering']}: {item['message']}" for item in fleet["offerings"]]
    reasons = [fleet["trouble"], fleet["waits"], *failing]
    text = "; ".join(filter(None, reasons))
    return f": {text}" if text else ""


def status_of(call: Callable[[], object]) -> int:
    """Return the HTTP status with which the cluster refuses a call, or 200."""
    try:
        call()
    except ApiError as error:
        return error.status
    return 200
