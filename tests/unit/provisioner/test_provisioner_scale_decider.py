"""Decisions worked out from the rules of the scale decider; slots are 4 unless said otherwise."""

from dataclasses import replace

import pytest

from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceState,
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
        busy = ConnectedAgent(idle=False, takes_work=False, work=(4,))
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

    @pytest.mark.parametrize(("slots", "max_instances"), [(32, 4), (8, 1)])
    def test_the_minimum_makes_room_for_what_it_cannot_serve(
        self, slots: int, max_instances: int
    ) -> None:
        # 32 slots want 4 of 8 and 8 want 1, as many as may be: the one of 4 would be too many.
        bounds = {"min_instances": 1, "max_instances": max_instances, "offerings": (SMALL, BIG)}
        there = [(idle_instance("a", 20), running_with(IDLE))]
        demand = job_demand(slots)
        plan = scale_plan(there, demand, **bounds)
        assert state_changes(plan) == {"a": "DRAINING"}
        assert not plan.launches
        assert launch_counts(scale_plan([], demand, **bounds)) == {BIG.name: max_instances}

    @pytest.mark.parametrize(("slots", "max_instances"), [(32, 4), (8, 1)])
    def test_the_minimum_is_not_bought_again_where_it_would_be_in_the_way(
        self, slots: int, max_instances: int
    ) -> None:
        # No big ones are to be had for now. The one of 4 would go once they are tried again.
        closed = OfferingHealth(1, 0, ErrorKind.CAPACITY, "none", NOW_MS - 1, NOW_MS + MINUTE_MS)
        given = {"min_instances": 1, "offerings": (SMALL, BIG), "health": {BIG.name: closed}}
        demand = job_demand(slots)
        assert not scale_plan([], demand, max_instances=max_instances, **given).launches
        # It is held once nothing waits, and beside the 4 that 32 slots need; 8 are 2 of it.
        for waiting, most, count in (
            (job_demand(), max_instances, 1),
            (demand, max_instances + 1, {32: 1, 8: 2}[slots]),
        ):
            plan = scale_plan([], waiting, max_instances=most, **given)
            assert launch_counts(plan) == {SMALL.name: count}

    def test_the_minimum_stays_where_there_is_room_for_both(self) -> None:
        # 4 of 8 and the one of 4 are the 5 that may be.
        there = [(idle_instance("a", 20), running_with(IDLE))]
        bounds = {"min_instances": 1, "max_instances": 5, "offerings": (SMALL, BIG)}
        plan = scale_plan(there, job_demand(32), **bounds)
        assert not state_changes(plan)
        assert launch_counts(plan) == {BIG.name: 4}

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
        held = Demand((job_demand(3),), hold_reason="the pool is draining")
        assert len(state_changes(scale_plan(self.TWO, demand=held))) == 2


class TestLostInstances:
    def test_one_that_the_cloud_ended_has_ended(self) -> None:
        plan = scale_plan([(instance("a"), cloud_lists(TERMINATED))])
        (row,) = plan.changed_rows
        assert (row.state, row.ended_ms, row.reason) == (
            InstanceState.ENDED,
            NOW_MS,
            "the cloud terminated it",
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
        # It has 20 minutes to start.
        row = starting_instance("a", 19.9)
        assert not scale_plan([(row, running_with(None))]).changed_rows
        row = starting_instance("a", 20)
        plan = scale_plan([(row, running_with(None))])
        assert state_changes(plan) == {"a": "TERMINATING"}
        assert plan.fleet.health[SMALL.name].kind is ErrorKind.BOOT

    def test_one_that_ends_before_it_connects_counts_against_its_offering(self) -> None:
        # Half of the first 30 s, and 0.5 of the other half: not again for 22.5 s.
        plan = scale_plan([(starting_instance("a"), cloud_lists(TERMINATED))], job_demand(4))
        health = plan.fleet.health[SMALL.name]
        assert (health.kind, health.faults) == (ErrorKind.BOOT, 1)
        assert health.retry_ms == NOW_MS + 22_500
        assert plan.launches == ()
        assert plan.fleet.waits == (
            f"no instance can be launched: {SMALL.name}: boot: instance a ended before its agent "
            "enrolled (tried again in 22 s)"
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
        assert [
            (changed_row.missed_ms, changed_row.state) for changed_row in plan.changed_rows
        ] == [(None, InstanceState.RUNNING)]

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


def test_marks_of_a_clock_that_was_ahead_are_of_now() -> None:
    day_ms = 24 * 60 * MINUTE_MS
    ahead = instance("a", idle_ms=NOW_MS + day_ms, launched_ms=NOW_MS + day_ms)
    (row,) = scale_plan([(ahead, running_with(IDLE))]).changed_rows
    assert (row.idle_ms, row.launched_ms) == (NOW_MS, NOW_MS)


class TestOutageOfTheApi:
    """Agents cannot reach the cluster: their silence says nothing."""

    def test_nothing_is_silent_and_a_mark_of_silence_is_taken_back(self) -> None:
        row = instance("a", silent_ms=NOW_MS - 60 * MINUTE_MS)
        plan = scale_plan([(row, running_with(None))], api_down=True)
        assert state_changes(plan) == {}
        assert [changed_row.silent_ms for changed_row in plan.changed_rows] == [None]
        assert plan.fleet.outage_ms == NOW_MS

    def test_one_that_starts_has_its_time_from_the_end_of_the_outage_on(self) -> None:
        # It has 20 minutes to start, and was launched an hour ago.
        row = starting_instance("a", 60)
        assert state_changes(scale_plan([(row, running_with(None))], api_down=True)) == {}
        for minutes, expected in ((19.9, {}), (20, {"a": "TERMINATING"})):
            fleet = FleetRow("p", outage_ms=NOW_MS - int(minutes * MINUTE_MS), tokens=5)
            plan = scale_plan([(row, running_with(None))], fleet=fleet)
            assert state_changes(plan) == expected
            # What was launched before the outage ended says nothing of its offering.
            assert plan.fleet.health == {}

    def test_one_that_ended_itself_does_not_count_against_its_offering(self) -> None:
        ended = [(starting_instance("a"), cloud_lists(TERMINATED))]
        assert scale_plan(ended, api_down=True).fleet.health == {}

    def test_nothing_is_launched_that_could_not_enrol(self) -> None:
        plan = scale_plan([], job_demand(4), api_down=True)
        assert (plan.launches, plan.fleet.waits) == (
            (),
            "the cluster's API is down, so no instance could reach it",
        )
        assert launch_counts(scale_plan([], job_demand(4))) == {SMALL.name: 1}

    def test_idle_ones_end_as_ever(self) -> None:
        # Nobody can submit anything for them.
        plan = scale_plan([(idle_instance("a", 20), running_with(IDLE))], api_down=True)
        assert state_changes(plan) == {"a": "DRAINING"}

    def test_what_the_cloud_ended_has_ended(self) -> None:
        plan = scale_plan([(instance("a"), cloud_lists(TERMINATED))], api_down=True)
        assert state_changes(plan) == {"a": "ENDED"}


def test_an_agent_that_its_pool_has_not_been_told_of_yet_is_capacity() -> None:
    # It enrolled between the pool's last mail and this pass: 4 slots are wanted, and it brings 4.
    row = starting_instance("a", minutes=3)
    joining = replace(running_with(None), has_enrolled=True, is_joining=True)
    plan = scale_plan([(row, joining)], job_demand(4))
    assert plan.launches == ()
    [marked] = plan.changed_rows
    assert (marked.state, marked.connected_ms, marked.silent_ms) == ("RUNNING", NOW_MS, None)
    # Nor does the next pass count it as silent, and it comes back so after a loss.
    assert scale_plan([(marked, joining)], job_demand(4)).launches == ()
    silent = replace(marked, silent_ms=NOW_MS - MINUTE_MS)
    assert scale_plan([(silent, joining)], job_demand(4)).launches == ()
    # One whose session has ended is replaced.
    lost = replace(joining, is_joining=False)
    assert launch_counts(scale_plan([(marked, lost)], job_demand(4))) == {SMALL.name: 1}


def test_an_agent_that_no_pass_saw_connected_may_be_away_as_long_as_any_other() -> None:
    # It enrolled, worked and lost its connection between two passes.
    row = starting_instance("a", minutes=60)
    away = replace(running_with(None), has_enrolled=True)
    plan = scale_plan([(row, away)], starting_ms_max=5 * MINUTE_MS)
    assert state_changes(plan) == {}
    [marked] = plan.changed_rows
    assert (marked.connected_ms, marked.silent_ms) == (NOW_MS, NOW_MS)
    never = scale_plan([(row, running_with(None))], starting_ms_max=5 * MINUTE_MS)
    assert state_changes(never) == {"a": "TERMINATING"}
