"""An ordered map in parts: a tree whose leaves split, so that a change writes one leaf.

A leaf holds a bounded number of entries. The directory holds the first key and the number of each
leaf and is written only when a leaf appears or goes; one that grows too long is divided into nodes,
which are kept as leaves of leaves. Keys are strings in code-point order, values JSON-able.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

from control_plane.actors.step import Turn

LEAF_MAX = 64
NODE_MAX = 24

Entries = tuple[tuple[str, object], ...]
Children = tuple[tuple[str, int], ...]
A = TypeVar("A")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Directory:
    """First key and number of each leaf, in key order, or of each node where leaves are `depth`
    nodes below; `next_leaf` is the next unused number.
    """

    leaves: Children = ()
    next_leaf: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Leaf:
    """Entries in key order."""

    entries: Entries = ()

    def derived(self, derive: Callable[[Entries, A], D], argument: A) -> D:
        """What `derive` makes of the entries, once for as long as this leaf is kept in memory and
        the argument is the same.
        """
        # No field, so neither compared nor stored.
        name = derive.__name__
        known = self.__dict__.get(name)
        if known is None or known[0] != argument:
            known = self.__dict__[name] = (argument, derive(self.entries, argument))
        return cast(D, known[1])


class _Step(NamedTuple):
    """On the way to a leaf: a node, None for the directory, and which of its children is next."""

    number: int | None
    children: Children
    position: int


class Ordered:
    """The map `name` of the actor whose turn it is. Changes go into the turn's parts."""

    def __init__(self, turn: Turn, name: str, leaf_max: int = LEAF_MAX) -> None:
        self._turn = turn
        self._name = name
        self._leaf_max = leaf_max

    def get(self, key: str) -> object | None:
        """The value of `key`, or None."""
        path = self._path(key)
        return dict(self._leaf(_next(path)).entries).get(key) if path else None

    def first(self, key: str) -> tuple[str, object] | None:
        """The entry of `key` or, without one, the next."""
        return next(self.items(key), None)

    def items(self, first: str = "") -> Iterator[tuple[str, object]]:
        """Entries from `first` on in key order; leaves are read as the iteration reaches them."""
        for leaf in self.leaves(first):
            for entry in leaf.entries:
                if entry[0] >= first:
                    yield entry

    def leaves(self, first: str = "") -> Iterator[Leaf]:
        """The leaves in key order, from that on in which `first` would be."""
        directory = self._directory()
        return self._below(directory.leaves, directory.depth, first)

    def put(self, key: str, value: object) -> None:
        """Sets `key` to `value`."""
        path = self._path(key)
        if not path:
            number = self._add(((key, value),))
            self._set_children(None, ((key, number),))
            return
        number = _next(path)
        entries = [entry for entry in self._leaf(number).entries if entry[0] != key]
        insort(entries, (key, value), key=lambda entry: entry[0])
        if len(entries) <= self._leaf_max:
            self._write(f"/{number}", Leaf(tuple(entries)))
            return
        # What comes at the end is often followed by more: the leaf stays full.
        half = len(entries) - 1 if entries[-1][0] == key else len(entries) // 2
        self._write(f"/{number}", Leaf(tuple(entries[:half])))
        self._insert(path, entries[half][0], self._add(tuple(entries[half:])))

    def remove(self, key: str) -> None:
        """Drops `key`, which may be absent."""
        path = self._path(key)
        if not path:
            return
        number = _next(path)
        before = self._leaf(number).entries
        entries = tuple(entry for entry in before if entry[0] != key)
        if len(entries) == len(before):
            return
        self._write(f"/{number}", Leaf(entries) if entries else None)
        while not entries and path:
            step = path.pop()
            entries = step.children[: step.position] + step.children[step.position + 1 :]
            self._set_children(step.number, entries)

    def _path(self, key: str) -> list[_Step]:
        """From the directory to the leaf in which `key` would be; [] if there is none."""
        directory = self._directory()
        children, number, path = directory.leaves, None, list[_Step]()
        for depth in range(directory.depth, -1, -1):
            if not children:
                break
            step = _Step(number, children, _position(children, key))
            path.append(step)
            if depth:
                number = _next(path)
                children = self._node(number)
        return path

    def _below(self, children: Children, depth: int, first: str) -> Iterator[Leaf]:
        for _, number in children[_position(children, first) :]:
            if depth:
                yield from self._below(self._node(number), depth - 1, first)
            else:
                yield self._leaf(number)

    def _insert(self, path: list[_Step], key: str, number: int) -> None:
        """Adds a child behind that to which the path leads; a node that is full is divided."""
        step = path.pop()
        at = step.position + 1
        children = (*step.children[:at], (key, number), *step.children[at:])
        if len(children) <= NODE_MAX:
            self._set_children(step.number, children)
            return
        half = len(children) // 2
        right = self._add(children[half:])
        if step.number is not None:
            self._set_children(step.number, children[:half])
            self._insert(path, children[half][0], right)
            return
        left = self._add(children[:half])
        directory = self._directory()
        divided = ((children[0][0], left), (children[half][0], right))
        self._write("", Directory(divided, directory.next_leaf, directory.depth + 1))

    def _set_children(self, number: int | None, children: Children) -> None:
        if number is not None:
            self._write(f"/{number}", Leaf(children) if children else None)
            return
        directory = self._directory()
        depth = directory.depth if children else 0
        self._write("", Directory(children, directory.next_leaf, depth))

    def _directory(self) -> Directory:
        return self._turn.part(self._name, Directory) or Directory()

    def _leaf(self, number: int) -> Leaf:
        return self._turn.part(f"{self._name}/{number}", Leaf) or Leaf()

    def _node(self, number: int) -> Children:
        return cast(Children, self._leaf(number).entries)

    def _add(self, entries: Entries) -> int:
        """Writes a new leaf or node; its number."""
        directory = self._directory()
        number = directory.next_leaf
        self._write("", Directory(directory.leaves, number + 1, directory.depth))
        self._write(f"/{number}", Leaf(entries))
        return number

    def _write(self, suffix: str, value: Directory | Leaf | None) -> None:
        self._turn.write_part(self._name + suffix, value)


def _next(path: list[_Step]) -> int:
    """The number of what the path leads to."""
    return path[-1].children[path[-1].position][1]


def _position(children: Children, key: str) -> int:
    """Of the child whose range holds `key`: what is before all of them belongs to the first."""
    return max(0, bisect_right(children, key, key=lambda child: child[0]) - 1)
