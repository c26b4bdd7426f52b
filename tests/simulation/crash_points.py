"""At which of its commits a process of a crash proof dies: a sample in the gate, all at night.

CRASH_STRIDE=1 takes every commit but for the big scenarios, CRASH_SEED=... another sample. Both are
fixed otherwise: a gate that was green is green again on the same tree.
"""

import os
from random import Random

from simulator.faults.table_faults import CrashMoment

SEED = int(os.environ.get("CRASH_SEED") or 1)
# Commits between two crash points: of a big scenario, of any other, of one on DynamoDB, of one on
# Firestore, of which the gate has some only, and of a collection or a pool's life, which are short.
STRIDE_BIG = 48
STRIDE = int(os.environ.get("CRASH_STRIDE") or 13)
STRIDE_DYNAMODB = 4 * STRIDE
STRIDE_FIRESTORE = 11
STRIDE_SHORT = (STRIDE + 2) // 3
WHENS: tuple[CrashMoment, CrashMoment] = ("before", "after")


def crash_points(
    commits: int,
    always: tuple[int, ...] = (),
    stride: int = STRIDE,
    drawn: Random | None = None,
) -> list[int]:
    """Return which commits to die at, from 1: every `stride`-th and those of `always`."""
    offset = (drawn or Random(SEED)).randrange(min(stride, commits))
    return sorted({*always, *range(1 + offset, commits + 1, stride)})
