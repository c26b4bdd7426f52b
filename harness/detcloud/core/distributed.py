"""The workers of one trial and how they exchange values; so far a trial is one process."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


class DistributedContext:
    """One process: every exchange gives back what it was given."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    cross_rank = 0
    cross_size = 1

    def gather(self, value: Value) -> list[Value] | None:
        """The values of all ranks in their order, on rank 0; None on the others."""
        return [value]

    def allgather(self, value: Value) -> list[Value]:
        """The values of all ranks in their order, on every rank."""
        return [value]

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value, on every rank."""
        return value

    def gather_local(self, value: Value) -> list[Value] | None:
        return [value]

    def allgather_local(self, value: Value) -> list[Value]:
        return [value]

    def broadcast_local(self, value: Value) -> Value:
        return value
