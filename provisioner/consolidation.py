"""Consolidation: how many instances the running work could do without, and for how long.

Nothing that runs is interrupted, so no instance is emptied. An instance is spare while nothing runs
on it, or while all that runs on it would fit into the free slots of another one of its size. Work
is placed where the fewest slots are free, so that spare instances run out of work by themselves;
once there was one for as long as an idle agent is kept, any one without work may go in its place,
however short it has been idle.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from provisioner.model import ConnectedAgent

SpareMarks = Mapping[int, tuple[int, ...]]
"""By the instances' slots: since when there is at least one spare instance, at least two, and so
on, the oldest first.
"""


def count_spare(instances: Iterable[tuple[int, ConnectedAgent]]) -> Counter[int]:
    """Count the spare instances of each size, given the slots and the agent of each one that takes
    work.
    """
    by_size: dict[int, list[ConnectedAgent]] = {}
    for size, agent in instances:
        by_size.setdefault(size, []).append(agent)
    return Counter({size: _count_spare_alike(agents) for size, agents in by_size.items()})


def updated_marks(marks: SpareMarks, counts: Mapping[int, int], now_ms: int) -> SpareMarks:
    """The marks once there are so many spare instances of each size. One that a clock which was
    ahead has set is of now.
    """
    after = {}
    for size, count in counts.items():
        kept = [min(mark_ms, now_ms) for mark_ms in marks.get(size, ())[:count]]
        after[size] = (*kept, *[now_ms] * (count - len(kept)))
    return {size: kept for size, kept in after.items() if kept}


def marks_after_end(marks: SpareMarks, size: int) -> SpareMarks:
    """The marks after an instance of that size has ended: where there were two spare ones, there
    is one.
    """
    return {**marks, size: marks.get(size, ())[1:]}


def _count_spare_alike(agents: Sequence[ConnectedAgent]) -> int:
    """Count the spare ones among agents of one size, those with the least work first. One whose
    free slots are meant for the work of another stays.
    """
    order = sorted(agents, key=lambda agent: (not agent.idle, agent.used_slots))
    free = {number: agent.free_slots for number, agent in enumerate(order)}
    meant: set[int] = set()
    spare = 0
    for number, agent in enumerate(order):
        if agent.idle and number not in meant:
            spare += 1
            del free[number]
        elif agent.is_movable and number not in meant:
            others = (
                other for other in free if other != number and free[other] >= agent.used_slots
            )
            target = min(others, key=lambda other: free[other], default=None)
            if target is not None:
                spare += 1
                del free[number]
                free[target] -= agent.used_slots
                meant.add(target)
    return spare
