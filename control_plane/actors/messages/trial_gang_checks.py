"""The messages to a trial about the check of the machines."""

from dataclasses import dataclass

FAULTS_MAX = 16
"""The most bad nodes or links in a report."""
TEXT_CHARACTERS_MAX = 200
DEVICE_CHARACTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class GangCheckReported:
    """The machines of a gang were checked before the trial starts.

    Without bad nodes and links, the machines have passed. With bad nodes or links, the processes
    wait a while for their end.
    """

    epoch: int
    """The epoch of the allocation."""
    bandwidth: float = 0.0
    """The bandwidth of the all-reduce between all machines, in MB/s. 0: the all-reduce failed."""
    device: str = ""
    """The kind of devices, for example `cpu`."""
    bad_nodes: tuple[int, ...] = ()
    """The ranks of the nodes that failed together with good nodes."""
    bad_links: tuple[tuple[int, int], ...] = ()
    """The ranks of pairs of nodes that failed together, while each may be good."""
    text: str = ""
    """The failure, for users."""
    rounds: int = 1
    """The number of rounds of the check."""


@dataclass(frozen=True, slots=True)
class GangMeetingDelayed:
    """A node has waited for other nodes of the gang, which the node must meet before the check."""

    epoch: int
    """The epoch of the allocation."""
    node_rank: int
    """The rank of the waiting node."""
    missing: tuple[int, ...]
    """The ranks of missing nodes, at most FAULTS_MAX. Nodes other than the first wait for the first
    only.
    """
    has_met: bool
    """Whether the node has met any other node."""
    waited_ms: int
    """The time that the node has waited, in ms."""
