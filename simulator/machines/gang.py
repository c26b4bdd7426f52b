"""The gang of an allocation's nodes, which train together.

If any node must stop, all nodes stop. If a node vanishes or fails, the other nodes fail.
"""

from collections.abc import Callable
from typing import Protocol

from simulator.machines.report_stream import Line

PEER_GONE_MS = 8_000


class GangNode(Protocol):
    """A node of a gang. The node with rank 0 is the chief, which alone trains and reports."""

    rank: int

    @property
    def agent(self) -> str: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def must_stop(self) -> bool: ...

    def react(self) -> None: ...

    def report(self, line: Line) -> None: ...

    def begin_training(self) -> None: ...

    def end_with_gang(self, reason: str, delay_ms: int) -> None: ...


class Gang:
    """The nodes of an allocation that have started so far.

    Args:
        nodes: the number of nodes of the allocation.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._present: dict[int, GangNode] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all nodes have started and none has ended."""
        return len(self._present) == self._nodes and not any(
            n.has_ended for n in self._present_nodes
        )

    @property
    def agents(self) -> list[str]:
        """The agents of the started nodes, by rank."""
        return [self._present[rank].agent for rank in sorted(self._present)]

    @property
    def must_stop(self) -> bool:
        """Whether any started node must stop."""
        return any(node.must_stop for node in self._present_nodes)

    @property
    def _present_nodes(self) -> list[GangNode]:
        return list(self._present.values())

    def add_node(self, node: GangNode) -> None:
        """Add a started node. When all nodes run, the chief begins the training."""
        self._present[node.rank] = node
        if self.is_complete:
            self._present[0].begin_training()

    def react(self) -> None:
        """Let the chief react to a notice or directive of any node. Do nothing in an incomplete
        gang.
        """
        if self.is_complete:
            self._present[0].react()

    def report(self, rank: int, line: Line) -> None:
        """Let a running node report a line. Do nothing for a node that has ended."""
        node = self._present[rank]
        if not node.has_ended:
            node.report(line)

    def handle_node_end(self, node: GangNode, reason: str, *, well: bool) -> None:
        """End the other running nodes after the end of a node.

        - If the chief ended as intended, end the others at once with the same reason.
        - If any node failed or vanished, the others fail after PEER_GONE_MS.
        - If another node ended as intended, do nothing.

        Args:
            reason: the reason of the node's exit.
            well: whether the node ended as intended.
        """
        if well and node.rank:
            return
        for other in self._present_nodes:
            if other is not node and not other.has_ended:
                other.end_with_gang(reason if well else "errored", 0 if well else PEER_GONE_MS)


def gang_registry() -> Callable[[str, int], Gang]:
    """Return a function that returns the gang of an allocation, given its name and node count.

    The first call with a name creates the gang. Later calls return the same gang.
    """
    known: dict[str, Gang] = {}
    return lambda allocation, nodes: known.setdefault(allocation, Gang(nodes))
