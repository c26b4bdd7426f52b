"""Cluster-wide integer ids, reserved in blocks from a counter row in the commit that uses them."""

from dataclasses import dataclass

from control_plane.actors.step import StepContext

COUNTERS = "counters"
BLOCK = 64


@dataclass(frozen=True, slots=True)
class IdBlock:
    """Reserved ids that are not used yet: from `first` up to `end`, which is not among them."""

    first: int = 0
    end: int = 0


def take_ids(
    counter: str, block: IdBlock, count: int, context: StepContext
) -> tuple[IdBlock, list[int]]:
    """Take `count` ids from a block, and reserve another block if this one runs out.

    Returns the rest of the block and the ids. The commit fails if the counter row changed
    meanwhile. A block is used up before the next one, so the ids of one actor ascend without gaps.
    """
    ids = list(range(block.first, min(block.end, block.first + count)))
    missing = count - len(ids)
    if missing == 0:
        return IdBlock(block.first + count, block.end), ids
    row = context.row(COUNTERS, counter)
    start = int(row.body or b"1")
    end = start + max(BLOCK, missing)
    context.write_row(COUNTERS, counter, b"%d" % end, expected=row)
    return IdBlock(start + missing, end), ids + list(range(start, start + missing))
