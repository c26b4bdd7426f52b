"""Learning curves of simulated trials: their metric over the batches, and how fast they train."""

from typing import Protocol

from control_plane.actors.trial.state import TrialState


class LearningCurve(Protocol):
    """The learning curve of one trial."""

    @property
    def batch_ms(self) -> float:
        """Virtual time that a batch takes."""

    @property
    def known_batches(self) -> int | None:
        """The batches up to which the curve is known; beyond, the metric stays constant. None: all
        of it is known.
        """

    def metric(self, batches: int) -> float | None:
        """The searcher's metric after so many batches; None: no finite number."""


class LearningCurves(Protocol):
    """The learning curves of all trials that a search may make."""

    def curve_for(self, trial: TrialState) -> LearningCurve:
        """The trial's curve, the same whenever it is asked for."""
