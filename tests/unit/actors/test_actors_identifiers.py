from control_plane.actors.identifiers import BLOCK_MAX, IdBlock, block_size, take_ids
from control_plane.actors.step import ObservedRow, StepContext


class Counter:
    """A reader with a counter row."""

    def __init__(self, row: ObservedRow) -> None:
        self.row_seen = row

    def part(self, name: str) -> object | None:
        raise AssertionError("identifiers read no parts")

    def row(self, partition: str, sort: str) -> ObservedRow:
        assert (partition, sort) == ("counters", "trial")
        return self.row_seen


def context_with(revision: int, body: bytes) -> StepContext:
    return StepContext("experiment#1", 0, Counter(ObservedRow(revision, body)))


def test_first_block_begins_at_1() -> None:
    context = context_with(0, b"")
    assert take_ids("trial", IdBlock(), 3, context) == (IdBlock(4, 1 + BLOCK_MAX), [1, 2, 3])
    assert [row.body for row in context.rows] == [b"65"]


def test_reservation_guards_the_counter_row() -> None:
    context = context_with(9, b"129")
    take_ids("trial", IdBlock(), 1, context)
    (row,) = context.rows
    assert (row.partition, row.sort, row.expected) == ("counters", "trial", ObservedRow(9, b"129"))


def test_ids_of_a_reserved_block_need_no_write() -> None:
    context = context_with(1, b"65")
    assert take_ids("trial", IdBlock(4, 65), 61, context) == (IdBlock(65, 65), list(range(4, 65)))
    assert context.rows == []


def test_block_is_used_up_before_the_next() -> None:
    # 48 requested, 49..64 are left: 16 of these and 32 of the block from 193 on, which ends at 257.
    context = context_with(3, b"193")
    block, ids = take_ids("trial", IdBlock(49, 65), 48, context)
    assert ids == [*range(49, 65), *range(193, 225)]
    assert block == IdBlock(225, 257)


def test_request_larger_than_a_block_is_reserved_at_once() -> None:
    context = context_with(1, b"65")
    block, ids = take_ids("trial", IdBlock(), 100, context)
    assert ids == list(range(65, 165))
    assert block == IdBlock(165, 165)
    assert context.rows[0].body == b"165"


def test_zero_ids_need_no_write() -> None:
    context = context_with(1, b"65")
    assert take_ids("trial", IdBlock(7, 9), 0, context) == (IdBlock(7, 9), [])
    assert context.rows == []


def test_small_block_has_the_requested_size() -> None:
    context = context_with(2, b"17")
    # 1 of a block of 2, which is 17 and 18; a request for 5 with a size of 2 leaves no rest.
    assert take_ids("trial", IdBlock(), 1, context, size=2) == (IdBlock(18, 19), [17])
    assert take_ids("trial", IdBlock(), 5, context, size=2) == (IdBlock(22, 22), [*range(17, 22)])
    assert [row.body for row in context.rows][-1] == b"22"


def test_block_size_is_an_eighth_of_the_used_ids() -> None:
    taken = (0, 1, 15, 16, 24, 511, 512, 10_000)
    assert [block_size(number) for number in taken] == [1, 1, 1, 2, 3, 63, 64, 64]
