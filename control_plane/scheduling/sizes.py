"""The sizes of allocations that agents can ever run, and advice for other sizes."""

from collections.abc import Mapping
from itertools import islice

from detcloud.shared.plurals import count_text

# The pool takes the slots of all agents of a gang in a single commit.
AGENTS_MAX = 29
"""The maximum number of agents of a gang."""
LARGER_SIZES_MAX = 2
"""The number of larger sizes to advise, in addition to the nearest smaller size."""


def gang_shape(
    slots: int, unused: Mapping[int, int], heterogeneous: bool
) -> tuple[tuple[int, int], ...]:
    """Return the whole agents with exactly `slots` slots together, as (size, count), the largest
    first.

    All agents of a gang have one size: the largest that divides `slots` and has enough agents. Only
    if no size qualifies, a heterogeneous gang combines sizes. It takes as many agents as possible
    of the largest size, then of the next, and must add up exactly. Return () if the agents cannot
    form the gang, or if the gang needs more than `AGENTS_MAX` agents.

    Args:
        slots: the slots of the gang, at least 1.
        unused: the number of unused agents by size.
        heterogeneous: whether the agents of a gang may differ in size.
    """
    sizes = sorted((size for size, count in unused.items() if size > 0 < count), reverse=True)
    for size in sizes:
        if slots % size == 0 and slots <= size * min(unused[size], AGENTS_MAX):
            return ((size, slots // size),)
    return _mixed_gang(slots, unused, sizes) if heterogeneous else ()


def can_hold(
    slots: int, sizes: Mapping[int, int], single_agent: bool = False, heterogeneous: bool = False
) -> bool:
    """Return whether unused agents of certain sizes could run a request for `slots` slots.

    A single agent of at least this size suffices. Otherwise, unless `single_agent` is set, the
    agents must be able to form a gang; see `gang_shape`. Return False without agents.

    Args:
        sizes: the number of agents by size.
    """
    if any(slots <= size for size, count in sizes.items() if count > 0):
        return True
    return not single_agent and slots > 1 and bool(gang_shape(slots, sizes, heterogeneous))


def fitting_sizes(
    request_slots: int,
    agent_slots: Mapping[int, int],
    single_agent: bool = False,
    heterogeneous: bool = False,
) -> tuple[int, ...]:
    """Return the sizes nearest to `request_slots` that the agents could run, in ascending order.

    Return only `request_slots` if the agents can run it. Otherwise return at most one smaller size
    and LARGER_SIZES_MAX larger sizes. With `single_agent`, no larger size is returned. Return () if
    the agents have no slots.

    Args:
        agent_slots: the number of agents by size, as many as the pool can ever have.
    """

    def can_run(slots: int) -> bool:
        return can_hold(slots, agent_slots, single_agent, heterogeneous)

    if can_run(request_slots):
        return (request_slots,)
    most = sum(size * count for size, count in agent_slots.items())
    smaller = filter(can_run, range(min(request_slots, most + 1) - 1, 0, -1))
    larger = () if single_agent else filter(can_run, range(request_slots + 1, most + 1))
    return (*islice(smaller, 1), *islice(larger, LARGER_SIZES_MAX))


def size_advice(
    request_slots: int,
    agent_slots: Mapping[int, int],
    single_agent: bool = False,
    heterogeneous: bool = False,
) -> str:
    """Return a text for users about why a request can never run, and which sizes could.

    For example "needs 12 slots: agents have 8; it would fit with 8, 16 or 24". The text names no
    sizes if no size fits.

    Args:
        agent_slots: the number of agents by size.
    """
    sizes = sorted(size for size, count in agent_slots.items() if size > 0 < count)
    if not sizes:
        return f"needs {count_text(request_slots, 'slot')}: no agent has slots"
    fits = fitting_sizes(request_slots, agent_slots, single_agent, heterogeneous)
    on_one = " on one agent" if single_agent else ""
    instead = f"; it would fit with {_list_text(fits, 'or')}" if fits else ""
    have = f"agents have {_list_text(sizes, 'or')}"
    could_sum_up = sum(size * agent_slots[size] for size in sizes) >= request_slots
    if could_sum_up and not single_agent and request_slots > sizes[-1] * AGENTS_MAX:
        have += f", and a trial spans at most {AGENTS_MAX} agents"
    return f"needs {count_text(request_slots, 'slot')}{on_one}: {have}{instead}"


def _mixed_gang(
    slots: int, unused: Mapping[int, int], sizes: list[int]
) -> tuple[tuple[int, int], ...]:
    """Return agents of several sizes with exactly `slots` slots, chosen from the largest size down.

    Return () if the greedy choice does not add up or needs more than `AGENTS_MAX` agents.

    Args:
        unused: the number of unused agents by size.
        sizes: the sizes with unused agents, the largest first.
    """
    taken: list[tuple[int, int]] = []
    for size in sizes:
        count = min(unused[size], slots // size)
        if count:
            taken.append((size, count))
            slots -= size * count
    agents = sum(count for _, count in taken)
    return tuple(taken) if slots == 0 and agents <= AGENTS_MAX else ()


def _list_text(numbers: tuple[int, ...] | list[int], last: str) -> str:
    """Return the numbers separated by commas, with the word `last` before the last number.

    A single number stands alone. Raises ValueError without numbers.
    """
    *most, final = map(str, numbers)
    return f"{', '.join(most)} {last} {final}" if most else final
