"""An ordered map, stored in parts of an actor as a tree. A change of an entry writes one leaf.

A leaf contains a bounded number of entries and splits when it is full. The directory contains the
first key and the number of each leaf. It is written only when a leaf is added or removed. A
directory that grows too long is split into nodes, which are stored in the same form as leaves. Keys
are strings in code-point order. Values are JSON values.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

from control_plane.actors.step import StepContext

LEAF_MAX = 64
"""The most entries of a leaf, unless a map sets another limit."""
NODE_MAX = 24
"""The most children of a node, and of the directory."""

Entries = tuple[tuple[str, object], ...]
"""Pairs of key and value, in key order."""
Children = tuple[tuple[str, int], ...]
"""Pairs of the first key and the number of a leaf or node, in key order."""
A = TypeVar("A")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Directory:
    """The root of the tree."""

    leaves: Children = ()
    """The children of the root: leaves if `depth` is 0, else nodes."""
    next_leaf: int = 0
    """The next unused number of a leaf or node."""
    depth: int = 0
    """The number of levels of nodes between the root and the leaves."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of the tree. A node is stored as a leaf whose entries are the node's children."""

    entries: Entries = ()
    """The entries in key order."""

    def compute_once(self, derive: Callable[[Entries, A], D], argument: A) -> D:
        """Return `derive(entries, argument)`, cached in this object.

        The cache keeps the result of the last argument for each function name. Another argument
        computes the result again. `derive` must be a named function that only depends on its
        arguments.
        """
        # The cache is not a field of the dataclass: comparisons and the codec ignore the cache.
        name = derive.__name__
        cached = self.__dict__.get(name)
        if cached is None or cached[0] != argument:
            cached = self.__dict__[name] = (argument, derive(self.entries, argument))
        return cast(D, cached[1])


class _PathStep(NamedTuple):
    """A step of the path from the directory to a leaf: a node and the chosen child."""

    number: int | None
    """The number of the node. None: the directory."""
    children: Children
    """The children of the node or directory."""
    position: int
    """The position among `children` of the child through which the path continues."""


class OrderedMap:
    """The map `name` of the context's actor. Changes are written into the context's parts.

    Args:
        context: the context of the step.
        name: the name of the directory's part, and the start of the names of leaves: `NAME/NUMBER`.
        leaf_max: the most entries of a leaf.
    """

    def __init__(self, context: StepContext, name: str, leaf_max: int = LEAF_MAX) -> None:
        self._context = context
        self._name = name
        self._leaf_max = leaf_max

    def get(self, key: str) -> object | None:
        """Return the value of `key`.

        Return None if the map does not contain the key.
        """
        path = self._path_to(key)
        return dict(self._leaf(_child_number(path)).entries).get(key) if path else None

    def first_entry(self, key: str) -> tuple[str, object] | None:
        """Return the first entry with the key `key` or a greater key. Return None after the last
        key.
        """
        return next(self.items(key), None)

    def items(self, first: str = "") -> Iterator[tuple[str, object]]:
        """Iterate over the entries from the key `first` on, in key order.

        Each leaf is read when the iteration reaches it. Do not change the map during an iteration.
        """
        for leaf in self.leaves(first):
            for entry in leaf.entries:
                if entry[0] >= first:
                    yield entry

    def leaves(self, first: str = "") -> Iterator[Leaf]:
        """Iterate over the leaves in key order. An empty map has no leaves.

        Begin with the leaf whose range contains `first`, which may also have smaller keys.
        """
        directory = self._directory()
        return self._leaves_below(directory.leaves, directory.depth, first)

    def put(self, key: str, value: object) -> None:
        """Set `key` to `value`, and write the changed leaf. A full leaf is split.

        An equal value is written as well.
        """
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
        # Keys are often added in ascending order, so a new last key gets a new leaf, and the old
        # leaf stays full.
        half = len(entries) - 1 if entries[-1][0] == key else len(entries) // 2
        self._write_part(f"/{number}", Leaf(tuple(entries[:half])))
        self._insert_child(path, entries[half][0], self._add_leaf(tuple(entries[half:])))

    def remove(self, key: str) -> None:
        """Remove `key`, and leaves and nodes that become empty. Do nothing if the map lacks the
        key.

        Neighbouring leaves are not merged.
        """
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
        """Return the path from the directory to the leaf for `key`.

        Return an empty list for an empty map.
        """
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
        """Iterate over the leaves `depth` levels below `children`, from the leaf for the key
        `first` on.
        """
        for _, number in children[_child_position(children, first) :]:
            if depth:
                yield from self._leaves_below(self._node(number), depth - 1, first)
            else:
                yield self._leaf(number)

    def _insert_child(self, path: list[_PathStep], key: str, number: int) -> None:
        """Insert the child `number` with the first key `key` behind the child at the end of `path`.

        A node with more than NODE_MAX children is split, and the new node is inserted one level
        higher. A full directory becomes two nodes below a new directory. Removes steps from `path`.
        """
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
        """Replace the children of a node, or of the directory for number `None`.

        A node without children is removed.
        """
        if number is not None:
            self._write_part(f"/{number}", Leaf(children) if children else None)
            return
        directory = self._directory()
        depth = directory.depth if children else 0
        self._write_part("", Directory(children, directory.next_leaf, depth))

    def _directory(self) -> Directory:
        """Return the root. Return an empty root for a map without parts."""
        return self._context.part(self._name, Directory) or Directory()

    def _leaf(self, number: int) -> Leaf:
        """Return a leaf or node by number. Return an empty leaf if no such leaf exists."""
        return self._context.part(f"{self._name}/{number}", Leaf) or Leaf()

    def _node(self, number: int) -> Children:
        """Return the children of a node by number. Return no children if no such node exists."""
        return cast(Children, self._leaf(number).entries)

    def _add_leaf(self, entries: Entries) -> int:
        """Write a new leaf or node, and return the new number."""
        directory = self._directory()
        number = directory.next_leaf
        self._write_part("", Directory(directory.leaves, number + 1, directory.depth))
        self._write_part(f"/{number}", Leaf(entries))
        return number

    def _write_part(self, suffix: str, value: Directory | Leaf | None) -> None:
        """Write the root (suffix "") or a leaf or node (suffix "/NUMBER").

        A value of None removes the part.
        """
        self._context.write_part(self._name + suffix, value)


def _child_number(path: list[_PathStep]) -> int:
    """Return the number of the leaf or node at the end of the path."""
    return path[-1].children[path[-1].position][1]


def _child_position(children: Children, key: str) -> int:
    """Return the position of the child that may contain `key`.

    Return 0 for a key before the first range.
    """
    return max(0, bisect_right(children, key, key=lambda child: child[0]) - 1)
