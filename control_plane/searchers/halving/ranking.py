"""The results of a rung in order: an order-statistic B-tree (Bayer and McCreight, 1972) in blobs.

A node is one blob of at most 300 bytes: one result more among 100,000 rewrites five of them.
Results with equal metrics keep the order in which they were inserted, one way or the other.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore

# A leaf's entries take 12 bytes, an inner node's 16, and its header 5.
LEAF_MAX = 24
INNER_MAX = 18

_HEADER = struct.Struct("<BI")
_ROOT = 0


class Result(NamedTuple):
    """A trial's metric in the rung, signed so that less is better."""

    metric: float
    trial: int


@dataclass(slots=True)
class _Node:
    """A node. `metrics` are those of a leaf's entries or the first ones of an inner node's
    children.

    `ids` are the entries' trials or the children's numbers, `counts` the results below each child.
    `height` is 0 for a leaf; `unused` is the next number for a node, kept by the root.
    """

    number: int
    height: int
    metrics: "array[float]"
    ids: "array[int]"
    counts: "array[int]"
    unused: int = 1

    @property
    def size(self) -> int:
        return sum(self.counts) if self.height else len(self.ids)


class Ranking:
    """The ranking `name` among the blobs, empty if there is none. Nobody else may write it while it
    is in use: a node is read once.
    """

    def __init__(self, blobs: BlobStore, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._nodes: dict[int, _Node] = {}

    def __len__(self) -> int:
        return self._read_node(_ROOT).size

    def __iter__(self) -> Iterator[Result]:
        yield from self._results(self._read_node(_ROOT))

    def result_at(self, index: int) -> Result:
        """Return the result at an index from 0 to len - 1; IndexError beyond."""
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
        """Add a result and return its index from 0: after the results that are equal to it, or
        before them.
        """
        root = self._read_node(_ROOT)
        index, right = self._insert(root, root, result, before_equals)
        if right is not None:
            # The root keeps its number: what it held goes a level down.
            left = _Node(_take_node_number(root), root.height, root.metrics, root.ids, root.counts)
            self._write_node(left)
            root.height += 1
            root.metrics = array("d", (left.metrics[0], right.metrics[0]))
            root.ids = array("I", (left.number, right.number))
            root.counts = array("I", (left.size, right.size))
        self._write_node(root)
        return index

    def remove(self, trial: int) -> bool:
        """Drop the trial's result and return whether there was one; looks through all of them."""
        root = self._read_node(_ROOT)
        found = self._remove(root, trial)
        if found:
            if not root.ids:
                root.height = 0
            self._write_node(root)
        return found

    def _results(self, node: _Node) -> Iterator[Result]:
        if node.height == 0:
            yield from map(Result, node.metrics, node.ids)
        else:
            for number in node.ids:
                yield from self._results(self._read_node(number))

    def _insert(
        self, root: _Node, node: _Node, result: Result, before_equals: bool
    ) -> tuple[int, _Node | None]:
        """Insert a result below `node`; return its index there, and the right half of a node that
        had to be split.
        """
        bisect = bisect_left if before_equals else bisect_right
        place = bisect(node.metrics, result.metric)
        if node.height == 0:
            node.metrics.insert(place, result.metric)
            node.ids.insert(place, result.trial)
            return place, self._split_node(root, node, LEAF_MAX)
        # What sorts before everything becomes the first of the first child.
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
        """Split a node that has too many entries: write its right half as a node and return it."""
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
