"""Which halvings an adaptive search runs side by side: from the one that stops trials early, with
many, to the one that hardly stops any.

Source: Li et al., "Hyperband" (2018), for the idea; the formulas are those of Determined.
Logarithms and powers stay floats: ln 243 / ln 3 falls short of 5, and so does the number of rungs.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import inf, log
from operator import add
from typing import Literal

from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.rungs import power
from control_plane.searchers.synchronous import Ladder
from control_plane.searchers.tournament import TournamentPlan

Mode = Literal["aggressive", "standard", "conservative"]


def rungs_of(mode: Mode, rungs_max: int, given: Sequence[int] = ()) -> tuple[int, ...]:
    """The number of rungs of each bracket, the largest first; if none are given, by the mode."""
    if given:
        return tuple(sorted(given, reverse=True))
    least = {"aggressive": rungs_max, "standard": (rungs_max - 1) // 2 + 1, "conservative": 1}
    return tuple(range(rungs_max, least[mode] - 1, -1))


def adaptive(ladder: Ladder, budget: int, rungs: Sequence[int]) -> TournamentPlan:
    """Synchronous halvings with so many rungs each, which share a budget evenly."""
    share = budget // len(rungs)
    return TournamentPlan(tuple(ladder.within_budget(count, share) for count in rungs))


def adaptive_simple(ladder: Ladder, max_trials: int, rungs: Sequence[int]) -> TournamentPlan:
    """Synchronous halvings with so many rungs each, which share the trials evenly.

    Each has one trial at least, so there can be more than `max_trials` of them.
    """
    shares = (max(share, 1) for share in _shared_evenly(max_trials, len(rungs)))
    return TournamentPlan(tuple(map(ladder.with_trials, rungs, shares)))


def adaptive_asha(
    whole: HalvingPlan, mode: Mode, bracket_rungs: Sequence[int] = ()
) -> TournamentPlan:
    """Asynchronous halvings that share the trials of `whole` and how many are open at the start,
    with at most its rungs unless they are given.
    """
    rungs = rungs_of(mode, _rungs_max(whole), bracket_rungs)
    trials = shared_trials(rungs, whole.divisor, whole.max_trials)
    concurrent = shared_concurrency(trials, whole)
    brackets = zip(rungs, trials, concurrent, strict=True)
    return TournamentPlan(
        tuple(
            replace(whole, num_rungs=count, max_trials=share, max_concurrent_trials=first)
            for count, share, first in brackets
        )
    )


def _rungs_max(whole: HalvingPlan) -> int:
    """More rungs than this would compare trials at no length, or without one to go on."""
    fitting = (
        int(log(most) / log(whole.divisor)) + 1 for most in (whole.max_length, whole.max_trials)
    )
    return min(whole.num_rungs, *fitting)


def shared_trials(rungs: Sequence[int], divisor: float, max_trials: int) -> tuple[int, ...]:
    """The trials of each bracket, in proportion to divisor^(rungs - 1) / rungs, at least one; what
    is left over goes to the first.
    """
    weights = [power(divisor, count - 1) / count for count in rungs]
    # Not `sum`, whose last bit depends on the version of Python.
    whole = reduce(add, weights)
    parts = (weight / whole * max_trials if whole < inf else 0.0 for weight in weights)
    shares = [max(int(part), 1) for part in parts]
    shares[0] += max(max_trials - sum(shares), 0)
    return tuple(shares)


def shared_concurrency(trials: Sequence[int], whole: HalvingPlan) -> tuple[int, ...]:
    """The trials that each bracket opens at the start; a bracket with 0 decides by itself."""
    brackets, concurrent = len(trials), whole.max_concurrent_trials
    if concurrent == 0:
        return (max(trials[-1], int(whole.divisor)),) * brackets
    if not whole.rules.creates_all_at_once:
        concurrent = max(concurrent, brackets)
    return _shared_evenly(concurrent, brackets)


def _shared_evenly(whole: int, brackets: int) -> tuple[int, ...]:
    """What is left over goes to the first brackets, one each."""
    each, over = divmod(whole, brackets)
    return tuple(each + (n < over) for n in range(brackets))
