"""The numbers of slots that agents can ever give to one allocation, and which to advise instead."""

from collections.abc import Mapping
from itertools import islice

# The most agents of one gang: the pool takes slots of all of them in one commit.
AGENTS_MAX = 29
# Larger sizes to advise beside the nearest smaller one.
LARGER_SIZES_MAX = 2


def gang_shape(
    slots: int, unused: Mapping[int, int], heterogeneous: bool
) -> tuple[tuple[int, int], ...]:
    """The whole agents of which sizes that hold `slots`, as (size, count), biggest first; () if
    they cannot.

    `unused` counts the agents of each size. All of a gang are of one size, the biggest of which
    there are enough and that divides `slots`. Without such a size a heterogeneous gang takes as
    many as possible of the biggest, then of the next, and must come out even. At most AGENTS_MAX
    agents take part.
    """
    sizes = sorted((size for size, count in unused.items() if size > 0 < count), reverse=True)
    for size in sizes:
        if slots % size == 0 and slots <= size * min(unused[size], AGENTS_MAX):
            return ((size, slots // size),)
    return _mixed_gang(slots, unused, sizes) if heterogeneous else ()


def can_hold(
    slots: int, sizes: Mapping[int, int], single_agent: bool = False, heterogeneous: bool = False
) -> bool:
    """Whether agents of these sizes could hold `slots` if nobody else used them."""
    if any(slots <= size for size, count in sizes.items() if count > 0):
        return True
    return not single_agent and slots > 1 and bool(gang_shape(slots, sizes, heterogeneous))


def fitting_sizes(
    request_slots: int,
    agent_slots: Mapping[int, int],
    single_agent: bool = False,
    heterogeneous: bool = False,
) -> tuple[int, ...]:
    """The sizes nearest to `request_slots` that agents could hold, ascending: the size itself if
    they can hold it, else one smaller and two larger ones where there are such.

    `agent_slots` counts the agents of each size, as many as the pool can ever have.
    """

    def holds(slots: int) -> bool:
        return can_hold(slots, agent_slots, single_agent, heterogeneous)

    if holds(request_slots):
        return (request_slots,)
    most = sum(size * count for size, count in agent_slots.items())
    smaller = filter(holds, range(min(request_slots, most + 1) - 1, 0, -1))
    larger = () if single_agent else filter(holds, range(request_slots + 1, most + 1))
    return (*islice(smaller, 1), *islice(larger, LARGER_SIZES_MAX))


def size_advice(
    request_slots: int,
    agent_slots: Mapping[int, int],
    single_agent: bool = False,
    heterogeneous: bool = False,
) -> str:
    """Why a request can never be held and what could be: "needs 12 slots: agents have 8; it would
    fit with 8, 16 or 24".
    """
    known = sorted(size for size, count in agent_slots.items() if size > 0 < count)
    if not known:
        return f"needs {slots_text(request_slots)}: no agent has slots"
    fits = fitting_sizes(request_slots, agent_slots, single_agent, heterogeneous)
    on_one = " on one agent" if single_agent else ""
    instead = f"; it would fit with {_list_text(fits, 'or')}" if fits else ""
    have = f"agents have {_list_text(known, 'or')}"
    if not single_agent and request_slots > known[-1] * AGENTS_MAX:
        have += f", and a trial spans at most {AGENTS_MAX} agents"
    return f"needs {slots_text(request_slots)}{on_one}: {have}{instead}"


def slots_text(slots: int) -> str:
    """A number of slots in words: 1 slot, 2 slots."""
    return f"{slots} slot" if slots == 1 else f"{slots} slots"


def _mixed_gang(
    slots: int, unused: Mapping[int, int], sizes: list[int]
) -> tuple[tuple[int, int], ...]:
    taken: list[tuple[int, int]] = []
    for size in sizes:
        count = min(unused[size], slots // size)
        if count:
            taken.append((size, count))
            slots -= size * count
    agents = sum(count for _, count in taken)
    return tuple(taken) if slots == 0 and agents <= AGENTS_MAX else ()


def _list_text(numbers: tuple[int, ...] | list[int], last: str) -> str:
    *most, final = map(str, numbers)
    return f"{', '.join(most)} {last} {final}" if most else final
