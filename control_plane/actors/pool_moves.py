"""Records of jobs with several preferred pools: the pools, and the moves between pools."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolPreferences:
    """The preferred pools of a job."""

    names: tuple[str, ...]
    """The names of at least two pools, the most preferred first."""
    patience_ms: int
    """How long the job waits in a pool before it moves to the next, in ms."""


@dataclass(frozen=True, slots=True)
class PoolMoves:
    """The moves of a job between preferred pools."""

    count: int = 0
    """The number of moves so far. It is also the number of the present stay."""
    first: int = 0
    """The value of `count` when the job last ran."""
    waits_since_ms: int | None = None
    """The time since which the job has waited in all pools together, in epoch ms. None before the
    first move.
    """
    moved_ms: int | None = None
    """The time of the last move, in epoch ms."""
    reason: str = ""
    """The reason for the last move."""
    is_over: bool = False
    """Whether a user has moved the job, which ends its moves by itself."""


def preferred_pools(pools: PoolPreferences | None, moves: PoolMoves | None) -> tuple[str, ...]:
    """Return the pools between which a job may move, in the order of preference.

    Return an empty tuple for a job that stays in its pool: it has no preferred pools, or a user has
    moved it.

    Args:
        pools: the job's preferred pools, or None.
        moves: the job's moves, or None for an experiment without preferred pools.
    """
    return () if pools is None or moves is None or moves.is_over else pools.names
