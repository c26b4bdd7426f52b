"""A table of made-up learning curves that ours and the peers' searches look up alike."""

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
# Epochs after which a search with these two compares its trials.
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
    """How long an epoch of each takes."""
    chance = Random(seed)
    return [EPOCH_SECONDS * exp(SPREAD * chance.gauss()) for _ in range(count)]


def row_of(hparams: Mapping[str, object], count: int = CURVES) -> int:
    """The curve that hyperparameters have: any two of them their own, however near they are."""
    return crc32(repr([hparams[name] for name in PARAMETERS]).encode()) % count
