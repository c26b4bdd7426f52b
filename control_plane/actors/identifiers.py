"""Cluster-wide integer ids, reserved in blocks from a counter row in the commit that uses them."""

from dataclasses import dataclass

from control_plane.actors.step import StepContext

COUNTERS = "counters"
BLOCK_MAX = 64
# A block is this part of the ids that an actor has: few stay unused, and the counter, which all
# actors contend for, is written less often the more they take.
BLOCK_SHARE = 8


@dataclass(frozen=True, slots=True)
class IdBlock:
    """Reserved ids that are not used yet: from `first` up to `end`, which is not among them."""

    first: int = 0
    end: int = 0


def block_size(taken: int) -> int:
    """The number of ids to reserve for an actor that has taken so many: an eighth, so that small
    experiments have consecutive ids, as in Determined, and large ones seldom write the counter.
    """
    return max(1, min(BLOCK_MAX, taken // BLOCK_SHARE))


def take_ids(
    counter: str, block: IdBlock, count: int, context: StepContext, size: int = BLOCK_MAX
) -> tuple[IdBlock, list[int]]:
    """Take `count` ids from a block, and reserve another block of `size` if this one runs out.

    Returns the rest of the block and the ids. The commit fails if the counter row changed
    meanwhile. A block is used up before the next one, so the ids of one actor ascend without gaps.
    """
    ids = list(range(block.first, min(block.end, block.first + count)))
    missing = count - len(ids)
    if missing == 0:
        return IdBlock(block.first + count, block.end), ids
    row = context.row(COUNTERS, counter)
    start = int(row.body or b"1")
    end = start + max(size, missing)
    context.write_row(COUNTERS, counter, b"%d" % end, expected=row)
    return IdBlock(start + missing, end), ids + list(range(start, start + missing))
