"""Drains and launches for overdue requests."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState, OfferingHealth
from control_plane.scheduling.reservations import OverdueSize
from provisioner.model import ConnectedAgent, Demand, JobDemand, ObservedInstance
from tests.unit.provisioner.fleet_table import (
    BIG,
    BUSY,
    IDLE,
    MINUTE_MS,
    NOW_MS,
    SMALL,
    idle_instance,
    instance,
    job_demand,
    launch_counts,
    running_with,
    scale_plan,
    starting_instance,
    state_changes,
)

TINY = replace(SMALL, name="tiny/a/on_demand", instance_type="tiny", slots=1, price_per_hour=1.0)
WORKING = ConnectedAgent(idle=False, work=(1,))
POOL: dict[str, Any] = {"offerings": (TINY, SMALL), "max_instances": 4}
GANG = Demand((job_demand(8), job_demand(1, 1, 1)), overdue=(OverdueSize(8),))


def tiny_fleet(names: Iterable[str]) -> list[tuple[InstanceRow, ObservedInstance]]:
    return [(instance(name, offering=TINY), running_with(WORKING)) for name in names]


def test_drains_as_few_busy_instances_as_needed() -> None:
    plan = scale_plan(tiny_fleet("abcd"), demand=GANG, **POOL)
    assert state_changes(plan) == {"a": "DRAINING", "b": "DRAINING"}
    assert plan.launches == ()
    reasons = {row.reason for row in plan.changed_rows if row.state is InstanceState.DRAINING}
    assert reasons == {"a request for 8 slots has waited too long and needs its place"}
    in_time = replace(GANG, overdue=())
    assert state_changes(scale_plan(tiny_fleet("abcd"), demand=in_time, **POOL)) == {}


def test_instances_without_work_drain_first() -> None:
    fleet = [*tiny_fleet("abc"), (idle_instance("d", 0.1, offering=TINY), running_with(IDLE))]
    plan = scale_plan(fleet, demand=GANG, **POOL)
    assert state_changes(plan) == {"a": "DRAINING", "d": "DRAINING"}


def test_room_is_kept_for_the_overdue_request_during_drains() -> None:
    drains = instance("c", offering=TINY, state=InstanceState.DRAINING, reason="as above")
    working, leaving = tiny_fleet("ab"), [(drains, running_with(WORKING))]
    # One instance has ended and one drains. Single-slot requests may not use the room.
    plan = scale_plan([*working, *leaving], demand=GANG, **POOL)
    assert (state_changes(plan), plan.launches) == ({}, ())
    assert plan.fleet.waits == "the pool has 4 instances, its maximum"
    plan = scale_plan(working, demand=GANG, **POOL)
    assert launch_counts(plan) == {SMALL.name: 2}
    # Without an overdue request, single-slot requests use the room.
    plan = scale_plan([*working, *leaving], job_demand(1, 1, 1), **POOL)
    assert launch_counts(plan) == {TINY.name: 1}


def test_single_agent_request_drains_one_instance() -> None:
    alone = JobDemand({4: 1}, single_agent=True)
    demand = Demand((alone, job_demand(1, 1)), overdue=(OverdueSize(4, single_agent=True),))
    plan = scale_plan(tiny_fleet("abcd"), demand=demand, **POOL)
    assert list(state_changes(plan).values()) == ["DRAINING"]
    # The overdue request precedes requests for the cheaper offering.
    assert launch_counts(scale_plan(tiny_fleet("abc"), demand=demand, **POOL)) == {SMALL.name: 1}


@pytest.mark.parametrize("agent", [IDLE, BUSY, None])
def test_no_instance_drains_if_an_instance_is_large_enough(agent: ConnectedAgent | None) -> None:
    row = instance("e", offering=BIG) if agent else starting_instance("e", offering=BIG)
    fleet = [*tiny_fleet("abc"), (row, running_with(agent))]
    offerings = (TINY, SMALL, BIG)
    plan = scale_plan(fleet, demand=GANG, **(POOL | {"offerings": offerings}))
    assert (state_changes(plan), plan.launches) == ({}, ())


def test_no_instance_drains_if_draining_would_not_suffice() -> None:
    # An instance disabled by an operator stays, but 16 slots would need all four places.
    disabled = ConnectedAgent(idle=True, takes_work=False, is_closed=True)
    fleet = [*tiny_fleet("abc"), (instance("d"), running_with(disabled))]
    demand = Demand((job_demand(16), job_demand(1)), overdue=(OverdueSize(16),))
    assert state_changes(scale_plan(fleet, demand=demand, **POOL)) == {}
    # Other requests use the room.
    plan = scale_plan(fleet[1:], demand=demand, **POOL)
    assert launch_counts(plan) == {TINY.name: 1}


def test_no_instance_drains_for_an_offering_in_back_off() -> None:
    closed = OfferingHealth(1, 0, ErrorKind.CAPACITY, "none", NOW_MS - 1, NOW_MS + MINUTE_MS)
    plan = scale_plan(tiny_fleet("abcd"), demand=GANG, health={SMALL.name: closed}, **POOL)
    assert state_changes(plan) == {}
    plan = scale_plan(tiny_fleet("abc"), demand=GANG, health={SMALL.name: closed}, **POOL)
    assert launch_counts(plan) == {TINY.name: 1}


def test_no_instance_drains_during_an_outage_or_hold() -> None:
    assert state_changes(scale_plan(tiny_fleet("abcd"), demand=GANG, api_down=True, **POOL)) == {}
    held_demand = replace(GANG, hold_reason="the pool drains: nothing starts in it")
    assert state_changes(scale_plan(tiny_fleet("abcd"), demand=held_demand, **POOL)) == {}


@dataclass
class _Pool:
    """A simulated pool in which every instance is busy until it drains."""

    sizes: tuple[int, ...]
    """The sizes of the pool's offerings, in slots."""
    max_instances: int
    demand: Demand
    passes: dict[str, int]
    """The number of passes until the present trial of each instance ends."""
    fleet: list[tuple[InstanceRow, ObservedInstance]] = field(default_factory=list)
    launched: int = 0

    def is_served(self) -> bool:
        """Return whether enough instances run or start for the overdue request."""
        slots, single_agent = self.demand.overdue[0]
        sizes = [
            row.offering.slots
            for row, _ in self.fleet
            if row.state in (InstanceState.RUNNING, InstanceState.STARTING)
        ]
        return any(
            slots <= size
            or (not single_agent and slots % size == 0 and sizes.count(size) * size >= slots)
            for size in sizes
        )

    def step(self) -> None:
        """Run a pass: apply the scale plan, and end or replace the instances' trials."""
        offerings = tuple(
            replace(TINY, name=f"size-{size}", slots=size, price_per_hour=float(size))
            for size in self.sizes
        )
        plan = scale_plan(
            self.fleet,
            demand=self.demand,
            offerings=offerings,
            max_instances=self.max_instances,
        )
        changed = {row.id: row for row in plan.changed_rows}
        fleet = []
        for before, _ in self.fleet:
            row = changed.get(before.id, before)
            if row.state is InstanceState.TERMINATING:
                continue
            left = self.passes[row.id] = self.passes[row.id] - 1
            is_draining = row.state is InstanceState.DRAINING
            if left <= 0 and not is_draining:
                self.passes[row.id] = 3
            busy = left > 0 or not is_draining
            work = (row.offering.slots,) if busy else ()
            agent = ConnectedAgent(not busy, not is_draining, work, is_closed=is_draining)
            fleet.append((row, running_with(agent)))
        for launch in plan.launches:
            for _ in range(launch.count):
                self.launched += 1
                name = f"new-{self.launched}"
                self.passes[name] = 3
                row = instance(name, offering=launch.offering)
                fleet.append((row, running_with(replace(BUSY, work=(launch.offering.slots,)))))
        self.fleet = fleet


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True),
    max_instances=st.integers(1, 8),
    slots=st.sampled_from([2, 4, 6, 8, 12, 16]),
    single_agent=st.booleans(),
    start=st.lists(st.sampled_from([1, 2, 4, 8]), max_size=8),
)
def test_overdue_request_is_served_after_the_longest_run(
    sizes: list[int], max_instances: int, slots: int, single_agent: bool, start: list[int]
) -> None:
    able = [
        size
        for size in sizes
        if slots <= size
        or (not single_agent and slots % size == 0 and slots // size <= max_instances)
    ]
    jobs = (JobDemand({slots: 1}, single_agent=single_agent), JobDemand({min(sizes): 50}))
    demand = Demand(jobs, overdue=(OverdueSize(slots, single_agent),))
    pool = _Pool(tuple(sizes), max_instances, demand, {})
    for number, size in enumerate(start[:max_instances]):
        row = instance(f"old-{number}", offering=replace(TINY, name=f"size-{size}", slots=size))
        pool.passes[row.id] = 1 + number % 3
        pool.fleet.append((row, running_with(replace(BUSY, work=(size,)))))
    # Three passes for the longest run, and a pass each to drain, end, launch and start.
    for _ in range(8):
        if pool.is_served():
            break
        pool.step()
        alive = len(pool.fleet)
        assert alive <= max_instances
    assert pool.is_served() is bool(able) or not able
    assert pool.launched <= 2 * max_instances
