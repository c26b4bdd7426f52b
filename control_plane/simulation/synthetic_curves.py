"""Synthetic learning curves, determined by a seed, the hyperparameters and the trial's seed.

A trial's loss decreases by a power law of training, like most measured losses (Hestness et al.,
*Deep Learning Scaling is Predictable, Empirically*, 2017). The lowest possible loss depends on the
distance between the hyperparameters and an optimum, a random point. The rate of the decrease
depends on the distance to another random point. Curves therefore cross: an early best trial is not
always the best trial in the end.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from control_plane.actors.lengths import Lengths
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.space import Group
from control_plane.simulation.hash_fractions import hash_fraction
from control_plane.simulation.hyperparameter_coordinates import coordinates

FLOOR_MIN, FLOOR_MAX = 0.05, 0.55
SLOPE_MIN, SLOPE_MAX = 0.3, 1.0
FULL_LENGTH_GAIN = 100
"""The base of the power law: training grows from 1 at the start to this number at full length."""
NOISE = 0.005
"""The standard deviation of the noise of a validation."""
SPREAD = 0.25
"""The standard deviation of the logarithm of the trials' speeds."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class SyntheticCurve:
    """The synthetic learning curve of one trial; see LearningCurve."""

    batch_ms: float
    share_per_batch: float
    """The share of the full length that one batch trains."""
    floor: float
    """The limit of the loss for infinite training."""
    slope: float
    """The exponent of the power law; a larger exponent decreases the loss faster."""
    smaller_is_better: bool
    noise_key: str
    """Determines the noise of each validation."""

    @property
    def known_batches(self) -> int | None:
        """Return None: the whole curve is known."""
        return None

    def metric(self, batches: int) -> float:
        """Return the metric after training `batches` batches, with noise.

        The metric is the loss, which is 1 at the start, or 1 - loss if larger is better.
        """
        share = batches * self.share_per_batch
        loss = self.floor + (1 - self.floor) * math.pow(
            1 + (FULL_LENGTH_GAIN - 1) * share, -self.slope
        )
        loss += NOISE * _sample_normal(f"{self.noise_key}/{batches}")
        return loss if self.smaller_is_better else 1 - loss


@dataclass(frozen=True, slots=True)
class SyntheticCurves:
    """The synthetic learning curves of a search; see LearningCurves."""

    space: Group
    lengths: Lengths
    full_length: int
    """The longest training of a trial, in the unit of `lengths`."""
    smaller_is_better: bool
    seed: int = 0
    unit_seconds: float = 1.0
    """The median duration of one unit of training."""

    def curve_for(self, trial: TrialState) -> SyntheticCurve:
        """Return the learning curve that the hyperparameters and the seed of a trial determine."""
        return self.sampled_curve(trial.hparams, trial.seed)

    def sampled_curve(self, hparams: Mapping[str, object], trial_seed: int) -> SyntheticCurve:
        """Return the learning curve of a trial with these hyperparameters and this seed."""
        key = f"{self.seed}/{trial_seed}"
        place = coordinates(self.space, hparams)
        unit_per_batch = self.lengths.units(1, hparams)
        unit_ms = 1000 * self.unit_seconds * math.exp(SPREAD * _sample_normal(f"{key}/speed"))
        far, slow = (self._distance(name, place) for name in ("optimum", "fastest"))
        return SyntheticCurve(
            batch_ms=unit_ms * unit_per_batch,
            share_per_batch=unit_per_batch / self.full_length,
            floor=FLOOR_MIN + (FLOOR_MAX - FLOOR_MIN) * far,
            slope=SLOPE_MAX - (SLOPE_MAX - SLOPE_MIN) * slow,
            smaller_is_better=self.smaller_is_better,
            noise_key=key,
        )

    def _distance(self, name: str, place: tuple[float, ...]) -> float:
        """Return the distance between `place` and the random point `name`, from 0 to 1.

        The distance is the mean of the absolute differences of the coordinates, at most 1.
        """
        point = _named_point(f"{self.seed}/{name}", len(place))
        distance = sum(abs(here - there) for here, there in zip(place, point, strict=True))
        return min(1.0, distance / len(place)) if place else 0.0


@lru_cache(maxsize=16)
def _named_point(key: str, dimensions: int) -> tuple[float, ...]:
    return tuple(_sample_uniform(f"{key}/{number}") for number in range(dimensions))


def _sample_normal(key: str) -> float:
    return _NORMAL.inv_cdf(_sample_uniform(key))


def _sample_uniform(key: str) -> float:
    """Return a pseudorandom number in (0, 1), determined by the key."""
    return hash_fraction(key) + 2**-49
