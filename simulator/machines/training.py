"""The training of a simulated trial's process: learning curve, speed, checkpoints and failures.

A training depends on the trial's specification only. So a run without faults of the cluster has the
same results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.searchers.method import ENDLESS
from control_plane.simulation.learning_curves import LearningCurve
from control_plane.simulation.trial_course import next_stop

BYTES_PER_SECOND = 100_000_000


@dataclass(frozen=True, slots=True)
class Training:
    """The training of a process."""

    learning_curve: LearningCurve
    metric: str
    """The name of the search's metric."""
    validation_period: int
    """The batches between validations; 0 for validations at the end only."""
    checkpoint_period: int
    """The batches between checkpoints; 0 for checkpoints at the end only."""
    checkpoint_bytes: int
    failing_batches: tuple[int, ...] = ()
    """The batches at which the code fails, each once, in the order of restarts."""
    bad_ends_until: int = 0
    """The restarts from which a run ends well after the training. Earlier runs fail then."""
    time_metric: str = ""
    """The name of an additional metric with the training time, or ""."""
    time_per_batch: float = 1.0
    """The value of `time_metric` for a batch."""
    inherited_batches: int = 0
    """The batches that other trials trained, in the weights that the trial started from."""
    epoch_batches: int = 1
    """The batches of an epoch."""

    @property
    def upload_ms(self) -> int:
        """The time that is needed to write a checkpoint at BYTES_PER_SECOND, in ms, plus 1 ms."""
        return 1 + self.checkpoint_bytes * 1000 // BYTES_PER_SECOND

    def metrics(self, steps: int) -> dict[str, float | None]:
        """Return the metrics of a validation after the trial has trained `steps` batches."""
        metrics = {self.metric: self.learning_curve.metric(self.inherited_batches + steps)}
        if self.time_metric:
            metrics[self.time_metric] = steps * self.time_per_batch
        return metrics

    def length_batches(self, directives: Mapping[str, Any]) -> int:
        """Return the length of directives in batches. An endless length is returned unchanged.

        Args:
            directives: the cluster's directives with `length`, in epochs if `length_unit` is
                "epochs".
        """
        length: int = directives["length"]
        is_epochs = directives.get("length_unit") == "epochs" and length != ENDLESS
        return length * self.epoch_batches if is_epochs else length

    def next_failure(self, restarts: int, steps: int, stop: int) -> int | None:
        """Return the batch from `steps` and before `stop` at which the code fails. None for none.

        Args:
            restarts: the number of restarts of the trial.
            steps: the number of trained batches.
            stop: the batch at which the run stops.
        """
        fails = self.failing_batches
        if restarts < len(fails) and steps <= fails[restarts] < stop:
            return fails[restarts]
        return None

    def next_stop(self, steps: int, length: int) -> int:
        """Return the next batch after `steps` with a validation or checkpoint, at most `length`."""
        return next_stop(steps, length, self.validation_period, self.checkpoint_period)
