"""The nodes of one allocation as they find each other: they train together, stop together when one
of them is told to, and fail when one of them is gone.
"""

from collections.abc import Callable
from typing import Protocol

PEER_GONE_MS = 8_000


class Node(Protocol):
    """What a gang sees of its nodes."""

    rank: int

    @property
    def ended(self) -> bool: ...

    @property
    def must_stop(self) -> bool: ...

    def heed(self) -> None: ...

    def begin(self) -> None: ...

    def finish(self, reason: str, delay_ms: int) -> None: ...


class Gang:
    """All nodes of an allocation that have come so far."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._present: dict[int, Node] = {}

    @property
    def complete(self) -> bool:
        """Whether all are there."""
        return len(self._present) == self._nodes and not any(n.ended for n in self._all)

    @property
    def must_stop(self) -> bool:
        """Whether any of them is to stop."""
        return any(node.must_stop for node in self._all)

    @property
    def _all(self) -> list[Node]:
        return list(self._present.values())

    def join(self, node: Node) -> None:
        """A node is there; the last one lets all begin."""
        self._present[node.rank] = node
        if self.complete:
            self._present[0].begin()

    def heed(self) -> None:
        """One of them was told something, which the chief reacts to."""
        if self.complete:
            self._present[0].heed()

    def left(self, node: Node, reason: str, *, well: bool) -> None:
        """A node has ended. All end like the chief; without a node the others fail in the end."""
        if well and node.rank:
            return
        for other in self._all:
            if other is not node and not other.ended:
                other.finish(reason if well else "errored", 0 if well else PEER_GONE_MS)


def gangs() -> Callable[[str, int], Gang]:
    """The gang of each allocation, by name and size."""
    known: dict[str, Gang] = {}
    return lambda allocation, nodes: known.setdefault(allocation, Gang(nodes))
