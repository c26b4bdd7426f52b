"""A table of generated learning curves for the searches of detcloud and of peers."""

from collections.abc import Mapping
from functools import lru_cache
from math import exp
from random import Random
from zlib import crc32

from control_plane.actors.lengths import Lengths
from control_plane.searchers.space import Double, Group
from control_plane.simulation.synthetic_curves import SPREAD, SyntheticCurves

EPOCHS = 81
DIVISOR = 3
# Epochs at which a search with EPOCHS and DIVISOR compares trials.
RUNGS = (1, 3, 9, 27, 81)
PARAMETERS = tuple(f"p{n}" for n in range(5))
SPACE = Group({name: Double(0.0, 1.0) for name in PARAMETERS})
EPOCH_SECONDS = 20.0
CURVES = 2_000


@lru_cache(maxsize=1)
def curves(seed: int = 0, count: int = CURVES) -> list[list[float]]:
    """Losses after each epoch of `count` trials with hyperparameters drawn at random."""
    chance = Random(seed)
    courses = SyntheticCurves(SPACE, Lengths("epochs", records_per_epoch=1), EPOCHS, True, seed)
    drawn = ({name: chance.random() for name in PARAMETERS} for _ in range(count))
    found = (courses.sampled_curve(hparams, trial) for trial, hparams in enumerate(drawn))
    return [[course.metric(epoch) for epoch in range(1, EPOCHS + 1)] for course in found]


@lru_cache(maxsize=1)
def epoch_seconds(seed: int = 0, count: int = CURVES) -> list[float]:
    """Return the duration of an epoch of each trial."""
    chance = Random(seed)
    return [EPOCH_SECONDS * exp(SPREAD * chance.gauss()) for _ in range(count)]


def row_of(hparams: Mapping[str, object], count: int = CURVES) -> int:
    """Return the index of the curve for hyperparameters. Similar hyperparameters have unrelated
    curves.
    """
    return crc32(repr([hparams[name] for name in PARAMETERS]).encode()) % count
