"""What simulated trials follow: their metric over the batches, and how fast they train."""

from typing import Protocol

from control_plane.actors.trial_state import TrialState


class Course(Protocol):
    """One trial's training."""

    @property
    def batch_ms(self) -> float:
        """Virtual time that a batch takes."""

    @property
    def known_batches(self) -> int | None:
        """How far the course is known rather than held; None: all of it."""

    def metric(self, batches: int) -> float | None:
        """The searcher's metric after so many batches; None: no finite number."""


class Courses(Protocol):
    """The courses of all trials that a search may make."""

    def course(self, trial: TrialState) -> Course:
        """The trial's, the same whenever it is asked for."""
