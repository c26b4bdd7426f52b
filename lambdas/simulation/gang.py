"""The gang of an allocation's nodes: they train together, stop together when one of them is asked
to, and fail when one of them is gone.
"""

from collections.abc import Callable
from typing import Protocol

PEER_GONE_MS = 8_000


class GangNode(Protocol):
    """A node as its gang sees it."""

    rank: int

    @property
    def has_ended(self) -> bool: ...

    @property
    def must_stop(self) -> bool: ...

    def react(self) -> None: ...

    def begin_training(self) -> None: ...

    def end_with_gang(self, reason: str, delay_ms: int) -> None: ...


class Gang:
    """The nodes of an allocation that have started so far."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._present: dict[int, GangNode] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all nodes have started and still run."""
        return len(self._present) == self._nodes and not any(
            n.has_ended for n in self._present_nodes
        )

    @property
    def must_stop(self) -> bool:
        """Whether any node is to stop."""
        return any(node.must_stop for node in self._present_nodes)

    @property
    def _present_nodes(self) -> list[GangNode]:
        return list(self._present.values())

    def add_node(self, node: GangNode) -> None:
        """Add a node; with the last one all begin to train."""
        self._present[node.rank] = node
        if self.is_complete:
            self._present[0].begin_training()

    def react(self) -> None:
        """Let the chief react to what one of the nodes has received."""
        if self.is_complete:
            self._present[0].react()

    def handle_node_end(self, node: GangNode, reason: str, *, well: bool) -> None:
        """End the other nodes with one that has ended: all end like the chief, and when another
        node is gone they fail after a while. `well`: it ended as it should.
        """
        if well and node.rank:
            return
        for other in self._present_nodes:
            if other is not node and not other.has_ended:
                other.end_with_gang(reason if well else "errored", 0 if well else PEER_GONE_MS)


def gang_registry() -> Callable[[str, int], Gang]:
    """Return a function that gives the gang of an allocation, by name and number of nodes."""
    known: dict[str, Gang] = {}
    return lambda allocation, nodes: known.setdefault(allocation, Gang(nodes))
