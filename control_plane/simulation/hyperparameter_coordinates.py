"""The coordinates of hyperparameters, each from 0 to 1, for the comparison of samples."""

import math
from collections.abc import Iterator, Mapping

from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Leaf, Log
from detcloud.shared.dotted_paths import name_text

# Each value of a categorical hyperparameter has a coordinate. With this coordinate for the chosen
# value, two different values have the Euclidean distance 1.
_CATEGORY = math.sqrt(0.5)


def coordinates(space: Group, hparams: Mapping[str, object]) -> tuple[float, ...]:
    """Return the coordinates of a sample, in the order of the sorted names.

    A number has one coordinate: 0 at minval and 1 at maxval, linear in the exponent for `Log`. A
    number out of range is below 0 or above 1. A categorical hyperparameter has one coordinate for
    each possible value: sqrt(0.5) for the chosen value, and 0 for all others. Constants have no
    coordinate, and neither does a `Log` with base 1.

    Raises:
        ValueError: a hyperparameter is missing or has the wrong type; the message names the
            hyperparameter.
    """
    return tuple(_coordinates("", space, hparams))


def _coordinates(path: str, group: Group, values: Mapping[str, object]) -> Iterator[float]:
    for name in sorted(group.members):
        member, place = group.members[name], f"{path}{name_text(name)}"
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
        yield from (_CATEGORY if _is_same(value, val) else 0.0 for val in leaf.vals)
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


def _is_same(value: object, val: object) -> bool:
    """Return whether two categorical values are equal. A truth value equals no number."""
    return isinstance(value, bool) == isinstance(val, bool) and value == val
