"""How adaptive searches choose their brackets: from the one that stops trials early, with many, to
the one that hardly stops any.

Source: Li et al., "Hyperband" (2018), for the idea; the formulas are those of Determined.
"""

from collections.abc import Sequence

from control_plane.searchers.halving.options import Mode


def rung_counts(mode: Mode, rungs_max: int, listed: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the number of rungs of each bracket, the largest first: as `listed`, or by the mode
    if none are.
    """
    if listed:
        return tuple(sorted(listed, reverse=True))
    least = {"aggressive": rungs_max, "standard": (rungs_max - 1) // 2 + 1, "conservative": 1}
    return tuple(range(rungs_max, least[mode] - 1, -1))


def divide_evenly(total: int, brackets: int) -> tuple[int, ...]:
    """Divide a number among brackets; what is left over goes to the first ones, one each."""
    each, over = divmod(total, brackets)
    return tuple(each + (n < over) for n in range(brackets))
