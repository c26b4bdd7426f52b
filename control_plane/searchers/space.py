"""Hyperparameter spaces: drawing a sample from one, and the points of its grid.

Names are always taken in sorted order, nested groups depth first, so that a sample depends on the
generator alone and a grid point on its index alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from control_plane.searchers.randomness import Generator


@dataclass(frozen=True, slots=True)
class Const:
    """Always `value`, any JSON value."""

    value: object
    kind: Literal["const"] = "const"


@dataclass(frozen=True, slots=True)
class Int:
    """An integer in [minval, maxval], minval < maxval; `count` grid values (None: no grid)."""

    minval: int
    maxval: int
    count: int | None = None
    kind: Literal["int"] = "int"


@dataclass(frozen=True, slots=True)
class Double:
    """A number in [minval, maxval), minval < maxval; `count` grid values (None: no grid)."""

    minval: float
    maxval: float
    count: int | None = None
    kind: Literal["double"] = "double"


@dataclass(frozen=True, slots=True)
class Log:
    """base**x for x in [minval, maxval); base > 0, minval < maxval, and base**x finite at both.

    `count` grid values, even in x (None: no grid).
    """

    base: float
    minval: float
    maxval: float
    count: int | None = None
    kind: Literal["log"] = "log"


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of `vals`, JSON values in the order of the configuration; at least one."""

    vals: tuple[object, ...]
    kind: Literal["categorical"] = "categorical"


@dataclass(frozen=True, slots=True)
class Group:
    """Named parameters, nested groups among them."""

    members: Mapping[str, "Parameter"]
    kind: Literal["group"] = "group"


Leaf = Const | Int | Double | Log | Categorical
Parameter = Const | Int | Double | Log | Categorical | Group


def draw_hparams(space: Group, generator: Generator, *, maxval_drawn: bool) -> dict[str, object]:
    """Draw one value per parameter, in the order of the sorted names.

    `maxval_drawn` False never draws an integer's maxval, as step-era experiments did.
    """
    return {
        name: draw_value(space.members[name], generator, maxval_drawn=maxval_drawn)
        for name in sorted(space.members)
    }


def draw_value(parameter: Parameter, generator: Generator, *, maxval_drawn: bool) -> object:
    """Draw a value of one parameter; of a group, one of each of its members."""
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
    """Count the points of the grid; a space without any hyperparameter has none.

    ValueError names a parameter that has no `count`.
    """
    return _group_size("", space) if space.members else 0


def grid_point(space: Group, index: int) -> dict[str, object]:
    """Compute point `index` of the grid, the first name varying slowest.

    IndexError unless 0 <= index < grid_size(space).
    """
    size = grid_size(space)
    if not 0 <= index < size:
        raise IndexError(f"grid point {index} does not exist; the grid has {size} points")
    return _group_point(space, index)


def _group_size(path: str, group: Group) -> int:
    return math.prod(_axis_size(f"{path}{name}", member) for name, member in group.members.items())


def _axis_size(path: str, parameter: Parameter) -> int:
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
    if size == 1:
        return (minval + maxval) / 2
    return minval + i * (maxval - minval) / (size - 1)


def _spaced_integer(minval: int, maxval: int, i: int, size: int) -> int:
    """The integer next to the spaced value, halves away from zero; exact where a float is not."""
    if size == 1:
        numerator, denominator = minval + maxval, 2
    else:
        numerator, denominator = minval * (size - 1) + i * (maxval - minval), size - 1
    whole = (2 * abs(numerator) + denominator) // (2 * denominator)
    return whole if numerator >= 0 else -whole
