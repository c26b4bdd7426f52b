"""Commits at which a process of a crash proof dies: a sample in the gate, all at night.

CRASH_STRIDE=1 selects every commit, except for the big scenarios. CRASH_SEED=... draws a different
sample. Fixed defaults let a green gate stay green on the same tree.
"""

import os
from random import Random

from simulator.faults.table_faults import CrashMoment

SEED = int(os.environ.get("CRASH_SEED") or 1)
# Commits between two crash points, by kind of scenario. Collections and the life of a pool are
# short; the gate runs only some scenarios on Firestore.
STRIDE_BIG = 64
STRIDE = int(os.environ.get("CRASH_STRIDE") or 19)
STRIDE_DYNAMODB = 3 * STRIDE
STRIDE_FIRESTORE = 11
STRIDE_SHORT = (STRIDE + 2) // 3
WHENS: tuple[CrashMoment, CrashMoment] = ("before", "after")


def crash_points(
    commits: int,
    always: tuple[int, ...] = (),
    stride: int = STRIDE,
    drawn: Random | None = None,
) -> list[int]:
    """Return the sorted numbers of commits to die at, from 1 to `commits`.

    Every `stride`-th commit from a random offset is included, and all of `always`.
    """
    offset = (drawn or Random(SEED)).randrange(min(stride, commits))
    return sorted({*always, *range(1 + offset, commits + 1, stride)})
