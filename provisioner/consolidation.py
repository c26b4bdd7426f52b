"""Consolidation: the count of spare instances, and the marks of the start times. Pure.

An instance is spare if it is idle, or if its work would fit into the free slots of another instance
of its size. Running work is never moved. The scheduler places new work where the fewest slots are
free, so spare instances run out of work. Once an instance has been spare for the pool's idle
period, any idle instance of that size may be drained, however short its own idle time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from provisioner.model import ConnectedAgent

SpareMarks = Mapping[int, tuple[int, ...]]
"""Start times of spare instances by instance size in slots, in epoch milliseconds.

The Nth time of a size is the time since which the pool has had at least N spare instances.
"""


def count_spare(instances: Iterable[tuple[int, ConnectedAgent]]) -> Counter[int]:
    """Return the number of spare instances of each size. A size without an instance is absent.

    An idle instance is spare. So is an instance whose work would fit into the free slots of another
    instance of its size. The free slots are used once, and an instance to which work would move is
    not spare. An instance with a zero-slot allocation is not spare either. `instances` has the size
    in slots and the agent of each instance that takes work. A size without a spare instance has the
    count 0.
    """
    by_size: dict[int, list[ConnectedAgent]] = {}
    for size, agent in instances:
        by_size.setdefault(size, []).append(agent)
    return Counter({size: _count_spare_alike(agents) for size, agents in by_size.items()})


def updated_marks(marks: SpareMarks, counts: Mapping[int, int], now_ms: int) -> SpareMarks:
    """Return the marks for new counts of spare instances.

    Keep the oldest marks up to a size's count, and mark additional spare instances with `now_ms`.
    Drop sizes that `counts` lacks or that have the count 0. Replace marks in the future, from a
    clock that was ahead, by `now_ms`.
    """
    after = {}
    for size, count in counts.items():
        kept = [min(mark_ms, now_ms) for mark_ms in marks.get(size, ())[:count]]
        after[size] = (*kept, *[now_ms] * (count - len(kept)))
    return {size: kept for size, kept in after.items() if kept}


def marks_after_end(marks: SpareMarks, size: int) -> SpareMarks:
    """Return new marks after a spare instance with `size` slots has been drained.

    A mark is the time since when an instance has been spare. The oldest mark of the size is
    removed. A size without a mark gets the entry (). Marks of other sizes stay.
    """
    return {**marks, size: marks.get(size, ())[1:]}


def _count_spare_alike(agents: Sequence[ConnectedAgent]) -> int:
    """Return the number of spare agents among agents of equal size, starting with the least work.

    An idle agent is spare. Each busy spare agent reserves free slots of another agent for its work:
    the agent with the fewest slots that suffice, not a spare one. An agent with reserved slots is
    not spare, and neither is an agent with a zero-slot allocation.
    """
    order = sorted(agents, key=lambda agent: (not agent.idle, agent.used_slots))
    free = {number: agent.free_slots for number, agent in enumerate(order)}
    targets: set[int] = set()
    spare = 0
    for number, agent in enumerate(order):
        if agent.idle and number not in targets:
            spare += 1
            del free[number]
        elif agent.is_movable and number not in targets:
            others = (
                other for other in free if other != number and free[other] >= agent.used_slots
            )
            target = min(others, key=lambda other: free[other], default=None)
            if target is not None:
                spare += 1
                del free[number]
                free[target] -= agent.used_slots
                targets.add(target)
    return spare
