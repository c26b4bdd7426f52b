"""Launches of the scale decider. Instances have 4 slots unless a test says otherwise."""

from dataclasses import replace

import pytest

from control_plane.fleet.records import InstanceState, Market
from provisioner.model import Demand, InstanceStatus
from tests.unit.provisioner.fleet_table import (
    BIG,
    DRAINED,
    DRAINING,
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
    def test_pending_slots_get_whole_instances(self) -> None:
        # Instances of 4 for 3 + 3 + 3 = 9 slots: ceil(9 / 4) = 3.
        assert launch_counts(scale_plan([], job_demand(3, 3, 3))) == {SMALL.name: 3}

    def test_launches_nothing_without_demand(self) -> None:
        plan = scale_plan()
        assert not plan.launches
        assert not plan.changed_rows
        assert not plan.reasons
        assert plan.fleet.waits == ""

    def test_launches_the_minimum_without_work(self) -> None:
        # clamp(2 - 1, 0, 10 - 1) = 1.
        plan = scale_plan([(instance("a"), running_with())], min_instances=2)
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_maximum_bounds_launches_and_is_reported(self) -> None:
        # 20 slots need 5 instances: clamp(0 - 1, 5, 3 - 1) = 2.
        plan = scale_plan([(instance("a"), running_with())], job_demand(*[4] * 5), max_instances=3)
        assert launch_counts(plan) == {SMALL.name: 2}
        assert plan.fleet.waits == "the pool has 3 instances, its maximum"

    def test_starting_instance_counts_with_all_slots(self) -> None:
        # 8 slots need 2 instances, and one is starting: 2 - 1 = 1.
        plan = scale_plan([(starting_instance("a"), running_with(None))], job_demand(4, 4))
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_launches_once_for_each_request(self) -> None:
        # A starting instance counts, or every pass before the connection would launch: 1 - 1 = 0.
        for observation in (
            running_with(None),
            cloud_lists(PENDING),
            cloud_lists(None),
            cloud_lists(InstanceStatus.STARTING),
        ):
            row = starting_instance("a", 0.5)
            assert scale_plan([(row, observation)], job_demand(4)).launches == ()

    def test_open_launch_counts_as_capacity_and_against_the_maximum(self) -> None:
        # 12 slots need 3 instances, of which 1 is under way. The maximum allows 3 - 1 - 1 = 1.
        plan = scale_plan(
            [(instance("a"), running_with())],
            job_demand(4, 4, 4),
            pending=((SMALL, 1),),
            max_instances=3,
        )
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_connected_agents_do_not_lower_demand(self) -> None:
        # The scheduler has already placed all requests that fit into free slots.
        assert launch_counts(scale_plan([(instance("a"), running_with(IDLE))], job_demand(4))) == {
            SMALL.name: 1
        }

    def test_lost_agent_does_not_lower_demand(self) -> None:
        row = instance("a", launched_ms=NOW_MS - 5 * MINUTE_MS)
        assert launch_counts(scale_plan([(row, running_with(None))], job_demand(4))) == {
            SMALL.name: 1
        }

    def test_job_limit_caps_demand(self) -> None:
        # 10 requests of 4, but room for 9 slots: 2 whole requests, 8 slots, 2 instances.
        assert launch_counts(scale_plan([], job_demand(*[4] * 10, room=9))) == {SMALL.name: 2}
        assert scale_plan([], job_demand(4, room=0)).launches == ()
        assert scale_plan([], job_demand(4, room=-4)).launches == ()

    def test_gang_fills_whole_instances_or_is_reported(self) -> None:
        # 16 slots are 4 instances. 6 slots are no multiple of 4, so they fit nowhere.
        assert launch_counts(scale_plan([], job_demand(16))) == {SMALL.name: 4}
        plan = scale_plan([], job_demand(6))
        assert plan.launches == ()
        assert plan.fleet.waits == (
            "requests for 6 slots do not fit into 10 instances of one offering: "
            f"{SMALL.name} with 4"
        )

    def test_gang_beyond_the_maximum_launches_nothing(self) -> None:
        # The gang needs 16 / 4 = 4 instances. With a maximum of 3, three would be useless.
        assert scale_plan([], job_demand(16), max_instances=3).launches == ()

    @pytest.mark.parametrize(("zero_slot", "count"), [(1, 1), (100, 1), (101, 2), (0, 0)])
    def test_zero_slot_requests_share_instances(self, zero_slot: int, count: int) -> None:
        # ceil(zero-slot / 100) instances.
        plan = scale_plan(demand=Demand(zero_slot_requests=zero_slot))
        assert sum(launch_counts(plan).values()) == count

    def test_zero_slot_requests_share_instances_with_other_requests(self) -> None:
        # max(ceil(150 / 100), ceil(4 / 4)) = 2.
        plan = scale_plan(demand=Demand((job_demand(4),), zero_slot_requests=150))
        assert launch_counts(plan) == {SMALL.name: 2}

    def test_zero_slot_requests_launch_nothing_with_aux_per_agent_0(self) -> None:
        plan = scale_plan(demand=Demand(zero_slot_requests=5, aux_per_agent=0))
        assert plan.launches == ()

    def test_instances_without_slots_serve_zero_slot_requests(self) -> None:
        cpu = replace(SMALL, slots=0)
        assert scale_plan([], job_demand(1), offerings=(cpu,)).launches == ()
        plan = scale_plan(demand=Demand(zero_slot_requests=1), offerings=(cpu,))
        assert launch_counts(plan) == {cpu.name: 1}

    def test_hold_reason_stops_launches_and_is_reported(self) -> None:
        demand = Demand((job_demand(4),), hold_reason="the pool's budget is used up")
        plan = scale_plan(demand=demand)
        assert plan.launches == ()
        assert plan.fleet.waits == "the pool's budget is used up"

    def test_terminating_instance_does_not_count(self) -> None:
        # N = 0: clamp(1 - 0, 1, 1 - 0) = 1.
        row = instance("a", state=InstanceState.TERMINATING, reason="it was idle")
        observation = cloud_lists(InstanceStatus.TERMINATING)
        plan = scale_plan([(row, observation)], job_demand(4), min_instances=1, max_instances=1)
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_draining_instance_counts_against_the_maximum_only(self) -> None:
        # The minimum needs one and the maximum allows one: clamp(1 - 0, 0, 2 - 1) = 1. Then 0.
        row = instance(
            "a", state=InstanceState.DRAINING, reason="the cloud recommended replacing it"
        )
        draining = [(row, running_with(DRAINING))]
        assert launch_counts(scale_plan(draining, min_instances=1, max_instances=2)) == {
            SMALL.name: 1
        }
        assert scale_plan(draining, min_instances=1, max_instances=1).launches == ()

    def test_agent_drained_by_an_operator_is_no_capacity(self) -> None:
        plan = scale_plan([(instance("a"), running_with(DRAINED))], min_instances=1)
        assert launch_counts(plan) == {SMALL.name: 1}


class TestPacking:
    def test_packs_requests_into_instances(self) -> None:
        # Ten requests of 5 slots need ten instances of 8. ceil(50 / 8) = 7 would not suffice.
        plan = scale_plan([], job_demand(*[5] * 10), offerings=(BIG,), max_instances=20)
        assert launch_counts(plan) == {BIG.name: 10}
        # 5 + 3, 5 + 3 and 3 + 3 + 2 need three instances.
        plan = scale_plan([], job_demand(5, 5, 3, 3, 3, 3, 2), offerings=(BIG,))
        assert launch_counts(plan) == {BIG.name: 3}

    def test_starting_instance_takes_requests_that_fit(self) -> None:
        # The starting instance takes the 5 and a 3. The second 5 needs a new instance.
        row = starting_instance("a", offering=BIG)
        plan = scale_plan([(row, running_with(None))], job_demand(5, 5, 3), offerings=(BIG,))
        assert launch_counts(plan) == {BIG.name: 1}

    def test_on_demand_instance_serves_a_spot_request(self) -> None:
        # The on-demand base has launched this instance instead of a spot instance.
        demand = replace(job_demand(1), market=Market.SPOT)
        row = starting_instance("a")
        plan = scale_plan([(row, running_with(None))], demand, offerings=(SPOT, SMALL))
        assert plan.launches == ()

    @pytest.mark.parametrize("slots", [2, 8])
    def test_requests_of_one_size_may_differ_in_market(self, slots: int) -> None:
        # Two requests of 2 slots share an instance of 4. Two requests of 8 slots need two each.
        jobs = [job_demand(slots), replace(job_demand(slots), market=Market.ON_DEMAND)]
        plan = scale_plan([], demand=Demand(tuple(jobs)), offerings=(SMALL,))
        assert launch_counts(plan) == {SMALL.name: {2: 1, 8: 4}[slots]}

    def test_gang_size_is_limited(self) -> None:
        # For 40 slots, 40 instances of 1 slot exceed 29, so 5 of 8 slots are launched.
        tiny = replace(SMALL, name="tiny", slots=1)
        plan = scale_plan([], job_demand(40), offerings=(tiny, BIG), max_instances=64)
        assert launch_counts(plan) == {BIG.name: 5}


class TestGangs:
    def test_idle_and_starting_instances_count_for_a_gang(self) -> None:
        # 16 slots need 4 instances. One is idle and one is starting, so 4 - 2 = 2.
        fleet = [(instance("a"), running_with(IDLE)), (starting_instance("b"), running_with(None))]
        assert launch_counts(scale_plan(fleet, job_demand(16))) == {SMALL.name: 2}

    def test_gang_without_room_launches_nothing(self) -> None:
        # 12 slots need 3 of at most 3 instances, and one has other work.
        plan = scale_plan([(instance("a"), running_with())], job_demand(12), max_instances=3)
        assert plan.launches == ()
        assert plan.fleet.waits == "the pool has 3 instances, its maximum"

    def test_idle_instance_stays_for_a_gang_with_room(self) -> None:
        idle = [(idle_instance("a", 30), running_with(IDLE)), (instance("b"), running_with())]
        # With a maximum of 3 and a busy instance, 12 slots are impossible. `a` drains.
        assert state_changes(scale_plan(idle, job_demand(12), max_instances=3))
        # With a maximum of 4, the idle instance stays and two are launched.
        plan = scale_plan(idle, job_demand(12), max_instances=4)
        assert not state_changes(plan)
        assert launch_counts(plan) == {SMALL.name: 2}

    @pytest.mark.parametrize("minutes", [9, 11, 30])
    def test_idle_instance_stays_while_its_gang_partner_is_replaced(self, minutes: float) -> None:
        # The room of an instance that starts, or is ended for not enrolling, counts as available.
        pairs = [
            (idle_instance("a", 30), running_with(IDLE)),
            (starting_instance("b", minutes), running_with(None)),
        ]
        changes = state_changes(scale_plan(pairs, job_demand(8), max_instances=2))
        assert "a" not in changes

    def test_idle_instance_stays_for_a_gang_with_an_open_launch(self) -> None:
        # 8 slots need 2 of at most 2 instances. The second is an open launch.
        pairs = [(idle_instance("a", 30), running_with(IDLE))]
        plan = scale_plan(pairs, job_demand(8), pending=((SMALL, 1),), max_instances=2)
        assert not state_changes(plan)

    def test_idle_instance_of_another_market_counts_for_a_gang(self) -> None:
        # 8 slots need 2 of at most 2 instances. The scheduler ignores the market of the idle spot
        # instance, so one on-demand instance suffices.
        pairs = [(idle_instance("a", 1, offering=SPOT), running_with(IDLE))]
        demand = replace(job_demand(8), market=Market.ON_DEMAND)
        plan = scale_plan(pairs, demand, offerings=(SPOT, SMALL), max_instances=2)
        assert launch_counts(plan) == {SMALL.name: 1}

    def test_idle_instance_stays_for_a_gang_across_offerings(self) -> None:
        # 8 slots need 2 of at most 2 instances. The scheduler ignores their offerings.
        pairs = [
            (idle_instance("a", 30, offering=SPOT), running_with(IDLE)),
            (starting_instance("b", 1, offering=SPOT_B), running_with(None)),
        ]
        offerings = (SPOT, SPOT_B)
        plan = scale_plan(pairs, job_demand(8), offerings=offerings, max_instances=2)
        assert not state_changes(plan)
