"""How many instances of what are launched for what waits.

With one size of instance this is the decider of Determined 0.19: the slots of what waits, capped
for each job by what it may still have, in whole instances, less those that are about to come. With
several sizes each request counts for the first offering that can hold it, alone or as one of
several whole instances, and what is about to come counts in slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from control_plane.fleet.records import Market, Offering
from provisioner.model import Demand, JobDemand, Launch, ProvisionerSettings


@dataclass(frozen=True, slots=True)
class Bounds:
    """Instances to be launched: at least, whatever waits, and at most."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Instances that are there or about to come: all of them, and those on demand."""

    total: int
    on_demand: int


@dataclass
class Coming:
    """Slots of an instance about to come that nobody counts on yet."""

    slots: int
    market: Market


class Need(NamedTuple):
    """What a request asks for. `single_agent`: it is never spread; `market`: as in JobDemand."""

    slots: int
    single_agent: bool
    market: Market | None = None


def holds(slots: int, need: Need, instances_max: int) -> bool:
    """Whether a request fits into one instance of so many slots, or into several that it fills."""
    if need.slots <= slots:
        return True
    whole = slots > 0 and need.slots % slots == 0 and not need.single_agent
    return whole and need.slots // slots <= instances_max


def wanted(
    demand: Demand,
    order: Sequence[Offering],
    coming: Sequence[Offering],
    instances_max: int,
    on_demand: Sequence[Offering] = (),
) -> tuple[Launch, ...]:
    """What would serve everything that waits, beside the instances in `coming`. `order`: what may
    be had, the best first; `on_demand`: what may be for those that must have it, whatever `order`.
    """
    credit = [Coming(offering.slots, offering.market) for offering in coming]
    launches = []
    left = _needs(demand)
    for offering in (*order, *(it for it in on_demand if it not in order)):
        needs = {
            need
            for need in left
            if holds(offering.slots, need, instances_max)
            and (need.market is offering.market or (need.market is None and offering in order))
        }
        left -= needs
        slots = sum(_slots_of(job, needs) for job in demand.jobs)
        slots -= _credited(slots, credit, needs, instances_max)
        if slots > 0:
            launches.append(Launch(offering, ceil(slots / offering.slots)))
    return _with_aux(launches, demand, order, len(coming))


def bounded(launches: Sequence[Launch], bounds: Bounds, first: Offering) -> tuple[Launch, ...]:
    """The same within the bounds; what is lacking is of `first`. The upper bound is the law."""
    kept: list[Launch] = []
    left = max(0, bounds.most)
    for launch in launches:
        count = min(left, launch.count)
        kept += [Launch(launch.offering, count)] if count else []
        left -= count
    total = sum(launch.count for launch in kept)
    lacking = min(left, bounds.least - total)
    return tuple(kept if lacking <= 0 else _merged([*kept, Launch(first, lacking)]))


def mixed(
    launches: Sequence[Launch],
    settings: ProvisionerSettings,
    on_demand: Sequence[Offering],
    there: Mix,
) -> tuple[Launch, ...]:
    """The same with as much on demand as the base share asks for, where that can be had."""
    total = there.total + sum(launch.count for launch in launches)
    lacking = ceil(settings.on_demand_base * total) - there.on_demand
    lacking -= sum(it.count for it in launches if it.offering.market is Market.ON_DEMAND)
    done: list[Launch] = []
    for launch in launches:
        slots = launch.offering.slots
        instead = next((it for it in on_demand if it.slots == slots), None)
        swaps = launch.offering.market is Market.SPOT and instead is not None
        count = min(launch.count, max(0, lacking)) if swaps else 0
        if instead is not None and count:
            done.append(Launch(instead, count))
            lacking -= count
        if launch.count > count:
            done.append(Launch(launch.offering, launch.count - count))
    return tuple(_merged(done))


def too_large(demand: Demand, offerings: Sequence[Offering], instances_max: int) -> list[int]:
    """Sizes that wait and that no offering can hold."""
    large = {
        need.slots
        for need in _needs(demand)
        if not any(holds(it.slots, need, instances_max) for it in offerings)
    }
    return sorted(large)


def _needs(demand: Demand) -> set[Need]:
    return {_need(size, job) for job in demand.jobs for size in job.sizes}


def _need(size: int, job: JobDemand) -> Need:
    return Need(size, job.single_agent, job.market)


def _slots_of(job: JobDemand, needs: set[Need]) -> int:
    """Slots that the job can use at once: whole requests, the small ones first."""
    room, total = job.room, 0
    for size, count in sorted(job.sizes.items()):
        if _need(size, job) not in needs:
            continue
        if room is not None:
            count = min(count, max(0, room - total) // size)
        total += count * size
    return total


def _credited(slots: int, credit: list[Coming], needs: set[Need], instances_max: int) -> int:
    """Slots of `slots` that instances about to come serve; what they serve is used up."""
    used = 0
    for coming in credit:
        fits = (
            holds(coming.slots, need, instances_max) and need.market in (None, coming.market)
            for need in needs
        )
        if coming.slots and any(fits):
            taken = min(coming.slots, slots - used)
            used += taken
            coming.slots -= taken
    return used


def _with_aux(
    launches: list[Launch], demand: Demand, order: Sequence[Offering], coming: int
) -> tuple[Launch, ...]:
    """Enough instances for requests without slots too, which share them with the others."""
    if not demand.aux_per_agent or not order:
        return tuple(launches)
    needed = ceil(demand.zero_slot / demand.aux_per_agent) - coming
    lacking = needed - sum(launch.count for launch in launches)
    return tuple(_merged([*launches, Launch(order[0], lacking)] if lacking > 0 else launches))


def _merged(launches: Sequence[Launch]) -> Iterator[Launch]:
    counts: dict[Offering, int] = {}
    for launch in launches:
        counts[launch.offering] = counts.get(launch.offering, 0) + launch.count
    return (Launch(offering, count) for offering, count in counts.items())
