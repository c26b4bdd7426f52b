"""The choice among the pools that a job prefers: when it leaves one, and where it goes.

A job that names several pools waits in the first. It leaves a pool in which nothing of it runs and
its requests have waited too long, for the next of its list and after the last one for the first
again. On its first round it leaves a pool that can give nothing by itself at once, on later ones no
pool before its whole patience: so it never moves round and round without waiting anywhere. On later
rounds it waits longer in each pool that has something to give, and stays where slots are held for
it: so it does not pass all pools by for ever just before its turn. Decision 0069 has the proof.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Stays double with each round up to this one; 10 minutes have become 19 years by then.
DOUBLED_ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True)
class PoolWait:
    """The wait of a job in one of its pools, where no trial of it has run since `since_ms`.

    `rounds`: how often the job has been in all its pools. `closed`: the pool cannot provide slots.
    `is_held`: the pool holds slots for the job.
    """

    since_ms: int
    patience_ms: int
    rounds: int = 0
    closed: bool = False
    is_held: bool = False


def leave_time_ms(wait: PoolWait) -> int | None:
    """The time at which the job leaves if its wait goes on as it is; None while slots are held for
    it that it waits for.
    """
    if wait.rounds == 0:
        return wait.since_ms + (0 if wait.closed else wait.patience_ms)
    if wait.closed:
        return wait.since_ms + wait.patience_ms
    if wait.is_held:
        return None
    return wait.since_ms + (wait.patience_ms << min(wait.rounds, DOUBLED_ROUNDS_MAX))


def next_pool(preferred: Sequence[str], present: str, exists: Callable[[str], bool]) -> str | None:
    """The pool that a job goes to from the `present` one: the next of its list that exists, the
    first coming after the last. None if there is no other, or if the present one is not in the
    list.
    """
    if present not in preferred:
        return None
    place = preferred.index(present)
    others = (*preferred[place + 1 :], *preferred[:place])
    return next((name for name in others if name != present and exists(name)), None)


def round_number(moves: int, pools: int) -> int:
    """How often a job has been in all its pools, given its moves since it last ran."""
    return moves // max(1, pools)
