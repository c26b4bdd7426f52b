"""The sorted results of a rung: an order-statistic B-tree (Bayer and McCreight, 1972) in blobs.

A node is one blob of at most 300 bytes. Inserting a result among 100,000 results rewrites five
nodes. Results with equal metrics are sorted by the time of insertion, ascending or descending.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore

# A leaf's entry has 12 bytes, an inner node's entry 16, and the header of a node 5.
LEAF_MAX = 24
"""The largest number of entries of a leaf."""
INNER_MAX = 18
"""The largest number of children of an inner node."""

_HEADER = struct.Struct("<BI")
_ROOT = 0


class Result(NamedTuple):
    """A trial's result in a rung."""

    metric: float
    """The metric, signed so that smaller is better."""
    trial: int
    """The trial's number within the search."""


@dataclass(slots=True)
class _Node:
    """A node of the tree."""

    number: int
    """The number in the name of the node's blob. The root has 0."""
    height: int
    """0 for a leaf."""
    metrics: "array[float]"
    """The metric of each entry of a leaf, or the first metric below each child."""
    ids: "array[int]"
    """The trial of each entry of a leaf, or the number of each child."""
    counts: "array[int]"
    """The number of results below each child. Empty in a leaf."""
    unused: int = 1
    """The number for the next new node. Only the root's value is used."""

    @property
    def size(self) -> int:
        """Return the number of results below this node."""
        return sum(self.counts) if self.height else len(self.ids)


class Ranking:
    """The results of a rung, the smallest metric first.

    Each node is read from the blobs once. Nothing else may write the ranking's blobs while the
    object is in use.
    """

    def __init__(self, blobs: BlobStore, name: str) -> None:
        """Set the blobs and the name. If no blobs with this name exist, the ranking is empty."""
        self._blobs = blobs
        self._name = name
        self._nodes: dict[int, _Node] = {}

    def __len__(self) -> int:
        return self._read_node(_ROOT).size

    def __iter__(self) -> Iterator[Result]:
        yield from self._results(self._read_node(_ROOT))

    def result_at(self, index: int) -> Result:
        """Return the result at an index, from 0 for the best. Raise IndexError out of range."""
        node = self._read_node(_ROOT)
        if not 0 <= index < node.size:
            raise IndexError(index)
        while node.height:
            child = 0
            while index >= node.counts[child]:
                index -= node.counts[child]
                child += 1
            node = self._read_node(node.ids[child])
        return Result(node.metrics[index], node.ids[index])

    def insert(self, result: Result, *, before_equals: bool = False) -> int:
        """Write a result to the ranking, and return the index of the result, from 0.

        `before_equals`: whether the result is sorted before results with an equal metric, or after
        these.
        """
        root = self._read_node(_ROOT)
        index, right = self._insert(root, root, result, before_equals)
        if right is not None:
            # The root keeps the number 0, so the old entries move to a new left child.
            left = _Node(_take_node_number(root), root.height, root.metrics, root.ids, root.counts)
            self._write_node(left)
            root.height += 1
            root.metrics = array("d", (left.metrics[0], right.metrics[0]))
            root.ids = array("I", (left.number, right.number))
            root.counts = array("I", (left.size, right.size))
        self._write_node(root)
        return index

    def remove(self, trial: int) -> bool:
        """Remove the trial's result from the ranking; return False if the trial has no result.

        Reads all nodes in the worst case.
        """
        root = self._read_node(_ROOT)
        removed = self._remove(root, trial)
        if removed:
            if not root.ids:
                root.height = 0
            self._write_node(root)
        return removed

    def _results(self, node: _Node) -> Iterator[Result]:
        if node.height == 0:
            yield from map(Result, node.metrics, node.ids)
        else:
            for number in node.ids:
                yield from self._results(self._read_node(number))

    def _insert(
        self, root: _Node, node: _Node, result: Result, before_equals: bool
    ) -> tuple[int, _Node | None]:
        """Insert a result below `node`, without writing `node`.

        Return the index of the result among the results below `node`. If `node` was split, also
        return the new right half, otherwise None.
        """
        bisect = bisect_left if before_equals else bisect_right
        place = bisect(node.metrics, result.metric)
        if node.height == 0:
            node.metrics.insert(place, result.metric)
            node.ids.insert(place, result.trial)
            return place, self._split_node(root, node, LEAF_MAX)
        # A result that sorts before all others goes into the first child.
        at = max(0, place - 1)
        child = self._read_node(node.ids[at])
        index, right = self._insert(root, child, result, before_equals)
        self._write_node(child)
        index += sum(node.counts[:at])
        node.metrics[at] = child.metrics[0]
        node.counts[at] += 1
        if right is not None:
            node.counts[at] -= right.size
            node.metrics.insert(at + 1, right.metrics[0])
            node.ids.insert(at + 1, right.number)
            node.counts.insert(at + 1, right.size)
        return index, self._split_node(root, node, INNER_MAX)

    def _split_node(self, root: _Node, node: _Node, entries_max: int) -> _Node | None:
        """Split a node with more than `entries_max` entries.

        Write the right half as a new node and return the new node. The caller writes `node`. Return
        None without a change if `node` has few enough entries.
        """
        if len(node.ids) <= entries_max:
            return None
        half = len(node.ids) // 2
        metrics, ids, counts = node.metrics[half:], node.ids[half:], node.counts[half:]
        right = _Node(_take_node_number(root), node.height, metrics, ids, counts)
        del node.metrics[half:], node.ids[half:], node.counts[half:]
        self._write_node(right)
        return right

    def _remove(self, node: _Node, trial: int) -> bool:
        if node.height == 0:
            if trial not in node.ids:
                return False
            place = node.ids.index(trial)
            del node.metrics[place], node.ids[place]
            return True
        for at, number in enumerate(node.ids):
            child = self._read_node(number)
            if self._remove(child, trial):
                self._write_node(child)
                if child.ids:
                    node.metrics[at], node.counts[at] = child.metrics[0], child.size
                else:
                    del node.metrics[at], node.ids[at], node.counts[at]
                return True
        return False

    def _read_node(self, number: int) -> _Node:
        node = self._nodes.get(number)
        if node is None:
            node = _decode_node(number, self._blobs.read(f"{self._name}/{number}"))
            self._nodes[number] = node
        return node

    def _write_node(self, node: _Node) -> None:
        self._nodes[node.number] = node
        header = _HEADER.pack(node.height, node.unused)
        blob = b"".join((header, node.metrics, node.ids, node.counts))
        self._blobs.write(f"{self._name}/{node.number}", blob)


def _decode_node(number: int, blob: bytes | None) -> _Node:
    metrics, ids, counts = array("d"), array("I"), array("I")
    if blob is None:
        return _Node(number, 0, metrics, ids, counts)
    height, unused = _HEADER.unpack_from(blob)
    entry = 16 if height else 12
    size = (len(blob) - _HEADER.size) // entry
    body = memoryview(blob)[_HEADER.size :]
    metrics.frombytes(body[: 8 * size])
    ids.frombytes(body[8 * size : 12 * size])
    counts.frombytes(body[12 * size :])
    return _Node(number, height, metrics, ids, counts, unused)


def _take_node_number(root: _Node) -> int:
    root.unused += 1
    return root.unused - 1
