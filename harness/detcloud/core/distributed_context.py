"""The exchange of values between the processes of one trial; so far there is one a node."""

from __future__ import annotations

from typing import TypeVar

from detcloud.shared.errors import DetcloudError

Value = TypeVar("Value")


class DistributedContext:
    """One process of `size`, each on a node of its own.

    For a process alone every exchange returns its own value; over several nodes there is no
    exchange yet, and it raises DetcloudError.
    """

    local_rank = 0
    local_size = 1

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = self.cross_rank = rank
        self.size = self.cross_size = size

    def gather(self, value: Value) -> list[Value] | None:
        """The values of all ranks in their order, on rank 0; None on the others."""
        self._check_alone()
        return [value]

    def allgather(self, value: Value) -> list[Value]:
        """The values of all ranks in their order, on every rank."""
        self._check_alone()
        return [value]

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value, on every rank."""
        self._check_alone()
        return value

    def gather_local(self, value: Value) -> list[Value] | None:
        return [value]

    def allgather_local(self, value: Value) -> list[Value]:
        return [value]

    def broadcast_local(self, value: Value) -> Value:
        return value

    def _check_alone(self) -> None:
        if self.size > 1:
            raise DetcloudError(
                f"values are not exchanged over the {self.size} nodes of a trial; use "
                "torch.distributed, which finds MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE in "
                "the environment"
            )
