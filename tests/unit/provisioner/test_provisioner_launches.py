"""Launches worked out from the rules of the scale decider; slots are 4 unless said otherwise."""

from dataclasses import replace

import pytest

from control_plane.fleet.records import InstanceState, Market
from provisioner.model import ConnectedAgent, Demand, InstanceStatus
from tests.unit.provisioner.fleet_table import (
    BIG,
    DRAINED,
    IDLE,
    MINUTE_MS,
    NOW_MS,
    SMALL,
    SPOT,
    SPOT_B,
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

PENDING = InstanceStatus.PENDING


class TestLaunches:
    def test_what_waits_gets_whole_instances(self) -> None:
        # 3 + 3 + 3 = 9 slots on instances of 4: ceil(9 / 4) = 3.
        assert launch_counts(scale_plan([], job_demand(3, 3, 3))) == {SMALL.name: 3}

    def test_nothing_waits_and_nothing_is_launched(self) -> None:
        plan = scale_plan()
        assert not plan.launches
        assert not plan.changed_rows
        assert not plan.reasons
        assert plan.fleet.waits == ""

    def test_the_minimum_is_held_without_work(self) -> None:
        # clamp(2 - 1, 0, 10 - 1) = 1.
        plan = scale_plan([(instance("a"), running_with())], min_instances=2)
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_the_maximum_bounds_them_and_is_told(self) -> None:
        # 20 slots want 5 instances; clamp(0 - 1, 5, 3 - 1) = 2.
        plan = scale_plan([(instance("a"), running_with())], job_demand(*[4] * 5), max_instances=3)
        assert launch_counts(plan) == {SMALL.name: 2}
        assert plan.fleet.waits == "the pool has its 3 instances"

    def test_an_instance_that_starts_is_credited_whole(self) -> None:
        # 8 slots want 2; one starts: 2 - 1 = 1.
        plan = scale_plan([(starting_instance("a"), running_with(None))], job_demand(4, 4))
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_so_nothing_is_launched_twice_for_the_same_work(self) -> None:
        # The thrash of launching for 5 s what is on its way for minutes: 1 - 1 = 0.
        for seen in (
            running_with(None),
            cloud_lists(PENDING),
            cloud_lists(None),
            cloud_lists(InstanceStatus.STARTING),
        ):
            row = starting_instance("a", 0.5)
            assert scale_plan([(row, seen)], job_demand(4)).launches == ()

    def test_a_launch_without_an_answer_is_credited_and_counted(self) -> None:
        # 12 slots want 3, of which 1 is under way: 2; but 3 - 1 - 1 = 1 may still come.
        plan = scale_plan(
            [(instance("a"), running_with())],
            job_demand(4, 4, 4),
            pending=((SMALL, 1),),
            max_instances=3,
        )
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_connected_agents_are_no_credit(self) -> None:
        # The scheduler has used their free slots as far as it could.
        assert launch_counts(scale_plan([(instance("a"), running_with(IDLE))], job_demand(4))) == {
            SMALL.name: 1
        }

    def test_an_agent_that_was_lost_is_no_credit(self) -> None:
        row = instance("a", launched_ms=NOW_MS - 5 * MINUTE_MS)
        assert launch_counts(scale_plan([(row, running_with(None))], job_demand(4))) == {
            SMALL.name: 1
        }

    def test_demand_is_capped_by_what_a_job_may_have(self) -> None:
        # 10 requests of 4, but room for 9 slots: 2 whole requests, 8 slots, 2 instances.
        assert launch_counts(scale_plan([], job_demand(*[4] * 10, room=9))) == {SMALL.name: 2}
        assert scale_plan([], job_demand(4, room=0)).launches == ()
        assert scale_plan([], job_demand(4, room=-4)).launches == ()

    def test_gangs_fill_whole_instances_or_are_told_that_they_cannot(self) -> None:
        # 16 % 4 == 0: 4 instances. 6 > 4 and 6 % 4 == 2: nowhere.
        assert launch_counts(scale_plan([], job_demand(16))) == {SMALL.name: 4}
        plan = scale_plan([], job_demand(6))
        assert plan.launches == ()
        assert plan.fleet.waits == (
            f"requests for 6 slots fit into no 10 instances of one offering: {SMALL.name} with 4"
        )

    def test_a_gang_larger_than_the_pool_may_grow_launches_nothing(self) -> None:
        # 16 / 4 = 4 instances, and there may be 3: three would stand about.
        assert scale_plan([], job_demand(16), max_instances=3).launches == ()

    @pytest.mark.parametrize(("zero_slot", "count"), [(1, 1), (100, 1), (101, 2), (0, 0)])
    def test_work_without_slots_shares_instances(self, zero_slot: int, count: int) -> None:
        # ceil(zero-slot / 100) instances.
        plan = scale_plan(demand=Demand(zero_slot_requests=zero_slot))
        assert sum(launch_counts(plan).values()) == count

    def test_work_without_slots_shares_them_with_the_others(self) -> None:
        # max(ceil(150 / 100), ceil(4 / 4)) = 2.
        plan = scale_plan(demand=Demand((job_demand(4),), zero_slot_requests=150))
        assert launch_counts(plan) == {SMALL.name: 2}

    def test_no_work_without_slots_where_agents_take_none(self) -> None:
        plan = scale_plan(demand=Demand(zero_slot_requests=5, aux_per_agent=0))
        assert plan.launches == ()

    def test_instances_without_slots_are_for_work_without_slots(self) -> None:
        cpu = replace(SMALL, slots=0)
        assert scale_plan([], job_demand(1), offerings=(cpu,)).launches == ()
        plan = scale_plan(demand=Demand(zero_slot_requests=1), offerings=(cpu,))
        assert launch_counts(plan) == {cpu.name: 1}

    def test_a_pool_that_is_held_back_launches_nothing_and_says_why(self) -> None:
        demand = Demand((job_demand(4),), hold_reason="the pool's budget is used up")
        plan = scale_plan(demand=demand)
        assert plan.launches == ()
        assert plan.fleet.waits == "the pool's budget is used up"

    def test_what_terminates_is_no_capacity_and_does_not_count(self) -> None:
        # N = 0: clamp(1 - 0, 1, 1 - 0) = 1.
        row = instance("a", state=InstanceState.TERMINATING, reason="it was idle")
        seen = cloud_lists(InstanceStatus.TERMINATING)
        plan = scale_plan([(row, seen)], job_demand(4), min_instances=1, max_instances=1)
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_what_drains_is_no_capacity_but_counts(self) -> None:
        # The minimum lacks one, and one may come: clamp(1 - 0, 0, 2 - 1) = 1; then none.
        row = instance(
            "a", state=InstanceState.DRAINING, reason="the cloud recommended replacing it"
        )
        draining = [(row, running_with(ConnectedAgent(idle=False, takes_work=False)))]
        assert launch_counts(scale_plan(draining, min_instances=1, max_instances=2)) == {
            SMALL.name: 1
        }
        assert scale_plan(draining, min_instances=1, max_instances=1).launches == ()

    def test_an_agent_that_people_drain_is_no_capacity(self) -> None:
        plan = scale_plan([(instance("a"), running_with(DRAINED))], min_instances=1)
        assert launch_counts(plan) == {SMALL.name: 1}


class TestPacking:
    def test_requests_that_do_not_fill_an_instance_have_one_each_or_share_it(self) -> None:
        # Ten of 5 on instances of 8: one on each, ten; ceil(50 / 8) = 7 would take further rounds.
        plan = scale_plan([], job_demand(*[5] * 10), offerings=(BIG,), max_instances=20)
        assert launch_counts(plan) == {BIG.name: 10}
        # 5 + 3, 5 + 3, 3 + 3 + 2: three.
        plan = scale_plan([], job_demand(5, 5, 3, 3, 3, 3, 2), offerings=(BIG,))
        assert launch_counts(plan) == {BIG.name: 3}

    def test_what_starts_takes_the_requests_that_fit_into_its_rest(self) -> None:
        # The starting one takes 5 and 3; the other 5 needs one.
        row = starting_instance("a", offering=BIG)
        plan = scale_plan([(row, running_with(None))], job_demand(5, 5, 3), offerings=(BIG,))
        assert launch_counts(plan) == {BIG.name: 1}

    def test_a_spot_request_is_served_by_an_instance_on_demand(self) -> None:
        # The share on demand has launched it in the place of a spot one.
        demand = replace(job_demand(1), market=Market.SPOT)
        row = starting_instance("a")
        plan = scale_plan([(row, running_with(None))], demand, offerings=(SPOT, SMALL))
        assert plan.launches == ()

    @pytest.mark.parametrize("slots", [2, 8])
    def test_requests_of_one_size_may_have_markets_or_none(self, slots: int) -> None:
        # Two of 2 slots share an instance of 4; two of 8 fill two each.
        jobs = [job_demand(slots), replace(job_demand(slots), market=Market.ON_DEMAND)]
        plan = scale_plan([], demand=Demand(tuple(jobs)), offerings=(SMALL,))
        assert launch_counts(plan) == {SMALL.name: {2: 1, 8: 4}[slots]}

    def test_more_agents_than_work_together_are_not_launched(self) -> None:
        # 40 slots: 40 instances of 1 are more than 29, so 5 of 8.
        tiny = replace(SMALL, name="tiny", slots=1)
        plan = scale_plan([], job_demand(40), offerings=(tiny, BIG), max_instances=64)
        assert launch_counts(plan) == {BIG.name: 5}


class TestGangs:
    def test_agents_that_came_early_are_not_launched_again(self) -> None:
        # 16 slots on 4 instances: one is there, idle, one starts: 4 - 2 = 2.
        there = [(instance("a"), running_with(IDLE)), (starting_instance("b"), running_with(None))]
        assert launch_counts(scale_plan(there, job_demand(16))) == {SMALL.name: 2}

    def test_none_is_launched_for_one_that_cannot_have_enough(self) -> None:
        # 12 slots want 3 of at most 3, and one works for somebody else.
        plan = scale_plan([(instance("a"), running_with())], job_demand(12), max_instances=3)
        assert plan.launches == ()
        assert plan.fleet.waits == "the pool has its 3 instances"

    def test_an_idle_one_stays_while_a_request_needs_it(self) -> None:
        idle = [(idle_instance("a", 30), running_with(IDLE)), (instance("b"), running_with())]
        # With 3 at most and one at work the 12 slots cannot be had: the idle one ends.
        assert state_changes(scale_plan(idle, job_demand(12), max_instances=3))
        # With 4 they can: it stays, and two more come.
        plan = scale_plan(idle, job_demand(12), max_instances=4)
        assert not state_changes(plan)
        assert launch_counts(plan) == {SMALL.name: 2}

    @pytest.mark.parametrize("minutes", [9, 11, 30])
    def test_an_idle_one_stays_when_the_other_one_never_came(self, minutes: float) -> None:
        # The room of one that starts, or is ended since it did not, is its replacement's.
        pairs = [
            (idle_instance("a", 30), running_with(IDLE)),
            (starting_instance("b", minutes), running_with(None)),
        ]
        changes = state_changes(scale_plan(pairs, job_demand(8), max_instances=2))
        assert "a" not in changes

    def test_an_idle_one_stays_for_a_gang_with_one_that_is_asked_for(self) -> None:
        # 8 slots want 2 of at most 2: the other one is on its way.
        pairs = [(idle_instance("a", 30), running_with(IDLE))]
        plan = scale_plan(pairs, job_demand(8), pending=((SMALL, 1),), max_instances=2)
        assert not state_changes(plan)

    def test_an_idle_one_of_another_market_completes_a_gang(self) -> None:
        # 8 slots want 2 of at most 2. The scheduler uses what is there, however it was bought, so
        # that one on demand is enough; with two, the spot one would have no room beside them.
        pairs = [(idle_instance("a", 1, offering=SPOT), running_with(IDLE))]
        demand = replace(job_demand(8), market=Market.ON_DEMAND)
        plan = scale_plan(pairs, demand, offerings=(SPOT, SMALL), max_instances=2)
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_an_idle_one_stays_for_a_gang_with_one_of_another_offering(self) -> None:
        # 8 slots want 2 of at most 2: the scheduler does not mind where they were bought.
        pairs = [
            (idle_instance("a", 30, offering=SPOT), running_with(IDLE)),
            (starting_instance("b", 1, offering=SPOT_B), running_with(None)),
        ]
        offerings = (SPOT, SPOT_B)
        plan = scale_plan(pairs, job_demand(8), offerings=offerings, max_instances=2)
        assert not state_changes(plan)
