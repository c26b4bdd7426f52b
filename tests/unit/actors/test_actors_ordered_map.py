"""The ordered map in parts, compared with a dict and a sorted list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.ordered_map import (
    LEAF_MAX,
    NODE_MAX,
    Directory,
    Entries,
    Leaf,
    OrderedMap,
)
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.engine.actor_types import ACTOR_TYPES


class PartStore:
    """The parts of an actor; `written` has the names of parts from the last change."""

    def __init__(self, leaf_max: int) -> None:
        self.parts: dict[str, object] = {}
        self.written: list[str] = []
        self._leaf_max = leaf_max

    def part(self, name: str) -> object | None:
        return self.parts.get(name)

    def row(self, partition: str, sort: str) -> ObservedRow:
        raise AssertionError("an ordered map reads no rows")

    def map(self) -> OrderedMap:
        return OrderedMap(self._context(), "queue", self._leaf_max)

    def put(self, key: str, value: object) -> None:
        context = self._context()
        OrderedMap(context, "queue", self._leaf_max).put(key, value)
        self._store_parts(context)

    def remove(self, key: str) -> None:
        context = self._context()
        OrderedMap(context, "queue", self._leaf_max).remove(key)
        self._store_parts(context)

    def leaves(self) -> list[Leaf]:
        """Return all leaves and nodes."""
        return [part for part in self.parts.values() if isinstance(part, Leaf)]

    def sizes(self) -> list[Entries]:
        """Return the number of entries of each leaf and node."""
        return [leaf.entries for leaf in self.leaves()]

    def depth(self) -> int:
        directory = self.parts.get("queue", Directory())
        assert isinstance(directory, Directory)
        return directory.depth

    def _context(self) -> StepContext:
        return StepContext("pool#default", 0, self)

    def _store_parts(self, context: StepContext) -> None:
        self.written = list(context.parts)
        for name, value in context.parts.items():
            if value is None:
                del self.parts[name]
            else:
                self.parts[name] = value


def filled_store(count: int, leaf_max: int = LEAF_MAX) -> PartStore:
    shelf = PartStore(leaf_max)
    for number in range(count):
        shelf.put(f"{number:06d}", number)
    return shelf


KEYS = st.text("abc\u00e9\U0001f600", max_size=3)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, st.integers(0, 9)), max_size=60)


@settings(deadline=None, derandomize=True)
@given(CHANGES, st.integers(2, 5))
def test_ordered_map_behaves_as_a_sorted_dict(
    changes: list[tuple[bool, str, int]], leaf_max: int
) -> None:
    shelf, expected = PartStore(leaf_max), dict[str, int]()
    for is_put, key, value in changes:
        if is_put:
            shelf.put(key, value)
            expected[key] = value
        else:
            shelf.remove(key)
            expected.pop(key, None)
        assert len(shelf.written) <= 3 + 2 * shelf.depth()
        assert shelf.map().get(key) == expected.get(key)
    assert list(shelf.map().items()) == sorted(expected.items())
    leaves = list(shelf.map().leaves())
    assert all(1 <= len(leaf.entries) <= leaf_max for leaf in leaves)
    nodes = [part for part in shelf.leaves() if part not in leaves]
    assert all(1 <= len(node.entries) <= NODE_MAX for node in nodes)
    # Every stored part is reachable.
    assert len(shelf.parts) == ("queue" in shelf.parts) + len(leaves) + len(nodes)


def test_empty_map_has_no_entries() -> None:
    shelf = PartStore(4)
    assert shelf.map().get("a") is None
    assert list(shelf.map().items()) == []
    shelf.remove("a")
    assert shelf.written == []


def test_removal_of_an_absent_key_writes_no_part() -> None:
    shelf = filled_store(3)
    for key in ("", "000001x", "zzz"):
        shelf.remove(key)
        assert shelf.written == []


def test_full_leaf_splits_in_halves() -> None:
    shelf = filled_store(LEAF_MAX)
    assert len(shelf.leaves()) == 1
    shelf.put("000000x", 64)
    assert sorted(set(shelf.written)) == ["queue", "queue/0", "queue/1"]
    # 65 entries: 65 // 2 = 32 stay, 33 go.
    assert sorted(len(leaf.entries) for leaf in shelf.leaves()) == [32, 33]


def test_new_last_key_begins_the_next_leaf() -> None:
    shelf = filled_store(LEAF_MAX + 1)
    assert [len(leaf.entries) for leaf in shelf.map().leaves()] == [LEAF_MAX, 1]


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.permutations(range(400)), st.integers(1, 3))
def test_long_directory_is_divided(order: list[int], leaf_max: int) -> None:
    shelf, expected = PartStore(leaf_max), dict[str, int]()
    for number in order:
        shelf.put(f"{number:06d}", number)
        expected[f"{number:06d}"] = number
    assert shelf.depth() >= 1
    assert list(shelf.map().items()) == sorted(expected.items())
    assert next(iter(shelf.map().items("000123x"))) == ("000124", 124)
    largest = max(map(len, shelf.sizes()))
    assert largest <= NODE_MAX
    for number in order[:-1]:
        shelf.remove(f"{number:06d}")
        assert shelf.map().get(f"{number:06d}") is None
    assert list(shelf.map().items()) == [(f"{order[-1]:06d}", order[-1])]
    shelf.remove(f"{order[-1]:06d}")
    assert [name for name in shelf.parts if "/" in name] == []
    shelf.put("again", 1)
    assert list(shelf.map().items()) == [("again", 1)]


def test_written_parts_stay_small_in_large_maps() -> None:
    few, many = filled_store(100, leaf_max=4), filled_store(20_000, leaf_max=4)
    for shelf in (few, many):
        shelf.put("000050x", 1)
        for name in shelf.written:
            part = shelf.parts[name]
            assert isinstance(part, Directory | Leaf)
            assert len(part.leaves if isinstance(part, Directory) else part.entries) <= NODE_MAX


def test_number_of_a_removed_leaf_is_not_used_again() -> None:
    shelf = filled_store(5, leaf_max=4)
    for key in ("000002", "000003", "000004"):
        shelf.remove(key)
    assert "queue/1" not in shelf.parts
    for number in range(5, 9):
        shelf.put(f"{number:06d}", number)
    assert "queue/1" not in shelf.parts
    assert [key for key, _ in shelf.map().items()] == [f"{n:06d}" for n in (0, 1, 5, 6, 7, 8)]


def test_new_first_key_updates_the_first_leaf() -> None:
    shelf = filled_store(10, leaf_max=4)
    shelf.put("", "first")
    assert next(shelf.map().items()) == ("", "first")
    assert shelf.map().get("000000") == 0


def test_change_writes_a_single_leaf_in_any_size() -> None:
    shelf = filled_store(2000)
    shelf.put("000777", "changed")
    assert len(shelf.written) == 1
    shelf.remove("001234")
    assert len(shelf.written) == 1
    assert len(shelf.leaves()) > 2000 // LEAF_MAX


def test_items_are_read_leaf_by_leaf() -> None:
    shelf = filled_store(200, leaf_max=4)
    read: list[str] = []

    class RecordingStore(PartStore):
        def part(self, name: str) -> object | None:
            read.append(name)
            return shelf.part(name)

    next(RecordingStore(4).map().items())
    # The directory, a node and a leaf.
    assert len(read) == 3


def test_changes_in_the_same_context_are_visible() -> None:
    shelf = PartStore(2)
    context = StepContext("pool#default", 0, shelf)
    ordered = OrderedMap(context, "queue", 2)
    for key in "dcba":
        ordered.put(key, key.upper())
    ordered.remove("c")
    assert list(ordered.items()) == [("a", "A"), ("b", "B"), ("d", "D")]
    assert shelf.parts == {}


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=30), st.text("abc", max_size=3))
def test_first_entry_reads_a_single_leaf(keys: list[str], key: str) -> None:
    shelf = PartStore(4)
    for one in keys:
        shelf.put(one, 1)
    assert shelf.map().first_entry(key) == next(shelf.map().items(key), None)
    entries = [entry for leaf in shelf.map().leaves() for entry in leaf.entries]
    assert entries == list(shelf.map().items())


def test_computed_value_is_cached_and_not_stored() -> None:
    looked: list[int] = []

    def count(entries: Entries, more: int) -> int:
        looked.append(len(entries))
        return len(entries) + more

    leaf = Leaf((("a", 1), ("b", 2)))
    assert (leaf.compute_once(count, 1), leaf.compute_once(count, 1)) == (3, 3)
    assert looked == [2]
    assert (leaf.compute_once(count, 2), leaf.compute_once(count, 2)) == (4, 4)
    assert looked == [2, 2]
    assert leaf == Leaf((("a", 1), ("b", 2)))
    kind = ACTOR_TYPES["pool"]
    assert kind.encode_part("groups/0", leaf) == b'{"entries":[["a",1],["b",2]]}'
