"""The messages to a trial about the use of slots."""

from dataclasses import dataclass

from control_plane.actors.use import Use


@dataclass(frozen=True, slots=True)
class UseReported:
    """An agent has summed up the use of the allocation's slots on a node, since the start."""

    epoch: int
    """The epoch of the allocation."""
    use: Use
    node_rank: int = 0
    """The rank of the node."""


@dataclass(frozen=True, slots=True)
class LowUseReported:
    """The slots on a node have computed too little for the time of the policy, or no longer do."""

    epoch: int
    """The epoch of the allocation."""
    is_low: bool
    percent: float
    """The mean use over the time of the policy, in percent."""
    time_ms: int
    """The time of the policy, in ms."""
    node_rank: int = 0
    """The rank of the node."""
