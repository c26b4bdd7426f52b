"""Decisions worked out from the rules of the scale decider; slots are 4 unless said otherwise."""

from dataclasses import replace

import pytest

from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceState,
    Market,
    OfferingHealth,
)
from provisioner.model import ConnectedAgent, Demand, InstanceStatus
from tests.unit.provisioner.fleet_table import (
    BIG,
    BUSY,
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

TERMINATED, STOPPED = InstanceStatus.TERMINATED, InstanceStatus.STOPPED
RUNNING, PENDING = InstanceStatus.RUNNING, InstanceStatus.PENDING


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
        row = instance("a", state=InstanceState.DRAINING, reason="the cloud advised to leave it")
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


class TestNotices:
    def test_a_replacement_may_start_at_the_notice(self) -> None:
        # What runs there will ask again: 4 slots, 1 instance, though the pool is at its maximum.
        row = instance("a")
        plan = scale_plan([(row, running_with(BUSY, notice_ms=NOW_MS + 120_000))], max_instances=1)
        assert launch_counts(plan) == {SMALL.name: 1}
        assert plan.changed_rows == (replace(row, notice_ms=NOW_MS + 120_000),)

    def test_it_is_launched_once(self) -> None:
        # The replacement starts: 4 slots less its 4.
        pairs = [
            (instance("a", notice_ms=NOW_MS + 90_000), running_with(BUSY)),
            (starting_instance("b", 0.5), running_with(None)),
        ]
        assert scale_plan(pairs, max_instances=1).launches == ()

    def test_the_offering_is_avoided_for_a_while(self) -> None:
        row = instance("a", offering=SPOT)
        seen = running_with(BUSY, notice_ms=NOW_MS + 120_000)
        plan = scale_plan([(row, seen)], offerings=(SPOT, SPOT_B))
        assert launch_counts(plan) == {SPOT_B.name: 1}

    def test_advice_only_drains(self) -> None:
        plan = scale_plan([(instance("a"), running_with(BUSY, rebalance=True))], job_demand())
        assert state_changes(plan) == {"a": "DRAINING"}
        assert plan.launches == ()


class TestIdleInstances:
    def test_one_that_is_idle_for_too_long_drains_before_it_ends(self) -> None:
        row = idle_instance("a", 20)
        assert state_changes(scale_plan([(row, running_with(IDLE))])) == {"a": "DRAINING"}
        draining = replace(row, state=InstanceState.DRAINING, reason="it was idle for 1200 s")
        assert state_changes(scale_plan([(draining, running_with(IDLE))])) == {}
        assert state_changes(scale_plan([(draining, running_with(DRAINED))])) == {
            "a": "TERMINATING"
        }

    def test_one_that_got_work_meanwhile_finishes_it(self) -> None:
        draining = instance("a", state=InstanceState.DRAINING, reason="it was idle for 1200 s")
        busy = ConnectedAgent(idle=False, takes_work=False, used_slots=4)
        assert state_changes(scale_plan([(draining, running_with(busy))])) == {}

    def test_a_moment_too_early_it_stays(self) -> None:
        # 19.9 of 20 minutes.
        assert scale_plan([(idle_instance("a", 19.9), running_with(IDLE))]).changed_rows == ()

    def test_work_clears_the_mark(self) -> None:
        plan = scale_plan([(idle_instance("a", 30), running_with(BUSY))])
        assert [row.idle_ms for row in plan.changed_rows] == [None]
        assert state_changes(plan) == {}

    def test_the_minimum_stays_however_idle(self) -> None:
        # Three idle, two are to stay: one goes, that which has been idle longest.
        pairs = [
            (idle_instance(name, minutes), running_with(IDLE))
            for name, minutes in (("a", 25), ("b", 40), ("c", 30))
        ]
        assert state_changes(scale_plan(pairs, min_instances=2)) == {"b": "DRAINING"}

    def test_busy_ones_count_for_the_minimum(self) -> None:
        # Two of three are busy: 3 - 1 >= 2.
        pairs = [
            (instance("a"), running_with()),
            (instance("b"), running_with()),
            (idle_instance("c", 30), running_with(IDLE)),
        ]
        assert state_changes(scale_plan(pairs, min_instances=2)) == {"c": "DRAINING"}

    def test_what_costs_most_goes_first(self) -> None:
        pairs = [
            (idle_instance("a", 40, offering=SPOT), running_with(IDLE)),
            (idle_instance("b", 25), running_with(IDLE)),
        ]
        assert state_changes(scale_plan(pairs, min_instances=1)) == {"b": "DRAINING"}

    def test_a_short_queue_ends_nothing_that_works(self) -> None:
        pairs = [(instance(name), running_with()) for name in "abc"]
        plan = scale_plan(pairs)
        assert not plan.changed_rows
        assert not plan.launches

    def test_a_mark_from_before_nobody_looked_begins_anew(self) -> None:
        # 30 minutes of idleness, of which 25 nobody saw: 5.
        fleet = FleetRow("p", passed_ms=NOW_MS, resumed_ms=NOW_MS - 5 * MINUTE_MS)
        assert (
            state_changes(scale_plan([(idle_instance("a", 30), running_with(IDLE))], fleet=fleet))
            == {}
        )


class TestIdleInstancesThatAreWanted:
    TWO = tuple((idle_instance(name, 30), running_with(IDLE)) for name in "ab")

    def test_one_stays_while_a_request_that_it_fits_waits(self) -> None:
        assert len(state_changes(scale_plan(self.TWO, job_demand(3)))) == 1
        assert not state_changes(scale_plan(self.TWO, job_demand(3, 3)))

    def test_both_end_while_what_waits_may_not_have_them(self) -> None:
        assert len(state_changes(scale_plan(self.TWO, job_demand(3, room=0)))) == 2
        assert len(state_changes(scale_plan(self.TWO, job_demand(7)))) == 2
        held = Demand((job_demand(3),), hold_reason="the pool drains")
        assert len(state_changes(scale_plan(self.TWO, demand=held))) == 2


class TestLostInstances:
    def test_one_that_the_cloud_ended_has_ended(self) -> None:
        plan = scale_plan([(instance("a"), cloud_lists(TERMINATED))])
        (row,) = plan.changed_rows
        assert (row.state, row.ended_ms, row.reason) == (
            InstanceState.ENDED,
            NOW_MS,
            "the cloud ended it",
        )

    def test_one_that_stopped_is_terminated_whatever_the_bucket_says(self) -> None:
        empty = FleetRow("p", passed_ms=NOW_MS, tokens=0.0, tokens_ms=NOW_MS)
        plan = scale_plan([(instance("a"), cloud_lists(STOPPED))], fleet=empty)
        assert state_changes(plan) == {"a": "TERMINATING"}

    def test_stopped_ones_do_not_lower_the_minimum(self) -> None:
        # N = 2 and both are idle for long; the stopped one is in neither count: one goes.
        pairs = [
            (instance("s"), cloud_lists(STOPPED)),
            (idle_instance("a", 30), running_with(IDLE)),
            (idle_instance("b", 30), running_with(IDLE)),
        ]
        assert state_changes(scale_plan(pairs, min_instances=1)) == {
            "s": "TERMINATING",
            "a": "DRAINING",
        }

    def test_an_agent_away_for_ten_minutes_is_given_up(self) -> None:
        for minutes, expected in ((9.9, {}), (10, {"a": "TERMINATING"})):
            row = instance("a", silent_ms=NOW_MS - int(minutes * MINUTE_MS))
            plan = scale_plan([(row, running_with(None))])
            assert state_changes(plan) == expected
            assert plan.disconnected == tuple(expected)

    def test_an_agent_is_away_from_when_it_was_first_missed(self) -> None:
        plan = scale_plan([(instance("a"), running_with(None))])
        assert [row.silent_ms for row in plan.changed_rows] == [NOW_MS]

    def test_one_that_never_connects_is_given_up_at_last(self) -> None:
        # Starting for 20 minutes, then away for 10.
        row = starting_instance("a", 20)
        assert [one.silent_ms for one in scale_plan([(row, running_with(None))]).changed_rows] == [
            NOW_MS
        ]
        row = starting_instance("a", 30, silent_ms=NOW_MS - 10 * MINUTE_MS)
        plan = scale_plan([(row, running_with(None))])
        assert state_changes(plan) == {"a": "TERMINATING"}
        assert plan.fleet.health[SMALL.name].kind is ErrorKind.BOOT

    def test_one_that_ends_before_it_connects_counts_against_its_offering(self) -> None:
        # Draw 0.5 of the first 30 s: not again for 15 s.
        plan = scale_plan([(starting_instance("a"), cloud_lists(TERMINATED))], job_demand(4))
        health = plan.fleet.health[SMALL.name]
        assert (health.kind, health.faults) == (ErrorKind.BOOT, 1)
        assert health.retry_ms == NOW_MS + 15_000
        assert plan.launches == ()
        assert plan.fleet.waits == (
            f"no instance can be had: {SMALL.name}: boot: instance a ended before its agent "
            "enrolled (tried again in 15 s)"
        )

    def test_a_connected_agent_clears_what_was_held_against_its_offering(self) -> None:
        health = {SMALL.name: OfferingHealth(errors=3, faults=3, kind=ErrorKind.BOOT)}
        plan = scale_plan([(starting_instance("a"), running_with(IDLE))], health=health)
        assert plan.fleet.health == {}

    def test_a_fresh_instance_that_is_not_listed_is_not_gone(self) -> None:
        assert scale_plan([(starting_instance("a", 0.9), cloud_lists(None))]).changed_rows == ()

    def test_an_older_one_is_gone_after_a_minute_of_absence(self) -> None:
        for seconds, expected in ((59, {}), (60, {"a": "ENDED"})):
            row = starting_instance("a", 3, missed_ms=NOW_MS - seconds * 1000)
            assert state_changes(scale_plan([(row, cloud_lists(None))])) == expected

    def test_one_whose_agent_speaks_is_not_gone(self) -> None:
        row = instance("a", missed_ms=NOW_MS - 5 * MINUTE_MS)
        plan = scale_plan([(row, cloud_lists(None, BUSY))])
        assert [(it.missed_ms, it.state) for it in plan.changed_rows] == [
            (None, InstanceState.RUNNING)
        ]

    def test_what_terminates_is_believed_in_until_the_cloud_says_gone(self) -> None:
        row = instance("a", state=InstanceState.TERMINATING, reason="it was idle")
        assert scale_plan([(row, cloud_lists(RUNNING))]).changed_rows == ()
        (ended,) = scale_plan([(row, cloud_lists(TERMINATED))]).changed_rows
        assert (ended.state, ended.reason) == (InstanceState.ENDED, "it was idle")

    def test_an_unknown_state_is_no_reason_to_end_or_to_replace(self) -> None:
        plan = scale_plan(
            [(instance("a"), cloud_lists(InstanceStatus.UNKNOWN, BUSY))], min_instances=1
        )
        assert not plan.changed_rows
        assert not plan.launches


class TestMaximum:
    def test_what_nobody_waits_for_goes_first_and_busy_agents_finish(self) -> None:
        # Five are there and one may be: in the order of the rule, four go.
        pairs = [
            (instance("old"), running_with()),
            (instance("new", launched_ms=NOW_MS - 30 * MINUTE_MS), running_with()),
            (instance("idle"), running_with(IDLE)),
            (starting_instance("request"), cloud_lists(PENDING)),
            (starting_instance("boots"), running_with(None)),
        ]
        plan = scale_plan(pairs, max_instances=1)
        assert state_changes(plan) == {
            "request": "TERMINATING",
            "idle": "DRAINING",
            "boots": "TERMINATING",
            "new": "DRAINING",
        }
        # Whoever enrols meanwhile is not to be ended.
        assert plan.disconnected == ("request", "boots")

    def test_those_on_their_way_out_are_not_replaced_by_more(self) -> None:
        # Two of three drain: one is left, as it should be.
        pairs = [
            (
                instance("a", state=InstanceState.DRAINING),
                running_with(ConnectedAgent(False, takes_work=False)),
            ),
            (
                instance("b", state=InstanceState.DRAINING),
                running_with(ConnectedAgent(False, takes_work=False)),
            ),
            (instance("c"), running_with()),
        ]
        assert scale_plan(pairs, max_instances=1).changed_rows == ()


class TestBucket:
    def test_terminations_are_limited_at_once_and_by_the_minute(self) -> None:
        # max(5, 30 / 4 = 8) = 8 at once.
        pairs = [(idle_instance(f"{n:02}", 30), running_with(IDLE)) for n in range(30)]
        plan = scale_plan(pairs, max_instances=30)
        assert len(state_changes(plan)) == 8
        assert plan.fleet.tokens == 0
        # 8 a minute: after 15 s two more.
        fleet = replace(plan.fleet, tokens_ms=NOW_MS - 15_000)
        assert len(state_changes(scale_plan(pairs, max_instances=30, fleet=fleet))) == 2

    def test_a_full_bucket_is_no_reason_to_write(self) -> None:
        first = scale_plan([(idle_instance("a", 1), running_with(IDLE))]).fleet
        fleet = replace(first, tokens_ms=NOW_MS - 60_000)
        assert scale_plan([(idle_instance("a", 1), running_with(IDLE))], fleet=fleet).fleet == fleet


class TestBoots:
    def test_a_launch_of_ten_that_does_not_boot_is_one_error(self) -> None:
        silent_ms = NOW_MS - 10 * MINUTE_MS
        rows = [starting_instance(f"i{n}", 31, silent_ms=silent_ms) for n in range(5)]
        plan = scale_plan([(row, running_with(None)) for row in rows])
        health = plan.fleet.health[SMALL.name]
        assert (health.kind, health.faults, health.given_up) == (ErrorKind.BOOT, 1, False)

    def test_what_is_taken_back_with_notice_while_it_boots_is_no_error(self) -> None:
        row = starting_instance("a", 2, offering=SPOT, notice_ms=NOW_MS - MINUTE_MS)
        plan = scale_plan([(row, cloud_lists(TERMINATED))], offerings=(SPOT,))
        health = plan.fleet.health[SPOT.name]
        assert (health.faults, health.interrupted_ms) == (0, NOW_MS)


def test_marks_of_a_clock_that_was_ahead_are_of_now() -> None:
    day_ms = 24 * 60 * MINUTE_MS
    ahead = instance("a", idle_ms=NOW_MS + day_ms, launched_ms=NOW_MS + day_ms)
    (row,) = scale_plan([(ahead, running_with(IDLE))]).changed_rows
    assert (row.idle_ms, row.launched_ms) == (NOW_MS, NOW_MS)
