"""An ordered map kept in parts of an actor: a tree whose leaves split, so that a change writes one.

A leaf holds a bounded number of entries. The directory holds the first key and the number of each
leaf and is written only when a leaf appears or goes; one that grows too long is split into nodes,
which are kept as leaves of leaves. Keys are strings in code-point order, values JSON-able.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

from control_plane.actors.step import StepContext

LEAF_MAX = 64
NODE_MAX = 24

Entries = tuple[tuple[str, object], ...]
Children = tuple[tuple[str, int], ...]
A = TypeVar("A")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Directory:
    """The root of the tree: first key and number of each leaf, in key order, or of each node where
    leaves are `depth` levels below; `next_leaf` is the next unused number.
    """

    leaves: Children = ()
    next_leaf: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Leaf:
    """A leaf: entries in key order. A node is stored as a leaf with its children as entries."""

    entries: Entries = ()

    def compute_once(self, derive: Callable[[Entries, A], D], argument: A) -> D:
        """The result of `derive(entries, argument)`, computed once while this leaf stays in memory
        and the argument is the same.
        """
        # No field, so neither compared nor stored.
        name = derive.__name__
        known = self.__dict__.get(name)
        if known is None or known[0] != argument:
            known = self.__dict__[name] = (argument, derive(self.entries, argument))
        return cast(D, known[1])


class _PathStep(NamedTuple):
    """A step of the path to a leaf: a node, None for the directory, and the child to go on with."""

    number: int | None
    children: Children
    position: int


class OrderedMap:
    """The map `name` of the actor that the context is of. Changes go into the context's parts."""

    def __init__(self, context: StepContext, name: str, leaf_max: int = LEAF_MAX) -> None:
        self._context = context
        self._name = name
        self._leaf_max = leaf_max

    def get(self, key: str) -> object | None:
        """The value of `key`, or None."""
        path = self._path_to(key)
        return dict(self._leaf(_child_number(path)).entries).get(key) if path else None

    def first_entry(self, key: str) -> tuple[str, object] | None:
        """The entry of `key` or, without one, the next; None at the end."""
        return next(self.items(key), None)

    def items(self, first: str = "") -> Iterator[tuple[str, object]]:
        """The entries from `first` on in key order; each leaf is read when it is reached."""
        for leaf in self.leaves(first):
            for entry in leaf.entries:
                if entry[0] >= first:
                    yield entry

    def leaves(self, first: str = "") -> Iterator[Leaf]:
        """The leaves in key order, beginning with the one in which `first` would be."""
        directory = self._directory()
        return self._leaves_below(directory.leaves, directory.depth, first)

    def put(self, key: str, value: object) -> None:
        """Set `key` to `value`."""
        path = self._path_to(key)
        if not path:
            number = self._add_leaf(((key, value),))
            self._set_children(None, ((key, number),))
            return
        number = _child_number(path)
        entries = [entry for entry in self._leaf(number).entries if entry[0] != key]
        insort(entries, (key, value), key=lambda entry: entry[0])
        if len(entries) <= self._leaf_max:
            self._write_part(f"/{number}", Leaf(tuple(entries)))
            return
        # Keys are often added in order: where the new one is the last, the old leaf stays full.
        half = len(entries) - 1 if entries[-1][0] == key else len(entries) // 2
        self._write_part(f"/{number}", Leaf(tuple(entries[:half])))
        self._insert_child(path, entries[half][0], self._add_leaf(tuple(entries[half:])))

    def remove(self, key: str) -> None:
        """Remove `key`, which may be absent."""
        path = self._path_to(key)
        if not path:
            return
        number = _child_number(path)
        before = self._leaf(number).entries
        entries = tuple(entry for entry in before if entry[0] != key)
        if len(entries) == len(before):
            return
        self._write_part(f"/{number}", Leaf(entries) if entries else None)
        while not entries and path:
            step = path.pop()
            entries = step.children[: step.position] + step.children[step.position + 1 :]
            self._set_children(step.number, entries)

    def _path_to(self, key: str) -> list[_PathStep]:
        """The path from the directory to the leaf in which `key` would be; [] if there is none."""
        directory = self._directory()
        children, number, path = directory.leaves, None, list[_PathStep]()
        for depth in range(directory.depth, -1, -1):
            if not children:
                break
            step = _PathStep(number, children, _child_position(children, key))
            path.append(step)
            if depth:
                number = _child_number(path)
                children = self._node(number)
        return path

    def _leaves_below(self, children: Children, depth: int, first: str) -> Iterator[Leaf]:
        for _, number in children[_child_position(children, first) :]:
            if depth:
                yield from self._leaves_below(self._node(number), depth - 1, first)
            else:
                yield self._leaf(number)

    def _insert_child(self, path: list[_PathStep], key: str, number: int) -> None:
        """Add a child behind the one to which the path leads; a node that is full is split."""
        step = path.pop()
        at = step.position + 1
        children = (*step.children[:at], (key, number), *step.children[at:])
        if len(children) <= NODE_MAX:
            self._set_children(step.number, children)
            return
        half = len(children) // 2
        right = self._add_leaf(children[half:])
        if step.number is not None:
            self._set_children(step.number, children[:half])
            self._insert_child(path, children[half][0], right)
            return
        left = self._add_leaf(children[:half])
        directory = self._directory()
        divided = ((children[0][0], left), (children[half][0], right))
        self._write_part("", Directory(divided, directory.next_leaf, directory.depth + 1))

    def _set_children(self, number: int | None, children: Children) -> None:
        if number is not None:
            self._write_part(f"/{number}", Leaf(children) if children else None)
            return
        directory = self._directory()
        depth = directory.depth if children else 0
        self._write_part("", Directory(children, directory.next_leaf, depth))

    def _directory(self) -> Directory:
        return self._context.part(self._name, Directory) or Directory()

    def _leaf(self, number: int) -> Leaf:
        return self._context.part(f"{self._name}/{number}", Leaf) or Leaf()

    def _node(self, number: int) -> Children:
        return cast(Children, self._leaf(number).entries)

    def _add_leaf(self, entries: Entries) -> int:
        """Write a new leaf or node; returns its number."""
        directory = self._directory()
        number = directory.next_leaf
        self._write_part("", Directory(directory.leaves, number + 1, directory.depth))
        self._write_part(f"/{number}", Leaf(entries))
        return number

    def _write_part(self, suffix: str, value: Directory | Leaf | None) -> None:
        self._context.write_part(self._name + suffix, value)


def _child_number(path: list[_PathStep]) -> int:
    """The number of the leaf or node to which the path leads."""
    return path[-1].children[path[-1].position][1]


def _child_position(children: Children, key: str) -> int:
    """The position of the child whose range holds `key`, the first for keys before all ranges."""
    return max(0, bisect_right(children, key, key=lambda child: child[0]) - 1)
