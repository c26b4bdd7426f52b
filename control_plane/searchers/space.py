"""Hyperparameter spaces: random samples and grid points.

All functions process names in sorted order, nested groups depth first. A sample therefore depends
only on the generator, and a grid point only on the index.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from control_plane.searchers.randomness import Generator
from detcloud.shared.dotted_paths import name_text


@dataclass(frozen=True, slots=True)
class Const:
    """A constant hyperparameter; `value` is any JSON value."""

    value: object
    kind: Literal["const"] = "const"


@dataclass(frozen=True, slots=True)
class Int:
    """An integer in [minval, maxval], with minval < maxval."""

    minval: int
    maxval: int
    count: int | None = None
    """The number of grid values. None: no grid can be made."""
    kind: Literal["int"] = "int"


@dataclass(frozen=True, slots=True)
class Double:
    """A number in [minval, maxval), with minval < maxval."""

    minval: float
    maxval: float
    count: int | None = None
    """The number of grid values. None: no grid can be made."""
    kind: Literal["double"] = "double"


@dataclass(frozen=True, slots=True)
class Log:
    """A number base**x for x in [minval, maxval), with base > 0 and minval < maxval.

    base**minval and base**maxval are finite.
    """

    base: float
    minval: float
    maxval: float
    count: int | None = None
    """The number of grid values, evenly spaced in x. None: no grid can be made."""
    kind: Literal["log"] = "log"


@dataclass(frozen=True, slots=True)
class Categorical:
    """A choice from `vals`: at least one JSON value, in the order of the configuration."""

    vals: tuple[object, ...]
    kind: Literal["categorical"] = "categorical"


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters by name. A member may be a nested group."""

    members: Mapping[str, "Parameter"]
    kind: Literal["group"] = "group"


Leaf = Const | Int | Double | Log | Categorical
Parameter = Const | Int | Double | Log | Categorical | Group


def draw_hparams(space: Group, generator: Generator, *, maxval_drawn: bool) -> dict[str, object]:
    """Draw one value for each parameter of the space, and return the values by name.

    Args:
        maxval_drawn: whether an integer can equal `maxval`. False in the step era.
    """
    return {
        name: draw_value(space.members[name], generator, maxval_drawn=maxval_drawn)
        for name in sorted(space.members)
    }


def draw_value(parameter: Parameter, generator: Generator, *, maxval_drawn: bool) -> object:
    """Draw a value of one parameter. For a group, return a dict with a value for each member."""
    match parameter:
        case Const(value):
            return value
        case Int(minval, maxval):
            return minval + generator.draw_below(maxval - minval + int(maxval_drawn))
        case Double(minval, maxval):
            return minval + (maxval - minval) * generator.draw_uniform()
        case Log(base, minval, maxval):
            return math.pow(base, minval + (maxval - minval) * generator.draw_uniform())
        case Categorical(vals):
            return vals[generator.draw_below(len(vals))]
        case Group():
            return draw_hparams(parameter, generator, maxval_drawn=maxval_drawn)
        case _:
            assert_never(parameter)


def grid_size(space: Group) -> int:
    """Return the number of grid points. 0 for a space without hyperparameters.

    Raise ValueError if a numeric parameter has no `count`; the message names the parameter.
    """
    return _group_size("", space) if space.members else 0


def grid_point(space: Group, index: int) -> dict[str, object]:
    """Return grid point `index` as values by name. The value of the first name varies slowest.

    Raise IndexError unless 0 <= index < grid_size(space).
    """
    size = grid_size(space)
    if not 0 <= index < size:
        raise IndexError(f"grid point {index} does not exist; the grid has {size} points")
    return _group_point(space, index)


def _group_size(path: str, group: Group) -> int:
    """Return the number of grid points of a group: the product over the members, 1 for an empty
    group.

    Raise ValueError if a numeric parameter has no `count`.

    Args:
        path: the prefix of names in errors.
    """
    return math.prod(
        _axis_size(f"{path}{name_text(name)}", member) for name, member in group.members.items()
    )


def _axis_size(path: str, parameter: Parameter) -> int:
    """Return the number of grid values of a parameter, or of grid points of a group.

    An integer parameter has at most one grid value for each integer in the bounds. Raise ValueError
    if a numeric parameter has no `count`.
    """
    match parameter:
        case Const():
            return 1
        case Categorical(vals):
            return len(vals)
        case Group():
            return _group_size(f"{path}.", parameter)
        case Int(minval, maxval, count) if count is not None:
            return min(count, maxval - minval + 1)
        case Double(count=count) | Log(count=count) if count is not None:
            return count
        case _:
            raise ValueError(f"hyperparameter {path} has no count; a grid needs one")


def _group_point(group: Group, index: int) -> dict[str, object]:
    names = sorted(group.members)
    values: list[object] = []
    for name in reversed(names):
        parameter = group.members[name]
        size = _axis_size(name, parameter)
        index, digit = divmod(index, size)
        values.append(_grid_value(parameter, digit, size))
    return dict(zip(names, reversed(values), strict=True))


def _grid_value(parameter: Parameter, i: int, size: int) -> object:
    """Return grid value `i` of the `size` grid values of a parameter."""
    match parameter:
        case Const(value):
            return value
        case Categorical(vals):
            return vals[i]
        case Group():
            return _group_point(parameter, i)
        case Int(minval, maxval):
            return _spaced_integer(minval, maxval, i, size)
        case Double(minval, maxval):
            return _spaced_number(minval, maxval, i, size)
        case Log(base, minval, maxval):
            return math.pow(base, _spaced_number(minval, maxval, i, size))
        case _:
            assert_never(parameter)


def _spaced_number(minval: float, maxval: float, i: int, size: int) -> float:
    """Return value `i` of `size` evenly spaced values from minval to maxval.

    For size 1, return the mean of minval and maxval.
    """
    if size == 1:
        return (minval + maxval) / 2
    return minval + i * (maxval - minval) / (size - 1)


def _spaced_integer(minval: int, maxval: int, i: int, size: int) -> int:
    """Return grid value `i` of `size` values in [minval, maxval], rounded to an integer.

    Halves are rounded away from zero. Computed with integers, because floats are inexact for large
    values.
    """
    if size == 1:
        numerator, denominator = minval + maxval, 2
    else:
        numerator, denominator = minval * (size - 1) + i * (maxval - minval), size - 1
    whole = (2 * abs(numerator) + denominator) // (2 * denominator)
    return whole if numerator >= 0 else -whole
