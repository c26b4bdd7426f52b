"""Hyperparameters as axes of cells, which the regression trees of fANOVA split.

A cell is a part of the possible values: a range of numbers, or a category. The mass of a cell is
the share of the hyperparameter's possible values in the cell. Trees only see cells, so that a tree
of 2,000 trials costs little more than a tree of a few hundred.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from json import dumps

from control_plane.searchers.space import Categorical, Double, Group, Int, Leaf, Log
from detcloud.shared.dotted_paths import join_names, name_text, nested_leaves

CELLS_MAX = 64
"""The most cells of a numeric hyperparameter. Fewer distinct values have a cell each."""
CATEGORIES_MAX = 32
"""The most categories with a cell each. Rarer categories share a further cell."""
LOG_RATIO_MIN = 100
"""The ratio of the largest to the smallest number from which a hyperparameter outside the search
space has a logarithmic scale.
"""
_MASS_MIN = 1e-12
"""The least mass of a cell, so that no mass is zero after rounding."""

Hparams = Mapping[str, object]
"""The hyperparameters of a trial by dotted path."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A hyperparameter with at least two cells."""

    name: str
    cells: tuple[int, ...]
    """The cell of each trial's value."""
    masses: tuple[float, ...]
    """The mass of each cell; the sum is 1."""
    is_ordered: bool
    """Whether a split separates lower cells from higher cells. Otherwise, any cells may be
    separated from the rest.
    """


def flatten_hparams(hparams: Mapping[str, object]) -> dict[str, object]:
    """Return nested hyperparameters by dotted path, for example `optimizer.lr`."""
    return {join_names(names): value for names, value in nested_leaves(hparams)}


def flatten_space(space: Group, above: str = "") -> dict[str, Leaf]:
    """Return the hyperparameters of a search space by dotted path.

    Args:
        space: the search space.
        above: the prefix of the paths.
    """
    leaves: dict[str, Leaf] = {}
    for name, member in space.members.items():
        path = f"{above}{name_text(name)}"
        if isinstance(member, Group):
            leaves |= flatten_space(member, f"{path}.")
        else:
            leaves[path] = member
    return leaves


def build_axes(trials: Sequence[Hparams], space: Mapping[str, Leaf]) -> list[Axis]:
    """Return the axis of each hyperparameter that differs between trials, sorted by name.

    A trial may lack a hyperparameter. The lack is then a cell, with the share of such trials as
    mass.

    Args:
        trials: the hyperparameters of each trial.
        space: the search space, for scales and bounds. Hyperparameters outside the space get their
            scale and bounds from the values.
    """
    names = sorted({name for hparams in trials for name in hparams})
    axes = (_build_axis(name, trials, space.get(name)) for name in names)
    return [axis for axis in axes if axis is not None]


def _build_axis(name: str, trials: Sequence[Hparams], parameter: Leaf | None) -> Axis | None:
    """Return the axis of a hyperparameter. Return None if all trials have an equal value."""
    given = [hparams[name] for hparams in trials if name in hparams]
    missing_mass = 1 - len(given) / len(trials)
    numbers = None if isinstance(parameter, Categorical) else _to_numbers(given)
    if numbers is None:
        cells, masses = _category_cells(given)
    else:
        cells, masses = _number_cells(*_scale(numbers, parameter))
    if missing_mass:
        masses = [missing_mass, *(mass * (1 - missing_mass) for mass in masses)]
        known = iter(cells)
        cells = [next(known) + 1 if name in hparams else 0 for hparams in trials]
    if len(masses) < 2:
        return None
    return Axis(name, tuple(cells), tuple(masses), is_ordered=numbers is not None)


def _to_numbers(values: Sequence[object]) -> list[float] | None:
    """Return the values as finite floats. Return None if a value is no such number."""
    numbers: list[float] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            numbers.append(float(value))
        except OverflowError:
            return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _scale(numbers: list[float], parameter: Leaf | None) -> tuple[list[float], float, float]:
    """Return the numbers on the scale of the hyperparameter, with the lower and the upper bound.

    The scale is linear or logarithmic. The bounds include all numbers, because a custom search may
    choose numbers outside the space.
    """
    low, high = min(numbers), max(numbers)
    match parameter:
        case Log(base, minval, maxval) if low > 0 and base != 1:
            numbers = [math.log(number, base) for number in numbers]
            low, high = float(minval), float(maxval)
        case Int(minval, maxval) | Double(minval, maxval):
            low, high = float(minval), float(maxval)
        case None if low > 0 and high >= LOG_RATIO_MIN * low:
            numbers = [math.log(number) for number in numbers]
            low, high = numbers[0], numbers[0]
    return numbers, min(low, *numbers), max(high, *numbers)


def _number_cells(numbers: list[float], low: float, high: float) -> tuple[list[int], list[float]]:
    """Return the cell of each number, and the masses.

    Neighboring cells are separated halfway between their values. With more than CELLS_MAX distinct
    numbers, all cells have about as many trials.
    """
    # Divided by the largest bound, because the difference of two floats may be infinite.
    size = max(abs(low), abs(high)) or 1.0
    scaled = [number / size for number in numbers]
    edges = [low / size, *_boundaries(scaled), high / size]
    widths = [max(end - start, _MASS_MIN) for start, end in pairwise(edges)]
    total = math.fsum(widths)
    inner = edges[1:-1]
    return [bisect_right(inner, number) for number in scaled], [width / total for width in widths]


def _boundaries(numbers: Sequence[float]) -> list[float]:
    """Return the boundaries between neighboring cells, in ascending order."""
    counts = sorted(Counter(numbers).items())
    is_exact = len(counts) <= CELLS_MAX
    boundaries: list[float] = []
    passed = 0
    for (number, count), (following, _) in pairwise(counts):
        before = passed * CELLS_MAX // len(numbers)
        passed += count
        if is_exact or passed * CELLS_MAX // len(numbers) > before:
            middle = number + (following - number) / 2
            # A boundary belongs to the higher cell.
            boundaries.append(middle if middle > number else following)
    return boundaries


def _category_cells(values: Sequence[object]) -> tuple[list[int], list[float]]:
    """Return the cell of each value, and the masses: all categories are equally likely.

    Values are compared as JSON, because Python's 1, 1.0 and True are equal.
    """
    texts = [dumps(value, sort_keys=True) for value in values]
    counts = sorted(Counter(texts).items(), key=lambda pair: (-pair[1], pair[0]))
    cell_of = {text: min(cell, CATEGORIES_MAX) for cell, (text, _) in enumerate(counts)}
    categories = Counter(cell_of.values())
    masses = [categories[cell] / len(counts) for cell in range(len(categories))]
    return [cell_of[text] for text in texts], masses
