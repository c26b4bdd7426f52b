"""Launches for requests over several instances: one for each, all of it, and where its rest is."""

from dataclasses import replace

from control_plane.fleet.records import ErrorKind, OfferingHealth
from provisioner.model import Launch
from tests.unit.provisioner.fleet_table import (
    IDLE,
    NOW_MS,
    SMALL,
    SPOT,
    instance,
    job_demand,
    running_with,
    scale_plan,
    starting_instance,
)

ANYWHERE = replace(SPOT, name="small/spot", zone="")


def test_each_gang_is_a_launch_of_its_own() -> None:
    # 8 and 12 slots are gangs of 2 and 3 instances with 4 each; 4 and 3 need one each.
    plan = scale_plan([], job_demand(12, 8, 4, 3))
    assert sorted(plan.launches, key=lambda it: (it.together, it.count)) == [
        Launch(SMALL, 2),
        Launch(SMALL, 2, together=True),
        Launch(SMALL, 3, together=True),
    ]


def test_what_joins_the_rest_of_a_gang_goes_where_that_is() -> None:
    there = [
        (instance("a", offering=ANYWHERE, zone="z-b"), running_with(IDLE)),
        (starting_instance("b", offering=ANYWHERE, zone="z-b"), running_with(None)),
    ]
    plan = scale_plan(there, job_demand(12), offerings=(ANYWHERE,))
    assert plan.launches == (Launch(ANYWHERE, 1, together=True, zone="z-b"),)


def test_a_gang_for_which_there_is_no_room_is_left_out_whole() -> None:
    # Of 5 that may be, the gang of 2 and the gang of 3 are launched, that of 4 is not.
    plan = scale_plan([], job_demand(8, 12, 16), max_instances=5)
    assert sorted(it.count for it in plan.launches) == [2, 3]
    assert plan.fleet.waits == "the pool has its 5 instances"


def test_a_gang_that_lacks_room_with_one_size_is_completed_with_another() -> None:
    three = replace(SMALL, name="three/on-demand", slots=3)
    two = replace(SMALL, name="two/on-demand", slots=2)
    there = [(instance(name, offering=two), running_with(IDLE)) for name in ("a", "b")]
    # Two of three slots would be four instances with the idle ones, one more of two slots is three.
    plan = scale_plan(there, job_demand(6), offerings=(three, two), max_instances=3)
    assert [(it.offering, it.count, it.together) for it in plan.launches] == [(two, 1, True)]
    assert plan.fleet.waits == ""
    # With room for both, what is best is taken, and of two gangs one for each.
    plan = scale_plan(there, job_demand(6, 6), offerings=(three, two), max_instances=5)
    assert [(it.offering, it.count) for it in plan.launches] == [(three, 2), (two, 1)]


def test_a_gang_is_on_one_market() -> None:
    offered = (SMALL, SPOT)
    plan = scale_plan([], job_demand(16), offerings=offered, on_demand_base=0.25)
    # One of the four would be on demand: so all of them are.
    assert plan.launches == (Launch(SMALL, 4, together=True),)


def test_an_offering_that_is_given_up_is_tried_with_one_instance_that_is_no_gang() -> None:
    given_up = OfferingHealth(10, 10, ErrorKind.BOOT, "no", NOW_MS - 1, NOW_MS - 1, True)
    plan = scale_plan([], job_demand(16), health={SMALL.name: given_up})
    assert plan.launches == (Launch(SMALL, 1),)
