"""The protocols of learning curves: a trial's metric over the batches, and the training speed."""

from typing import Protocol

from control_plane.actors.trial.state import TrialState


class LearningCurve(Protocol):
    """The learning curve of a trial."""

    @property
    def batch_ms(self) -> float:
        """Return the virtual time of one batch, in ms."""

    @property
    def known_batches(self) -> int | None:
        """Return the number of batches up to which the curve is known. None: no limit.

        Beyond this number, the metric is constant.
        """

    def metric(self, batches: int) -> float | None:
        """Return the searcher's metric after `batches` batches. None for a metric that is not
        finite.

        Beyond `known_batches`, return the metric at `known_batches`.
        """


class LearningCurves(Protocol):
    """The learning curves of all possible trials of a search."""

    def curve_for(self, trial: TrialState) -> LearningCurve:
        """Return the learning curve of a trial. The same trial always has the same curve."""
