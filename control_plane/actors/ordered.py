"""An ordered map in parts: a sorted directory and leaves that split, so that a change writes one
leaf.

A leaf holds a bounded number of entries; the directory holds each leaf's first key and is written
only when a leaf appears, goes or gets a smaller first key. Keys are strings in code-point order,
values JSON-able.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from control_plane.actors.step import Turn

LEAF_MAX = 64

Entries = tuple[tuple[str, object], ...]
A = TypeVar("A")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Directory:
    """First key and number of each leaf, in key order; `next_leaf` is the next unused number."""

    leaves: tuple[tuple[str, int], ...] = ()
    next_leaf: int = 0


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


class Ordered:
    """The map `name` of the actor whose turn it is. Changes go into the turn's parts."""

    def __init__(self, turn: Turn, name: str, leaf_max: int = LEAF_MAX) -> None:
        self._turn = turn
        self._name = name
        self._leaf_max = leaf_max

    def get(self, key: str) -> object | None:
        """The value of `key`, or None."""
        leaves = self._directory().leaves
        position = _position(leaves, key)
        if position < 0:
            return None
        return dict(self._leaf(leaves[position][1])).get(key)

    def first(self, key: str) -> tuple[str, object] | None:
        """The entry of `key` or, without one, the next."""
        leaves = self._directory().leaves
        for _, number in leaves[max(0, _position(leaves, key)) :]:
            for entry in self._leaf(number):
                if entry[0] >= key:
                    return entry
        return None

    def items(self, first: str = "") -> Iterator[tuple[str, object]]:
        """Entries from `first` on in key order; leaves are read as the iteration reaches them."""
        leaves = self._directory().leaves
        for _, number in leaves[max(0, _position(leaves, first)) :]:
            for entry in self._leaf(number):
                if entry[0] >= first:
                    yield entry

    def leaves(self) -> Iterator[Leaf]:
        """All entries by leaf, in key order."""
        for _, number in self._directory().leaves:
            leaf = self._turn.part(f"{self._name}/{number}", Leaf)
            if leaf is not None:
                yield leaf

    def put(self, key: str, value: object) -> None:
        """Sets `key` to `value`."""
        leaves = self._directory().leaves
        if not leaves:
            self._add_leaf(0, [(key, value)])
            return
        position = max(0, _position(leaves, key))
        first, number = leaves[position]
        entries = [entry for entry in self._leaf(number) if entry[0] != key]
        insort(entries, (key, value), key=lambda entry: entry[0])
        half = len(entries) // 2 if len(entries) > self._leaf_max else len(entries)
        self._write(f"/{number}", Leaf(tuple(entries[:half])))
        if key < first:
            self._set_leaves((*leaves[:position], (key, number), *leaves[position + 1 :]))
        if entries[half:]:
            self._add_leaf(position + 1, entries[half:])

    def remove(self, key: str) -> None:
        """Drops `key`, which may be absent."""
        leaves = self._directory().leaves
        position = _position(leaves, key)
        if position < 0:
            return
        number = leaves[position][1]
        before = self._leaf(number)
        entries = tuple(entry for entry in before if entry[0] != key)
        if len(entries) == len(before):
            return
        self._write(f"/{number}", Leaf(entries) if entries else None)
        if not entries:
            self._set_leaves(leaves[:position] + leaves[position + 1 :])

    def _directory(self) -> Directory:
        return self._turn.part(self._name, Directory) or Directory()

    def _leaf(self, number: int) -> Entries:
        found = self._turn.part(f"{self._name}/{number}", Leaf)
        return found.entries if found else ()

    def _add_leaf(self, position: int, entries: list[tuple[str, object]]) -> None:
        directory = self._directory()
        leaf = (entries[0][0], directory.next_leaf)
        leaves = (*directory.leaves[:position], leaf, *directory.leaves[position:])
        self._write(f"/{directory.next_leaf}", Leaf(tuple(entries)))
        self._write("", Directory(leaves, directory.next_leaf + 1))

    def _set_leaves(self, leaves: tuple[tuple[str, int], ...]) -> None:
        self._write("", Directory(leaves, self._directory().next_leaf))

    def _write(self, suffix: str, value: Directory | Leaf | None) -> None:
        self._turn.write_part(self._name + suffix, value)


def _position(leaves: tuple[tuple[str, int], ...], key: str) -> int:
    """Of the leaf whose range holds `key`; -1 before the first leaf."""
    return bisect_right(leaves, key, key=lambda leaf: leaf[0]) - 1
