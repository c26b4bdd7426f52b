"""A simulated trial without a model: the workloads of a schedule across interruptions."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from detcloud.pytorch.workloads import (
    Checkpoint,
    Complete,
    Position,
    Schedule,
    Train,
    Validate,
    is_measured,
    next_workload,
    policy_wants_checkpoint,
)

Metric = Callable[[int], float]


@dataclass
class ScheduleRun:
    """Run of a schedule to the end of all `lengths`; `log` and `str` list the workloads.

    T5: trained to batch 5. V5: validated. C5: checkpoint by the schedule. c5: checkpoint for a
    stop. D5: operation of length 5 completed. |: a new process continues.

    `stops`: numbers of workloads, over all processes, after which a process must stop.
    `cuts`: batches at which a deadline interrupts a workload.
    `best`: the best metric of the experiment's other trials, or None.
    """

    schedule: Schedule
    lengths: Sequence[int]
    metric: Metric
    stops: Collection[int] = ()
    cuts: Collection[int] = ()
    best: float | None = None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._position = Position()
        self._kept = Position()
        self._validated: int | None = None
        self._answered = 0
        self._workloads = 0
        for length in self.lengths:
            while self._answered < length:
                self._workload(length)

    def _workload(self, length: int) -> None:
        position = self._position
        match next_workload(self.schedule, position, length):
            case Train(end):
                cut = min(
                    (batch for batch in self.cuts if position.steps < batch < end), default=None
                )
                self._position = position.after_training(cut or end, end)
                if cut:
                    self._stop()
                    return
                self.log.append(f"T{end}")
            case Validate():
                self._validate()
            case Checkpoint():
                self._position = position.after_checkpoint()
                self._save("C")
            case Complete(metric):
                assert metric == self.metric(length)
                self.log.append(f"D{length}")
                self._answered = length
                return
        self._workloads += 1
        if self._workloads in self.stops and not is_measured(self._position, length):
            self._stop()

    def _validate(self) -> None:
        position = self._position
        metric = self.metric(position.steps)
        wanted = policy_wants_checkpoint(self.schedule, metric, self.best, position.best)
        self._position = position.after_validation(self.schedule, metric, wanted)
        if self.best is None or metric < self.best:
            self.best = metric
        self._validated = position.steps
        self.log.append(f"V{position.steps}")

    def _save(self, kind: str) -> None:
        if not self._position.is_saved:
            self._position = replace(self._position, saved=self._position.steps)
            self._kept = self._position
            self.log.append(f"{kind}{self._position.steps}")

    def _stop(self) -> None:
        self._save("c")
        self.log.append("|")
        self._position = self._kept.after_restart(self.schedule, self._answered, self._validated)

    def __str__(self) -> str:
        return " ".join(self.log)
