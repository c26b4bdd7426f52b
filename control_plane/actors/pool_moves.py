"""Records of a job that prefers several pools: their names, and how it has moved between them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolPreferences:
    """The pools of a job in the order of preference, at least two, and for how long it waits in one
    of them before it goes on to the next.
    """

    names: tuple[str, ...]
    patience_ms: int


@dataclass(frozen=True, slots=True)
class PoolMoves:
    """The moves of a job between the pools that it prefers.

    `count`: its moves so far, which numbers its stays; `first`: those before it last ran.
    `waits_since_ms`: since when it has waited in all of them together, None before its first move;
    `moved_ms` and `reason`: when and why it last moved. `is_over`: a user has moved it.
    """

    count: int = 0
    first: int = 0
    waits_since_ms: int | None = None
    moved_ms: int | None = None
    reason: str = ""
    is_over: bool = False


def preferred_pools(pools: PoolPreferences | None, moves: PoolMoves | None) -> tuple[str, ...]:
    """The pools that a job may move between, none for one that stays where it is."""
    return () if pools is None or moves is None or moves.is_over else pools.names
