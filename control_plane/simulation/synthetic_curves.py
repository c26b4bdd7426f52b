"""Synthetic learning curves: the same for the same seed, hyperparameters and trial.

A trial's loss falls by a power law of its training, as measured ones mostly do (Hestness et al.,
*Deep Learning Scaling is Predictable, Empirically*, 2017), to a floor that is lower the nearer its
hyperparameters lie to an optimum sampled from the seed. How fast it falls depends on another such
point, so that curves cross: a trial that is ahead early need not be the best one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist

from control_plane.actors.lengths import Lengths
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.space import Group
from control_plane.simulation.hyperparameter_coordinates import coordinates

FLOOR_MIN, FLOOR_MAX = 0.05, 0.55
SLOPE_MIN, SLOPE_MAX = 0.3, 1.0
# Training to the full length is worth so many times a hundredth of it.
FULL_LENGTH_GAIN = 100
# Standard deviations: of a validation, and of the logarithm of a trial's speed.
NOISE, SPREAD = 0.005, 0.25

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class SyntheticCurve:
    """The curve of one trial. `share_per_batch`: of the full length."""

    batch_ms: float
    share_per_batch: float
    floor: float
    slope: float
    smaller_is_better: bool
    noise_key: str

    @property
    def known_batches(self) -> int | None:
        """None: the whole curve is known."""
        return None

    def metric(self, batches: int) -> float:
        """The loss from 1 downwards, or 1 less that, with noise."""
        share = batches * self.share_per_batch
        loss = self.floor + (1 - self.floor) * math.pow(
            1 + (FULL_LENGTH_GAIN - 1) * share, -self.slope
        )
        loss += NOISE * _sample_normal(f"{self.noise_key}/{batches}")
        return loss if self.smaller_is_better else 1 - loss


@dataclass(frozen=True, slots=True)
class SyntheticCurves:
    """The synthetic curves of a search. `full_length` is the most that a trial trains, in the unit
    of `lengths`; `unit_seconds` the median time that trials take for one of those units.
    """

    space: Group
    lengths: Lengths
    full_length: int
    smaller_is_better: bool
    seed: int = 0
    unit_seconds: float = 1.0

    def curve_for(self, trial: TrialState) -> SyntheticCurve:
        """The trial's curve."""
        return self.sampled_curve(trial.hparams, trial.seed)

    def sampled_curve(self, hparams: Mapping[str, object], trial_seed: int) -> SyntheticCurve:
        """The curve of hyperparameters in a trial of that seed."""
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
        """The distance from the point of that name, 0 to 1: the mean over the coordinates."""
        point = _named_point(f"{self.seed}/{name}", len(place))
        apart = sum(abs(one - other) for one, other in zip(place, point, strict=True))
        return min(1.0, apart / len(place)) if place else 0.0


@lru_cache(maxsize=16)
def _named_point(key: str, dimensions: int) -> tuple[float, ...]:
    return tuple(_sample_uniform(f"{key}/{number}") for number in range(dimensions))


def _sample_normal(key: str) -> float:
    return _NORMAL.inv_cdf(_sample_uniform(key))


def _sample_uniform(key: str) -> float:
    """A number in (0, 1) that the key alone decides."""
    drawn = int.from_bytes(blake2b(key.encode(), digest_size=6).digest(), "little")
    return (drawn + 0.5) / 2**48
