"""Cluster-wide integer ids, reserved in blocks from a counter row in the commit that uses them."""

from dataclasses import dataclass

from control_plane.actors.step import Turn

COUNTERS = "counters"
BLOCK = 64


@dataclass(frozen=True, slots=True)
class IdBlock:
    """Ids reserved and not used yet: `first` to `end`, without `end`."""

    first: int = 0
    end: int = 0


def take(counter: str, block: IdBlock, count: int, turn: Turn) -> tuple[IdBlock, list[int]]:
    """`count` ids and what is left; reserves more when the block runs out. The counter row is
    guarded.

    A block that runs out is used up first, so ids of one actor grow and none is lost.
    """
    ids = list(range(block.first, min(block.end, block.first + count)))
    missing = count - len(ids)
    if missing == 0:
        return IdBlock(block.first + count, block.end), ids
    seen = turn.row(COUNTERS, counter)
    start = int(seen.body or b"1")
    end = start + max(BLOCK, missing)
    turn.write_row(COUNTERS, counter, b"%d" % end, seen=seen)
    return IdBlock(start + missing, end), ids + list(range(start, start + missing))
