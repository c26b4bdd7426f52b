"""The choice among the pools that a job prefers: when the job leaves a pool, and for which pool.

A job with several pools waits in the first one. The job leaves a pool if no trial of the job runs
there and the requests have waited too long. The next pool is the next one in the list; after the
last pool comes the first.

- In the first round, the job leaves a pool that cannot provide slots at once.
- In later rounds, the job waits for its patience even in such a pool. So a job never circulates
  without waiting anywhere.
- In later rounds, the job waits longer in each pool that can provide slots, and stays while the
  pool holds slots for the job. So a job does not leave every pool just before its turn.

Decision 0069 contains the proof.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A patience of 10 minutes has become 19 years by then.
DOUBLED_ROUNDS_MAX = 20
"""The round up to which each round doubles the patience."""


@dataclass(frozen=True, slots=True)
class PoolWait:
    """The wait of a job in a preferred pool."""

    since_ms: int
    """Since when no trial of the job has run in the pool (epoch ms)."""
    patience_ms: int
    """The configured patience: the time that the job waits in a pool in the first round."""
    rounds: int = 0
    """How often the job has visited all of its pools since it last ran."""
    closed: bool = False
    """Whether the pool cannot provide slots for the job."""
    is_held: bool = False
    """Whether the pool holds slots for the job."""


def leave_time_ms(wait: PoolWait) -> int | None:
    """Return when the job leaves the pool if nothing changes (epoch ms), possibly in the past.

    - In the first round: at once if the pool is closed, otherwise after the patience, even if slots
      are held.
    - In later rounds: after the patience if the pool is closed. In an open pool the patience
      doubles with each round, up to DOUBLED_ROUNDS_MAX.

    Return None in a later round if the pool is open and holds slots for the job: the job stays.
    """
    if wait.rounds == 0:
        return wait.since_ms + (0 if wait.closed else wait.patience_ms)
    if wait.closed:
        return wait.since_ms + wait.patience_ms
    if wait.is_held:
        return None
    return wait.since_ms + (wait.patience_ms << min(wait.rounds, DOUBLED_ROUNDS_MAX))


def next_pool(preferred: Sequence[str], present: str, exists: Callable[[str], bool]) -> str | None:
    """Return the pool that a job moves to from the `present` pool.

    The next pool is the next existing pool of the list; after the last pool comes the first. Return
    None if no other pool exists or the present pool is not in the list.

    Args:
        preferred: the names of the job's pools, in the order of the configuration.
        exists: returns whether a pool exists.
    """
    if present not in preferred:
        return None
    place = preferred.index(present)
    others = (*preferred[place + 1 :], *preferred[:place])
    return next((name for name in others if name != present and exists(name)), None)


def round_number(moves: int, pools: int) -> int:
    """Return how many full rounds through the job's list of pools a job has made: `moves // pools`.

    For an empty list, return `moves`.

    Args:
        moves: the moves of the job since its last run.
        pools: the number of pools in the job's list.
    """
    return moves // max(1, pools)
