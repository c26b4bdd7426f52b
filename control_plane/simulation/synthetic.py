"""Made-up learning curves: the same for the same seed, hyperparameters and trial.

A trial's loss falls by a power law of its training, as measured ones mostly do (Hestness et al.,
*Deep Learning Scaling is Predictable, Empirically*, 2017), to a floor that is lower the nearer
its hyperparameters lie to an optimum drawn from the seed. How fast it falls depends on another
such point, so that curves cross: a trial that is ahead early need not be the best one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist

from control_plane.actors.lengths import Lengths
from control_plane.actors.trial_state import TrialState
from control_plane.searchers.space import Group
from control_plane.simulation.positions import position

FLOOR_MIN, FLOOR_MAX = 0.05, 0.55
SLOPE_MIN, SLOPE_MAX = 0.3, 1.0
# Training to the full length is worth so many times a hundredth of it.
REACH = 100
# Standard deviations: of a validation, and of the logarithm of a trial's speed.
NOISE, SPREAD = 0.005, 0.25

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class SyntheticCourse:
    """One trial's curve. `share_per_batch`: of the full length."""

    batch_ms: float
    share_per_batch: float
    floor: float
    slope: float
    smaller_is_better: bool
    noise_key: str

    @property
    def known_batches(self) -> int | None:
        """See Course: all of it."""
        return None

    def metric(self, batches: int) -> float:
        """See Course; a loss from 1 downwards, or 1 less that."""
        share = batches * self.share_per_batch
        loss = self.floor + (1 - self.floor) * math.pow(1 + (REACH - 1) * share, -self.slope)
        loss += NOISE * _normal(f"{self.noise_key}/{batches}")
        return loss if self.smaller_is_better else 1 - loss


@dataclass(frozen=True, slots=True)
class SyntheticCourses:
    """See Courses. `full_length` is what a trial trains at most, in the unit of `lengths`;
    `unit_seconds` the median time that trials take for one of those.
    """

    space: Group
    lengths: Lengths
    full_length: int
    smaller_is_better: bool
    seed: int = 0
    unit_seconds: float = 1.0

    def course(self, trial: TrialState) -> SyntheticCourse:
        """See Courses."""
        return self.drawn(trial.hparams, trial.seed)

    def drawn(self, hparams: Mapping[str, object], trial_seed: int) -> SyntheticCourse:
        """The course of hyperparameters in a trial of that seed."""
        key = f"{self.seed}/{trial_seed}"
        place = position(self.space, hparams)
        unit_per_batch = self.lengths.units(1, hparams)
        unit_ms = 1000 * self.unit_seconds * math.exp(SPREAD * _normal(f"{key}/speed"))
        far, slow = (self._distance(name, place) for name in ("optimum", "fastest"))
        return SyntheticCourse(
            batch_ms=unit_ms * unit_per_batch,
            share_per_batch=unit_per_batch / self.full_length,
            floor=FLOOR_MIN + (FLOOR_MAX - FLOOR_MIN) * far,
            slope=SLOPE_MAX - (SLOPE_MAX - SLOPE_MIN) * slow,
            smaller_is_better=self.smaller_is_better,
            noise_key=key,
        )

    def _distance(self, name: str, place: tuple[float, ...]) -> float:
        """From the point of that name, 0 to 1: the mean over the coordinates."""
        point = _point(f"{self.seed}/{name}", len(place))
        apart = sum(abs(one - other) for one, other in zip(place, point, strict=True))
        return min(1.0, apart / len(place)) if place else 0.0


@lru_cache(maxsize=16)
def _point(key: str, dimensions: int) -> tuple[float, ...]:
    return tuple(_uniform(f"{key}/{number}") for number in range(dimensions))


def _normal(key: str) -> float:
    return _NORMAL.inv_cdf(_uniform(key))


def _uniform(key: str) -> float:
    """A number in (0, 1) that the key alone decides."""
    drawn = int.from_bytes(blake2b(key.encode(), digest_size=6).digest(), "little")
    return (drawn + 0.5) / 2**48
