"""How a copy in population-based training differs from its original: each hyperparameter is drawn
again, or moved up or down a little.

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
    """How copies explore: with `resample_probability` a value is drawn from the space; else it is
    multiplied by 1 - `perturb_factor` or by 1 + `perturb_factor`, each as likely.
    """

    resample_probability: float
    perturb_factor: float


def explore_hparams(
    space: Group,
    hparams: Mapping[str, object],
    generator: Generator,
    exploration: Exploration,
    *,
    maxval_drawn: bool,
) -> dict[str, object]:
    """Draw other hyperparameters near `hparams`, in the order of the sorted names.

    Each draws whether it is resampled and then, resampled or not, its new value or its direction,
    also where its kind has none. `maxval_drawn` as in `draw_hparams`.
    """
    explored: dict[str, object] = {}
    for name in sorted(space.members):
        parameter, value = space.members[name], hparams[name]
        if isinstance(parameter, Group):
            assert isinstance(value, Mapping), (name, value)
            explored[name] = explore_hparams(
                parameter, value, generator, exploration, maxval_drawn=maxval_drawn
            )
        elif generator.draw_uniform() < exploration.resample_probability:
            explored[name] = draw_value(parameter, generator, maxval_drawn=maxval_drawn)
        else:
            is_less = generator.draw_uniform() < 0.5
            factor = exploration.perturb_factor
            factor = 1 - factor if is_less else 1 + factor
            explored[name] = _perturb_value(parameter, value, factor)
    return explored


def _perturb_value(parameter: Parameter, value: object, factor: float) -> object:
    """Return the value times the factor, within the parameter's bounds; what is no number stays."""
    if not isinstance(value, int | float):
        return value
    match parameter:
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
