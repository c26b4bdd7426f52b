"""The results of a rung in order: an order-statistic B-tree (Bayer and McCreight, 1972) in parts.

A node is one part of at most 300 bytes: one result more among 100,000 rewrites five of them.
Results with equal metrics keep the order in which they were inserted, one way or the other.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.searchers.parts import Parts

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
    """`metrics` are those of a leaf's entries or the first ones of an inner node's children.

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
    """The ranking `name` among the parts, empty if there is none. Nobody else writes it while it is
    in use: a node is read once.
    """

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self._name = name
        self._nodes: dict[int, _Node] = {}

    def __len__(self) -> int:
        return self._read(_ROOT).size

    def __iter__(self) -> Iterator[Result]:
        yield from self._results(self._read(_ROOT))

    def at(self, index: int) -> Result:
        """The result at an index from 0 to len - 1; IndexError beyond."""
        node = self._read(_ROOT)
        if not 0 <= index < node.size:
            raise IndexError(index)
        while node.height:
            child = 0
            while index >= node.counts[child]:
                index -= node.counts[child]
                child += 1
            node = self._read(node.ids[child])
        return Result(node.metrics[index], node.ids[index])

    def insert(self, result: Result, *, before_equals: bool = False) -> int:
        """Add a result and return its index from 0: after the results that are equal to it, or
        before them.
        """
        root = self._read(_ROOT)
        index, right = self._insert(root, root, result, before_equals)
        if right is not None:
            # The root keeps its number: what it held goes a level down.
            left = _Node(_taken(root), root.height, root.metrics, root.ids, root.counts)
            self._write(left)
            root.height += 1
            root.metrics = array("d", (left.metrics[0], right.metrics[0]))
            root.ids = array("I", (left.number, right.number))
            root.counts = array("I", (left.size, right.size))
        self._write(root)
        return index

    def remove(self, trial: int) -> bool:
        """Drop the trial's result, if there is one, and say so; looks through all of them."""
        root = self._read(_ROOT)
        found = self._remove(root, trial)
        if found:
            if not root.ids:
                root.height = 0
            self._write(root)
        return found

    def _results(self, node: _Node) -> Iterator[Result]:
        if node.height == 0:
            yield from map(Result, node.metrics, node.ids)
        else:
            for number in node.ids:
                yield from self._results(self._read(number))

    def _insert(
        self, root: _Node, node: _Node, result: Result, before_equals: bool
    ) -> tuple[int, _Node | None]:
        """The index among the results below `node`, and the right half if it had to be split."""
        bisect = bisect_left if before_equals else bisect_right
        place = bisect(node.metrics, result.metric)
        if node.height == 0:
            node.metrics.insert(place, result.metric)
            node.ids.insert(place, result.trial)
            return place, self._right_half(root, node, LEAF_MAX)
        # What sorts before everything becomes the first of the first child.
        at = max(0, place - 1)
        child = self._read(node.ids[at])
        index, right = self._insert(root, child, result, before_equals)
        self._write(child)
        index += sum(node.counts[:at])
        node.metrics[at] = child.metrics[0]
        node.counts[at] += 1
        if right is not None:
            node.counts[at] -= right.size
            node.metrics.insert(at + 1, right.metrics[0])
            node.ids.insert(at + 1, right.number)
            node.counts.insert(at + 1, right.size)
        return index, self._right_half(root, node, INNER_MAX)

    def _right_half(self, root: _Node, node: _Node, entries_max: int) -> _Node | None:
        """What is taken out of a node that has too much, stored as one of its own."""
        if len(node.ids) <= entries_max:
            return None
        half = len(node.ids) // 2
        metrics, ids, counts = node.metrics[half:], node.ids[half:], node.counts[half:]
        right = _Node(_taken(root), node.height, metrics, ids, counts)
        del node.metrics[half:], node.ids[half:], node.counts[half:]
        self._write(right)
        return right

    def _remove(self, node: _Node, trial: int) -> bool:
        if node.height == 0:
            if trial not in node.ids:
                return False
            place = node.ids.index(trial)
            del node.metrics[place], node.ids[place]
            return True
        for at, number in enumerate(node.ids):
            child = self._read(number)
            if self._remove(child, trial):
                self._write(child)
                if child.ids:
                    node.metrics[at], node.counts[at] = child.metrics[0], child.size
                else:
                    del node.metrics[at], node.ids[at], node.counts[at]
                return True
        return False

    def _read(self, number: int) -> _Node:
        node = self._nodes.get(number)
        if node is None:
            node = _node(number, self._parts.read(f"{self._name}/{number}"))
            self._nodes[number] = node
        return node

    def _write(self, node: _Node) -> None:
        self._nodes[node.number] = node
        header = _HEADER.pack(node.height, node.unused)
        piece = b"".join((header, node.metrics, node.ids, node.counts))
        self._parts.write(f"{self._name}/{node.number}", piece)


def _node(number: int, piece: bytes | None) -> _Node:
    metrics, ids, counts = array("d"), array("I"), array("I")
    if piece is None:
        return _Node(number, 0, metrics, ids, counts)
    height, unused = _HEADER.unpack_from(piece)
    entry = 16 if height else 12
    size = (len(piece) - _HEADER.size) // entry
    body = memoryview(piece)[_HEADER.size :]
    metrics.frombytes(body[: 8 * size])
    ids.frombytes(body[8 * size : 12 * size])
    counts.frombytes(body[12 * size :])
    return _Node(number, height, metrics, ids, counts, unused)


def _taken(root: _Node) -> int:
    root.unused += 1
    return root.unused - 1
