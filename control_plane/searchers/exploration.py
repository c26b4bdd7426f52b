"""New hyperparameters for a copy of a trial in population-based training: each value is drawn from
the space again, or is raised or lowered by a factor.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), explore; the order
of the draws is that of Determined 0.12.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import Double, Group, Int, Log, Parameter, draw_value


@dataclass(frozen=True, slots=True)
class Exploration:
    """The settings by which the hyperparameters of copies change."""

    resample_probability: float
    """The probability that a value is drawn from the space again."""
    perturb_factor: float
    """All other numbers are multiplied by 1 - `perturb_factor` or by 1 + `perturb_factor`, with
    equal probability.
    """


def explore_hparams(
    space: Group,
    hparams: Mapping[str, object],
    generator: Generator,
    exploration: Exploration,
    *,
    maxval_drawn: bool,
    integers_move: bool = True,
) -> dict[str, object]:
    """Return new hyperparameters near `hparams`, within the bounds of the space.

    Hyperparameters are processed in the order of the sorted names. The first draw for each one
    decides whether the value is resampled; the second is the new value or the direction.
    Constants and categories draw a direction too, but keep the old value.

    Args:
        maxval_drawn: as in `draw_hparams`.
        integers_move: whether an integer changes by at least 1, if the bounds allow the change. If
            False, the rule of Determined 0.12 applies: the product is rounded down for the smaller
            factor and up for the larger factor: 0 and small negative integers stay unchanged.
    """
    explored: dict[str, object] = {}
    for name in sorted(space.members):
        parameter, value = space.members[name], hparams[name]
        if isinstance(parameter, Group):
            assert isinstance(value, Mapping), (name, value)
            explored[name] = explore_hparams(
                parameter,
                value,
                generator,
                exploration,
                maxval_drawn=maxval_drawn,
                integers_move=integers_move,
            )
        elif generator.draw_uniform() < exploration.resample_probability:
            explored[name] = draw_value(parameter, generator, maxval_drawn=maxval_drawn)
        else:
            is_less = generator.draw_uniform() < 0.5
            factor = exploration.perturb_factor
            factor = 1 - factor if is_less else 1 + factor
            explored[name] = _perturb_value(parameter, value, factor, integers_move)
    return explored


def _perturb_value(
    parameter: Parameter, value: object, factor: float, integers_move: bool
) -> object:
    """Return the value times the factor, clamped to the parameter's bounds.

    An integer parameter stays whole: the product is rounded down for a factor below 1, and up
    otherwise. With `integers_move`, an integer instead moves by at least 1; see `_move_integer`.
    Return values of constants and categories, and values that are not numbers, unchanged.
    """
    if not isinstance(value, int | float):
        return value
    match parameter:
        case Int(minval, maxval) if integers_move and isinstance(value, int):
            return min(max(_move_integer(value, factor), minval), maxval)
        case Int(minval, maxval):
            moved = value * factor
            whole = math.floor(moved) if factor < 1 else math.ceil(moved)
            return min(max(whole, minval), maxval)
        case Double(minval, maxval):
            return min(max(value * factor, minval), maxval)
        case Log(base, minval, maxval):
            least, most = math.pow(base, minval), math.pow(base, maxval)
            return min(max(value * factor, min(least, most)), max(least, most))
        case _:
            return value


def _move_integer(value: int, factor: float) -> int:
    """Return the product, rounded away from the old value and different by at least 1.

    A factor of 1 returns the old value. For the value 0, a factor below 1 returns -1, and a factor
    above 1 returns 1.
    """
    if factor == 1:
        return value
    is_up = factor < 1 if value < 0 else factor > 1
    moved = value * factor
    return max(math.ceil(moved), value + 1) if is_up else min(math.floor(moved), value - 1)
