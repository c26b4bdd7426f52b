"""What a simulated trial's process trains: a learning curve, at its own speed, with checkpoints of
its own size, and the failures that its code has in it.

All of it follows from the trial's specification, so that a run without faults of the cluster comes
to the same results.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

BYTES_PER_SECOND = 100_000_000


class Course(Protocol):
    """See control_plane.simulation.courses."""

    @property
    def batch_ms(self) -> float: ...

    def metric(self, batches: int) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Training:
    """`fails_at`: the batches after which the code fails, once each, in the order of restarts.
    `time_metric` is reported beside the metric where it is not "".
    """

    course: Course
    metric: str
    validation_period: int
    checkpoint_period: int
    checkpoint_bytes: int
    fails_at: tuple[int, ...] = ()
    time_metric: str = ""
    time_per_batch: float = 1.0
    begun_with: int = 0

    @property
    def upload_ms(self) -> int:
        """How long a checkpoint takes to be written."""
        return 1 + self.checkpoint_bytes * 1000 // BYTES_PER_SECOND

    def metrics(self, steps: int) -> dict[str, float | None]:
        """What a validation reports."""
        found = {self.metric: self.course.metric(self.begun_with + steps)}
        if self.time_metric:
            found[self.time_metric] = steps * self.time_per_batch
        return found

    def next_stop(self, steps: int, length: int) -> int:
        """Where it does something else than to train, at most `length`."""
        stops = [length]
        for period in (self.validation_period, self.checkpoint_period):
            if period:
                stops.append(steps + period - steps % period)
        return min(stops)


def share_of(*names: Any) -> float:
    """A number from 0 up to 1 that these alone decide."""
    text = "/".join(map(str, names)).encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "little") / 2**48
