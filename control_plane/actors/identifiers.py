"""Cluster-wide integer ids.

An actor reserves blocks of ids in a counter row, in the commit that uses them.
"""

from dataclasses import dataclass

from control_plane.actors.step import StepContext
from control_plane.rows import experiment_rows

COUNTERS = experiment_rows.COUNTER.partition
BLOCK_MAX = 64
# A block has an eighth of the ids that the actor has used, so that few ids stay unused. All actors
# contend for the counter row, and actors with many ids write the row less often.
BLOCK_SHARE = 8


@dataclass(frozen=True, slots=True)
class IdBlock:
    """A range of reserved ids that are not used yet."""

    first: int = 0
    """The first unused id."""
    end: int = 0
    """The end of the range, exclusive."""


def block_size(taken: int) -> int:
    """Return the number of ids to reserve for an actor that has used `taken` ids.

    The size is an eighth of `taken`, between 1 and BLOCK_MAX. Small experiments therefore have
    consecutive ids, as in Determined, and large ones seldom write the counter row.
    """
    return max(1, min(BLOCK_MAX, taken // BLOCK_SHARE))


def take_ids(
    counter: str, block: IdBlock, count: int, context: StepContext, size: int = BLOCK_MAX
) -> tuple[IdBlock, list[int]]:
    """Take `count` ids from a block. If the block runs out, reserve a block of at least `size` ids.

    The ids of the old block are used before those of the new one, in ascending order. A new block
    is a write of the counter row, and the commit fails if the row has changed meanwhile.

    Args:
        counter: the name of the counter row, for example "trial".
        block: the reserved ids that are not used yet.
        size: the number of ids to reserve, unless more are missing.

    Returns:
        The rest of the block, and the ids.
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
