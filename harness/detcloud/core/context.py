"""The Core API's context: the parts that training code uses, alerts, and the last save."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum

from detcloud.core.checkpoint import CheckpointContext
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.first_step import FirstStep
from detcloud.core.notice_plan import Choice, Outcome, Situation, choose_action
from detcloud.core.preempt import PreemptContext
from detcloud.core.profiler import ProfilerContext
from detcloud.core.searcher import SearcherContext
from detcloud.core.train import TrainContext
from detcloud.shared.errors import InvalidValue
from detcloud.shared.training_settings import LoopOfTrial
from detcloud.shared.trial_directory import Directives, TrialSpec


class AlertLevel(Enum):
    """The severity of an alert."""

    DEBUG = "debug"
    """A detail for the search for an error."""
    INFO = "info"
    """An event without a fault."""
    WARN = "warn"
    """A fault that the training survives."""
    ERROR = "error"
    """A fault that makes the results worthless."""


def report_nothing(kind: str, **fields: object) -> None:
    """Do nothing, for a context without a cluster."""


@dataclass(frozen=True)
class Context:
    """The parts of the Core API for a trial."""

    train: TrainContext
    """Reports of metrics, progress and early exits."""
    checkpoint: CheckpointContext
    """Stores and restores checkpoints."""
    preempt: PreemptContext
    """Answers whether the trial should stop."""
    searcher: SearcherContext
    """The searcher's operations: the lengths to train."""
    distributed: DistributedContext
    """The processes of the trial, and the exchange of values between the processes."""
    profiler: ProfilerContext
    """Measurements of the machine."""
    info: TrialSpec
    """The trial's specification, such as hyperparameters and the latest checkpoint."""
    on_cluster: bool
    """Whether a cluster runs the trial. Otherwise metrics are only printed."""
    read_directives: Callable[[], Directives]
    """Returns the cluster's newest directives: the length to train, and requests to stop.

    Raises DetcloudError if the file is malformed.
    """
    loop: LoopOfTrial = field(default_factory=LoopOfTrial)
    """The training loop that runs, which decides the settings that are read."""
    first_step: FirstStep = field(default_factory=FirstStep)
    """Reports the first step of a run that replaces another run."""
    _report: Callable[..., None] = field(default=report_nothing, repr=False)
    """Writes a report line of a kind with fields. Does nothing without a cluster.

    Raises DetcloudError if the line cannot be written.
    """

    @property
    def is_chief(self) -> bool:
        """Whether this process's reports count: rank 0, or several ranks that exchange nothing."""
        return self.distributed.rank == 0 or not self.distributed.can_exchange

    @property
    def batch_searcher(self) -> SearcherContext:
        """The searcher context with lengths in batches. In code written for Determined, `searcher`
        may be another object, with lengths in the configuration's unit.
        """
        return self.searcher

    def alert(
        self,
        title: str | None = "",
        description: str | None = "",
        level: AlertLevel | str | None = AlertLevel.INFO,
    ) -> None:
        """Report an alert, which webhooks announce, and print the alert to the log on stderr.

        Any rank may raise an alert, and webhooks announce each call. The first 1000 alerts of an
        experiment are announced. Without a trial, the alert is only printed.

        Args:
            title: the title. An empty or missing title is left out.
            description: the text after the title. An empty or missing description is left out.
            level: the severity, as a member of `AlertLevel` or its value. None means INFO.

        Raises:
            InvalidValue: the level is unknown.
            DetcloudError: the report cannot be written.
        """
        try:
            level = AlertLevel(level or AlertLevel.INFO)
        except ValueError:
            known = ", ".join(known_level.value for known_level in AlertLevel)
            raise InvalidValue(
                f"alert level {level!r} is unknown; expected one of {known}"
            ) from None
        text = ": ".join(filter(None, (title, description)))
        print(f"[detcloud] alert ({level.value}): {text}", file=sys.stderr, flush=True)
        report = {"title": title or "", "description": description or "", "level": level.value}
        if text:
            self._report("alert", **report)

    def plan_last_save(self, *, is_saved: bool = False) -> Choice:
        """Return the action of a trial that must stop: save, finish the running upload, or leave.

        Call this after `should_preempt` has returned True. Without an interruption notice the
        choice is SAVE. A notice has a deadline, at which the process is killed or the machine ends.
        With a notice, the choice is printed with its reason. With several processes, call this on
        the chief and broadcast the choice.

        After FINISH, call `context.checkpoint.wait()` and leave. On KEEP, this call abandons the
        running upload: nobody waits for its end.

        Args:
            is_saved: whether the latest checkpoint, stored or being stored, contains all of the
                work.
        """
        notice, saves = self.preempt.notice, self.checkpoint.saves
        if notice is None or notice.deadline_ms is None:
            return Choice.SAVE
        running, latest = saves.running, saves.latest
        situation = Situation(
            seconds_left=notice.deadline_ms / 1000 - time.time(),
            is_saved=is_saved,
            state_bytes=latest.bytes_total if latest is not None else None,
            bytes_per_second=saves.bytes_per_second,
            running_bytes=running.bytes_total if running is not None else None,
            running_seconds=time.monotonic() - running.began if running is not None else 0.0,
        )
        choice, why = choose_action(situation)
        print(
            f"[detcloud] notice ({notice.reason:.80}), {situation.seconds_left:.1f} s left: "
            f"{choice.value}, since {why}",
            flush=True,
        )
        if choice is Choice.KEEP:
            saves.abandon()
        return choice

    @property
    def notice_outcome(self) -> Outcome | None:
        """The outcome of the notice that the code has received. None without a notice.

        KEPT: no checkpoint was stored since the notice. SAVED: the latest checkpoint was begun
        after the notice. FINISHED: it was begun before the notice and stored after the notice.
        """
        noticed_at, latest = self.preempt.noticed_at, self.checkpoint.saves.latest
        if noticed_at is None:
            return None
        if latest is None or latest.ended is None or latest.ended < noticed_at:
            return Outcome.KEPT
        return Outcome.SAVED if latest.began >= noticed_at else Outcome.FINISHED

    def close(self) -> None:
        """Wait for a background checkpoint, and release every resource.

        Print the error of a failed checkpoint. End the measuring, the upload of event files, the
        agreement about stopping, and the connections between the processes, in this order.
        """
        with ExitStack() as stack:
            for close in (self.distributed.close, self.preempt.close, self.train.close):
                stack.callback(close)
            stack.callback(self.profiler.stop_measuring)
            self.checkpoint.finish()
