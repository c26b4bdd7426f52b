"""The coordinates of hyperparameters in their space, each between 0 and 1, to compare samples."""

import math
from collections.abc import Iterator, Mapping

from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Leaf, Log

# A value of a category is a coordinate of its own: two different ones are a distance of 1 apart.
_CATEGORY = math.sqrt(0.5)


def coordinates(space: Group, hparams: Mapping[str, object]) -> tuple[float, ...]:
    """The coordinates of a sample, in the order of the sorted names; values outside of the space
    lie outside of 0 to 1, and constants have none.

    ValueError names a hyperparameter that is missing or no number where the space has numbers.
    """
    return tuple(_coordinates("", space, hparams))


def _coordinates(path: str, group: Group, values: Mapping[str, object]) -> Iterator[float]:
    for name in sorted(group.members):
        member, place = group.members[name], f"{path}{name}"
        if isinstance(member, Const):
            continue
        if name not in values:
            raise ValueError(f"hyperparameter {place} is missing; the configuration has it")
        value = values[name]
        if isinstance(member, Group):
            if not isinstance(value, Mapping):
                raise ValueError(f"hyperparameter {place} must be a map, not {value!r:.40}")
            yield from _coordinates(f"{place}.", member, value)
        else:
            yield from _leaf_coordinates(place, member, value)


def _leaf_coordinates(place: str, leaf: Leaf, value: object) -> Iterator[float]:
    if isinstance(leaf, Categorical):
        yield from (_CATEGORY if value == one else 0.0 for one in leaf.vals)
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"hyperparameter {place} must be a number, not {value!r:.40}")
    match leaf:
        case Int(minval, maxval) | Double(minval, maxval):
            yield (value - minval) / (maxval - minval)
        case Log(base, minval, maxval) if base != 1:
            if value <= 0:
                raise ValueError(f"hyperparameter {place} must be above 0, not {value!r:.40}")
            yield (math.log(value, base) - minval) / (maxval - minval)
