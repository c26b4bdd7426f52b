"""Launches for gangs: a separate and complete launch for each gang, in the gang's zone."""

from dataclasses import replace

from control_plane.fleet.records import ErrorKind, OfferingHealth
from control_plane.scheduling.reservations import OverdueSize
from provisioner.model import Demand, InstanceStatus, Launch
from tests.unit.provisioner.fleet_table import (
    BIG,
    BUSY,
    IDLE,
    NOW_MS,
    SMALL,
    SPOT,
    cloud_lists,
    idle_instance,
    instance,
    job_demand,
    launch_counts,
    running_with,
    scale_plan,
    starting_instance,
    state_changes,
)

ANYWHERE = replace(SPOT, name="small/spot", zone="")


def test_each_gang_is_a_separate_launch() -> None:
    # 8 and 12 slots are gangs of 2 and 3 instances with 4 slots. 4 and 3 slots need an instance.
    plan = scale_plan([], job_demand(12, 8, 4, 3))
    assert sorted(plan.launches, key=lambda launch: (launch.together, launch.count)) == [
        Launch(SMALL, 2),
        Launch(SMALL, 2, together=True),
        Launch(SMALL, 3, together=True),
    ]


def test_further_launch_for_a_gang_uses_the_zone_of_the_gang() -> None:
    fleet = [
        (instance("a", offering=ANYWHERE, zone="z-b"), running_with(IDLE)),
        (starting_instance("b", offering=ANYWHERE, zone="z-b"), running_with(None)),
    ]
    plan = scale_plan(fleet, job_demand(12), offerings=(ANYWHERE,))
    assert plan.launches == (Launch(ANYWHERE, 1, together=True, zone="z-b"),)


def test_gang_without_room_is_left_out() -> None:
    # With a maximum of 5, the gangs of 2 and 3 are launched, but not the gang of 4.
    plan = scale_plan([], job_demand(8, 12, 16), max_instances=5)
    assert sorted(launch.count for launch in plan.launches) == [2, 3]
    assert plan.fleet.waits == "the pool has 5 instances, its maximum"


def test_gang_without_room_uses_an_offering_of_another_size() -> None:
    three = replace(SMALL, name="three/on-demand", slots=3)
    two = replace(SMALL, name="two/on-demand", slots=2)
    fleet = [(instance(name, offering=two), running_with(IDLE)) for name in ("a", "b")]
    # Two 3-slot instances beside the idle instances would be 4. A third 2-slot instance makes 3.
    plan = scale_plan(fleet, job_demand(6), offerings=(three, two), max_instances=3)
    assert [(launch.offering, launch.count, launch.together) for launch in plan.launches] == [
        (two, 1, True)
    ]
    assert plan.fleet.waits == ""
    # With enough room, the first gang uses the best offering, and the second the idle instances.
    plan = scale_plan(fleet, job_demand(6, 6), offerings=(three, two), max_instances=5)
    assert [(launch.offering, launch.count) for launch in plan.launches] == [(three, 2), (two, 1)]


def test_gang_uses_a_single_market() -> None:
    offered = (SMALL, SPOT)
    plan = scale_plan([], job_demand(16), offerings=offered, on_demand_base=0.25)
    # The base requires one on-demand instance, so the whole gang is on demand.
    assert plan.launches == (Launch(SMALL, 4, together=True),)


def test_given_up_offering_is_probed_without_a_gang() -> None:
    given_up = OfferingHealth(10, 10, ErrorKind.BOOT, "no", NOW_MS - 1, NOW_MS - 1, True)
    plan = scale_plan([], job_demand(16), health={SMALL.name: given_up})
    assert plan.launches == (Launch(SMALL, 1),)


OVERDUE = Demand((job_demand(8, 8), job_demand(12)), overdue=(OverdueSize(12),))


def test_overdue_gang_is_served_before_smaller_requests() -> None:
    # Both idle instances would serve 8 slots, but the overdue request for 12 comes first.
    fleet = [(idle_instance(name, 1), running_with(IDLE)) for name in ("a", "b")]
    assert launch_counts(scale_plan(fleet, demand=OVERDUE, max_instances=3)) == {SMALL.name: 1}


def test_overdue_gang_counts_busy_instances() -> None:
    fleet = [(instance(name), running_with(BUSY)) for name in ("a", "b")]
    in_time = replace(OVERDUE, overdue=())
    assert scale_plan(fleet, demand=in_time, max_instances=3).launches == ()
    assert launch_counts(scale_plan(fleet, demand=OVERDUE, max_instances=3)) == {SMALL.name: 1}
    # Gangs that are not overdue do not count on busy instances.
    fleet.append((instance("c"), running_with(BUSY)))
    assert scale_plan(fleet, demand=OVERDUE, max_instances=4).launches == ()


def test_idle_instance_stays_for_an_overdue_gang() -> None:
    fleet = [(instance(name), running_with(BUSY)) for name in ("a", "b")]
    fleet.append((idle_instance("c", 60), running_with(IDLE)))
    in_time = replace(OVERDUE, overdue=())
    assert state_changes(scale_plan(fleet, demand=in_time, max_instances=3)) == {"c": "DRAINING"}
    plan = scale_plan(fleet, demand=OVERDUE, max_instances=3)
    assert (state_changes(plan), plan.launches) == ({}, ())


def test_unservable_overdue_request_is_skipped() -> None:
    fleet = [(idle_instance(name, 1), running_with(IDLE)) for name in ("a", "b")]
    demand = replace(OVERDUE, overdue=(OverdueSize(20), OverdueSize(12)))
    assert launch_counts(scale_plan(fleet, demand=demand, max_instances=3)) == {SMALL.name: 1}


def test_starting_large_instance_serves_a_gang() -> None:
    fleet = [(starting_instance("a", offering=BIG), cloud_lists(InstanceStatus.RUNNING))]
    plan = scale_plan(fleet, job_demand(8), offerings=(SMALL, BIG))
    assert plan.launches == ()
    plan = scale_plan(fleet, job_demand(8, 8), offerings=(SMALL, BIG))
    assert launch_counts(plan) == {SMALL.name: 2}


def test_idle_instances_of_another_size_drain_for_an_overdue_gang() -> None:
    small = replace(SMALL, name="tiny/a/on_demand", instance_type="tiny", slots=1)
    fleet = [(idle_instance(name, 60, offering=small), running_with(IDLE)) for name in "abc"]
    fleet.append((idle_instance("d", 60), running_with(IDLE)))
    # A request for 3 slots would use the small instances, but the overdue one comes first.
    jobs = (job_demand(12), job_demand(3))
    settings = {"offerings": (small, SMALL), "max_instances": 4}
    assert state_changes(scale_plan(fleet, *jobs, **settings)) == {}
    demand = Demand(jobs, overdue=(OverdueSize(12),))
    leaving = state_changes(scale_plan(fleet, demand=demand, **settings))
    assert leaving == {"a": "DRAINING", "b": "DRAINING"}
    assert launch_counts(scale_plan(fleet[2:], demand=demand, **settings)) == {SMALL.name: 2}
