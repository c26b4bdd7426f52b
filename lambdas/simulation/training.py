"""The training of a simulated trial's process: a learning curve, at its own speed, with checkpoints
of its own size, and the failures of its code.

A training follows from the trial's specification, so that a run without faults of the cluster comes
to the same results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from control_plane.searchers.method import ENDLESS

BYTES_PER_SECOND = 100_000_000


class LearningCurve(Protocol):
    """The learning curve of a trial, as in control_plane.simulation.learning_curves."""

    @property
    def batch_ms(self) -> float: ...

    def metric(self, batches: int) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Training:
    """The training of one process. `failing_batches`: the batches after which the code fails, once
    each, in the order of restarts. `bad_ends_until`: so many restarts a trial has to have for a run
    to end well that has nothing left to train. `inherited_batches` were trained by other trials.
    `time_metric` is reported besides the metric where it is not "". An epoch of its data has
    `epoch_batches`.
    """

    learning_curve: LearningCurve
    metric: str
    validation_period: int
    checkpoint_period: int
    checkpoint_bytes: int
    failing_batches: tuple[int, ...] = ()
    bad_ends_until: int = 0
    time_metric: str = ""
    time_per_batch: float = 1.0
    inherited_batches: int = 0
    epoch_batches: int = 1

    @property
    def upload_ms(self) -> int:
        """How long a checkpoint takes to be written."""
        return 1 + self.checkpoint_bytes * 1000 // BYTES_PER_SECOND

    def metrics(self, steps: int) -> dict[str, float | None]:
        """Return the metrics that a validation reports."""
        metrics = {self.metric: self.learning_curve.metric(self.inherited_batches + steps)}
        if self.time_metric:
            metrics[self.time_metric] = steps * self.time_per_batch
        return metrics

    def length_batches(self, directives: Mapping[str, Any]) -> int:
        """Return the batches in the length of directives, which may count epochs."""
        length: int = directives["length"]
        is_epochs = directives.get("length_unit") == "epochs" and length != ENDLESS
        return length * self.epoch_batches if is_epochs else length

    def next_stop(self, steps: int, length: int) -> int:
        """Return the batch at which the process does something else than to train, at most
        `length`.
        """
        stops = [length]
        for period in (self.validation_period, self.checkpoint_period):
            if period:
                stops.append(steps + period - steps % period)
        return min(stops)


def hash_fraction(*names: Any) -> float:
    """Return a number from 0 up to 1 that the names alone decide."""
    text = "/".join(map(str, names)).encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "little") / 2**48
