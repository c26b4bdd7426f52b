"""Decisions of the scale decider. Instances have 4 slots unless a test says otherwise."""

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

TERMINATED, STOPPED = InstanceStatus.TERMINATED, InstanceStatus.STOPPED
RUNNING, PENDING = InstanceStatus.RUNNING, InstanceStatus.PENDING


class TestNotices:
    def test_notice_launches_replacement_above_maximum(self) -> None:
        # The running work counts as demand: 4 slots, 1 instance, even at the maximum.
        row = instance("a")
        plan = scale_plan([(row, running_with(BUSY, notice_ms=NOW_MS + 120_000))], max_instances=1)
        assert launch_counts(plan) == {SMALL.name: 1}
        assert plan.changed_rows == (replace(row, notice_ms=NOW_MS + 120_000),)

    def test_replacement_is_launched_once(self) -> None:
        # The replacement is starting: 4 slots - 4 slots = 0.
        pairs = [
            (instance("a", notice_ms=NOW_MS + 90_000), running_with(BUSY)),
            (starting_instance("b", 0.5), running_with(None)),
        ]
        assert scale_plan(pairs, max_instances=1).launches == ()

    def test_interrupted_offering_comes_last(self) -> None:
        row = instance("a", offering=SPOT)
        observation = running_with(BUSY, notice_ms=NOW_MS + 120_000)
        plan = scale_plan([(row, observation)], offerings=(SPOT, SPOT_B))
        assert launch_counts(plan) == {SPOT_B.name: 1}

    def test_rebalance_recommendation_drains_without_replacement(self) -> None:
        plan = scale_plan([(instance("a"), running_with(BUSY, rebalance=True))], job_demand())
        assert state_changes(plan) == {"a": "DRAINING"}
        assert plan.launches == ()


class TestFreedQuota:
    @pytest.mark.parametrize(
        ("kind", "launched"), [(ErrorKind.QUOTA, {SMALL.name: 1}), (ErrorKind.CAPACITY, {})]
    )
    def test_end_of_an_instance_ends_the_back_off_of_a_used_up_quota(
        self, kind: ErrorKind, launched: dict[str, int]
    ) -> None:
        health = OfferingHealth(
            errors=1, kind=kind, failed_ms=NOW_MS - 1000, retry_ms=NOW_MS + 90_000
        )
        row, known = instance("a", notice_ms=NOW_MS - 30_000), {SMALL.name: health}
        # While the instance runs, the back-off holds.
        running = scale_plan([(row, running_with(BUSY))], job_demand(4), health=known)
        assert launch_counts(running) == {}
        ended = scale_plan([(row, cloud_lists(TERMINATED))], job_demand(4), health=known)
        assert launch_counts(ended) == launched


class TestIdleInstances:
    def test_idle_instance_drains_before_termination(self) -> None:
        row = idle_instance("a", 20)
        assert state_changes(scale_plan([(row, running_with(IDLE))])) == {"a": "DRAINING"}
        draining = replace(row, state=InstanceState.DRAINING, reason="it was idle for 1200 s")
        assert state_changes(scale_plan([(draining, running_with(IDLE))])) == {}
        assert state_changes(scale_plan([(draining, running_with(DRAINED))])) == {
            "a": "TERMINATING"
        }

    def test_closed_devices_do_not_end_a_draining_instance(self) -> None:
        # The agent takes work again as soon as a device recovers.
        draining = replace(idle_instance("a", 20), state=InstanceState.DRAINING, reason="idle")
        faulty = ConnectedAgent(idle=True, takes_work=False)
        assert state_changes(scale_plan([(draining, running_with(faulty))])) == {}

    def test_busy_draining_instance_is_not_terminated(self) -> None:
        draining = instance("a", state=InstanceState.DRAINING, reason="it was idle for 1200 s")
        busy = ConnectedAgent(False, takes_work=False, work=(4,), is_closed=True)
        assert state_changes(scale_plan([(draining, running_with(busy))])) == {}

    def test_instance_stays_before_the_idle_limit(self) -> None:
        # Idle for 19.9 of 20 minutes.
        assert scale_plan([(idle_instance("a", 19.9), running_with(IDLE))]).changed_rows == ()

    def test_work_clears_the_idle_mark(self) -> None:
        plan = scale_plan([(idle_instance("a", 30), running_with(BUSY))])
        assert [row.idle_ms for row in plan.changed_rows] == [None]
        assert state_changes(plan) == {}

    def test_keeps_the_minimum_of_idle_instances(self) -> None:
        # Three are idle and the minimum is two. The instance with the longest idle time drains.
        pairs = [
            (idle_instance(name, minutes), running_with(IDLE))
            for name, minutes in (("a", 25), ("b", 40), ("c", 30))
        ]
        assert state_changes(scale_plan(pairs, min_instances=2)) == {"b": "DRAINING"}

    @pytest.mark.parametrize(("slots", "max_instances"), [(32, 4), (8, 1)])
    def test_minimum_drains_for_a_request_that_lacks_room(
        self, slots: int, max_instances: int
    ) -> None:
        # 32 slots need 4 instances of 8, and 8 slots need 1. The maximum leaves no room for `a`.
        bounds = {"min_instances": 1, "max_instances": max_instances, "offerings": (SMALL, BIG)}
        fleet = [(idle_instance("a", 20), running_with(IDLE))]
        demand = job_demand(slots)
        plan = scale_plan(fleet, demand, **bounds)
        assert state_changes(plan) == {"a": "DRAINING"}
        assert not plan.launches
        assert launch_counts(scale_plan([], demand, **bounds)) == {BIG.name: max_instances}

    @pytest.mark.parametrize(("slots", "max_instances"), [(32, 4), (8, 1)])
    def test_minimum_leaves_room_for_a_request(self, slots: int, max_instances: int) -> None:
        # BIG is in back-off. A small instance would drain at BIG's next attempt.
        closed = OfferingHealth(1, 0, ErrorKind.CAPACITY, "none", NOW_MS - 1, NOW_MS + MINUTE_MS)
        given = {"min_instances": 1, "offerings": (SMALL, BIG), "health": {BIG.name: closed}}
        demand = job_demand(slots)
        assert not scale_plan([], demand, max_instances=max_instances, **given).launches
        # The minimum is launched without demand and with spare room. 8 slots use 2 small instances.
        for waiting, most, count in (
            (job_demand(), max_instances, 1),
            (demand, max_instances + 1, {32: 1, 8: 2}[slots]),
        ):
            plan = scale_plan([], waiting, max_instances=most, **given)
            assert launch_counts(plan) == {SMALL.name: count}

    def test_minimum_stays_beside_a_request_with_room(self) -> None:
        # 4 instances of 8 and one of 4 are the maximum of 5.
        fleet = [(idle_instance("a", 20), running_with(IDLE))]
        bounds = {"min_instances": 1, "max_instances": 5, "offerings": (SMALL, BIG)}
        plan = scale_plan(fleet, job_demand(32), **bounds)
        assert not state_changes(plan)
        assert launch_counts(plan) == {BIG.name: 4}

    def test_busy_instances_count_for_the_minimum(self) -> None:
        # Two of three instances are busy, and 3 - 1 >= 2.
        pairs = [
            (instance("a"), running_with()),
            (instance("b"), running_with()),
            (idle_instance("c", 30), running_with(IDLE)),
        ]
        assert state_changes(scale_plan(pairs, min_instances=2)) == {"c": "DRAINING"}

    def test_most_expensive_idle_instance_drains_first(self) -> None:
        pairs = [
            (idle_instance("a", 40, offering=SPOT), running_with(IDLE)),
            (idle_instance("b", 25), running_with(IDLE)),
        ]
        assert state_changes(scale_plan(pairs, min_instances=1)) == {"b": "DRAINING"}

    def test_busy_instances_stay_without_pending_work(self) -> None:
        pairs = [(instance(name), running_with()) for name in "abc"]
        plan = scale_plan(pairs)
        assert not plan.changed_rows
        assert not plan.launches

    def test_idle_time_restarts_after_a_gap_without_passes(self) -> None:
        # Of 30 idle minutes, no pass observed 25, so 5 count.
        fleet = FleetRow("p", passed_ms=NOW_MS, resumed_ms=NOW_MS - 5 * MINUTE_MS)
        assert (
            state_changes(scale_plan([(idle_instance("a", 30), running_with(IDLE))], fleet=fleet))
            == {}
        )


class TestRequestedIdleInstances:
    TWO = tuple((idle_instance(name, 30), running_with(IDLE)) for name in "ab")

    def test_idle_instances_stay_for_waiting_requests(self) -> None:
        assert len(state_changes(scale_plan(self.TWO, job_demand(3)))) == 1
        assert not state_changes(scale_plan(self.TWO, job_demand(3, 3)))

    def test_idle_instances_drain_if_requests_cannot_use_them(self) -> None:
        assert len(state_changes(scale_plan(self.TWO, job_demand(3, room=0)))) == 2
        assert len(state_changes(scale_plan(self.TWO, job_demand(7)))) == 2
        demand = Demand((job_demand(3),), hold_reason="the pool is draining")
        assert len(state_changes(scale_plan(self.TWO, demand=demand))) == 2


class TestLostInstances:
    def test_instance_terminated_by_the_cloud_is_ended(self) -> None:
        plan = scale_plan([(instance("a"), cloud_lists(TERMINATED))])
        (row,) = plan.changed_rows
        assert (row.state, row.ended_ms, row.reason) == (
            InstanceState.ENDED,
            NOW_MS,
            "the cloud terminated it",
        )

    def test_stopped_instance_is_terminated_without_a_token(self) -> None:
        empty = FleetRow("p", passed_ms=NOW_MS, tokens=0.0, tokens_ms=NOW_MS)
        plan = scale_plan([(instance("a"), cloud_lists(STOPPED))], fleet=empty)
        assert state_changes(plan) == {"a": "TERMINATING"}

    def test_stopped_instances_do_not_count_for_the_minimum(self) -> None:
        # Two instances count, both past the idle limit. With a minimum of 1, one drains.
        pairs = [
            (instance("s"), cloud_lists(STOPPED)),
            (idle_instance("a", 30), running_with(IDLE)),
            (idle_instance("b", 30), running_with(IDLE)),
        ]
        assert state_changes(scale_plan(pairs, min_instances=1)) == {
            "s": "TERMINATING",
            "a": "DRAINING",
        }

    def test_terminates_after_ten_minutes_of_silence(self) -> None:
        for minutes, expected in ((9.9, {}), (10, {"a": "TERMINATING"})):
            row = instance("a", silent_ms=NOW_MS - int(minutes * MINUTE_MS))
            plan = scale_plan([(row, running_with(None))])
            assert state_changes(plan) == expected
            assert plan.disconnected == tuple(expected)

    def test_first_missed_pass_sets_the_silence_mark(self) -> None:
        plan = scale_plan([(instance("a"), running_with(None))])
        assert [row.silent_ms for row in plan.changed_rows] == [NOW_MS]

    def test_terminates_after_the_starting_period_without_agent(self) -> None:
        # The starting period is 20 minutes.
        row = starting_instance("a", 19.9)
        assert not scale_plan([(row, running_with(None))]).changed_rows
        row = starting_instance("a", 20)
        plan = scale_plan([(row, running_with(None))])
        assert state_changes(plan) == {"a": "TERMINATING"}
        assert plan.fleet.health[SMALL.name].kind is ErrorKind.BOOT

    def test_end_before_connection_counts_as_boot_failure(self) -> None:
        # The back-off is half of 30 s and 0.5 of the other half: 22.5 s.
        plan = scale_plan([(starting_instance("a"), cloud_lists(TERMINATED))], job_demand(4))
        health = plan.fleet.health[SMALL.name]
        assert (health.kind, health.faults) == (ErrorKind.BOOT, 1)
        assert health.retry_ms == NOW_MS + 22_500
        assert plan.launches == ()
        assert plan.fleet.waits == (
            f"no instance can be launched: {SMALL.name}: boot: instance a ended before its agent "
            "enrolled (tried again in 22 s)"
        )

    def test_connected_agent_clears_the_errors_of_its_offering(self) -> None:
        health = {SMALL.name: OfferingHealth(errors=3, faults=3, kind=ErrorKind.BOOT)}
        plan = scale_plan([(starting_instance("a"), running_with(IDLE))], health=health)
        assert plan.fleet.health == {}

    def test_unlisted_fresh_instance_stays(self) -> None:
        assert scale_plan([(starting_instance("a", 0.9), cloud_lists(None))]).changed_rows == ()

    def test_unlisted_instance_is_ended_after_a_minute(self) -> None:
        for seconds, expected in ((59, {}), (60, {"a": "ENDED"})):
            row = starting_instance("a", 3, missed_ms=NOW_MS - seconds * 1000)
            assert state_changes(scale_plan([(row, cloud_lists(None))])) == expected

    def test_unlisted_instance_with_connected_agent_stays(self) -> None:
        row = instance("a", missed_ms=NOW_MS - 5 * MINUTE_MS)
        plan = scale_plan([(row, cloud_lists(None, BUSY))])
        assert [
            (changed_row.missed_ms, changed_row.state) for changed_row in plan.changed_rows
        ] == [(None, InstanceState.RUNNING)]

    def test_terminating_instance_stays_until_the_cloud_reports_its_end(self) -> None:
        row = instance("a", state=InstanceState.TERMINATING, reason="it was idle")
        assert scale_plan([(row, cloud_lists(RUNNING))]).changed_rows == ()
        (ended,) = scale_plan([(row, cloud_lists(TERMINATED))]).changed_rows
        assert (ended.state, ended.reason) == (InstanceState.ENDED, "it was idle")

    def test_unknown_status_changes_nothing(self) -> None:
        plan = scale_plan(
            [(instance("a"), cloud_lists(InstanceStatus.UNKNOWN, BUSY))], min_instances=1
        )
        assert not plan.changed_rows
        assert not plan.launches


class TestMaximum:
    def test_excess_instances_leave_in_order_and_busy_agents_drain(self) -> None:
        # Five instances exist and the maximum is one. Four leave in the order of priority.
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
        # The commit fails if one of these agents enrols in the meantime.
        assert plan.disconnected == ("request", "boots")

    def test_draining_instances_do_not_count_as_excess(self) -> None:
        # Two of three instances drain already, which satisfies the maximum of one.
        pairs = [
            (
                instance("a", state=InstanceState.DRAINING),
                running_with(DRAINING),
            ),
            (
                instance("b", state=InstanceState.DRAINING),
                running_with(DRAINING),
            ),
            (instance("c"), running_with()),
        ]
        assert scale_plan(pairs, max_instances=1).changed_rows == ()


class TestBucket:
    def test_token_bucket_limits_drains_at_once_and_per_minute(self) -> None:
        # The bucket allows max(5, 30 / 4 = 8) = 8 at once.
        pairs = [(idle_instance(f"{n:02}", 30), running_with(IDLE)) for n in range(30)]
        plan = scale_plan(pairs, max_instances=30)
        assert len(state_changes(plan)) == 8
        assert plan.fleet.tokens == 0
        # The bucket gains 8 a minute, which is two in 15 s.
        fleet = replace(plan.fleet, tokens_ms=NOW_MS - 15_000)
        assert len(state_changes(scale_plan(pairs, max_instances=30, fleet=fleet))) == 2

    def test_full_token_bucket_changes_no_row(self) -> None:
        first = scale_plan([(idle_instance("a", 1), running_with(IDLE))]).fleet
        fleet = replace(first, tokens_ms=NOW_MS - 60_000)
        assert scale_plan([(idle_instance("a", 1), running_with(IDLE))], fleet=fleet).fleet == fleet


def test_future_marks_become_the_present_time() -> None:
    day_ms = 24 * 60 * MINUTE_MS
    ahead = instance("a", idle_ms=NOW_MS + day_ms, launched_ms=NOW_MS + day_ms)
    (row,) = scale_plan([(ahead, running_with(IDLE))]).changed_rows
    assert (row.idle_ms, row.launched_ms) == (NOW_MS, NOW_MS)


class TestOutageOfTheApi:
    """Decisions while agents cannot reach the cluster."""

    def test_api_outage_clears_silence_marks(self) -> None:
        row = instance("a", silent_ms=NOW_MS - 60 * MINUTE_MS)
        plan = scale_plan([(row, running_with(None))], api_down=True)
        assert state_changes(plan) == {}
        assert [changed_row.silent_ms for changed_row in plan.changed_rows] == [None]
        assert plan.fleet.outage_ms == NOW_MS

    def test_starting_period_restarts_after_an_outage(self) -> None:
        # The starting period is 20 minutes, and the launch was an hour ago.
        row = starting_instance("a", 60)
        assert state_changes(scale_plan([(row, running_with(None))], api_down=True)) == {}
        for minutes, expected in ((19.9, {}), (20, {"a": "TERMINATING"})):
            fleet = FleetRow("p", outage_ms=NOW_MS - int(minutes * MINUTE_MS), tokens=5)
            plan = scale_plan([(row, running_with(None))], fleet=fleet)
            assert state_changes(plan) == expected
            # Launches from before the end of the outage do not count for the offering.
            assert plan.fleet.health == {}

    def test_boot_failure_during_an_outage_does_not_count(self) -> None:
        ended = [(starting_instance("a"), cloud_lists(TERMINATED))]
        assert scale_plan(ended, api_down=True).fleet.health == {}

    def test_launches_nothing_during_an_outage(self) -> None:
        plan = scale_plan([], job_demand(4), api_down=True)
        assert (plan.launches, plan.fleet.waits) == (
            (),
            "the cluster's API is down, so no instance could reach it",
        )
        assert launch_counts(scale_plan([], job_demand(4))) == {SMALL.name: 1}

    def test_idle_instances_drain_during_an_outage(self) -> None:
        # Users cannot submit work during the outage.
        plan = scale_plan([(idle_instance("a", 20), running_with(IDLE))], api_down=True)
        assert state_changes(plan) == {"a": "DRAINING"}

    def test_cloud_termination_during_an_outage_ends_the_instance(self) -> None:
        plan = scale_plan([(instance("a"), cloud_lists(TERMINATED))], api_down=True)
        assert state_changes(plan) == {"a": "ENDED"}


def test_joining_agent_counts_as_capacity() -> None:
    # The agent enrolled after the pool's last message. The request needs the agent's 4 slots.
    row = starting_instance("a", minutes=3)
    joining = replace(running_with(None), has_enrolled=True, is_joining=True)
    plan = scale_plan([(row, joining)], job_demand(4))
    assert plan.launches == ()
    [marked] = plan.changed_rows
    assert (marked.state, marked.connected_ms, marked.silent_ms) == ("RUNNING", NOW_MS, None)
    # The next pass does not count the agent as silent, nor after an earlier loss.
    assert scale_plan([(marked, joining)], job_demand(4)).launches == ()
    silent = replace(marked, silent_ms=NOW_MS - MINUTE_MS)
    assert scale_plan([(silent, joining)], job_demand(4)).launches == ()
    # An agent without a live session is replaced.
    lost = replace(joining, is_joining=False)
    assert launch_counts(scale_plan([(marked, lost)], job_demand(4))) == {SMALL.name: 1}


def test_agent_that_connected_between_passes_gets_the_silence_limit() -> None:
    # The agent enrolled and lost the connection between two passes.
    row = starting_instance("a", minutes=60)
    away = replace(running_with(None), has_enrolled=True)
    plan = scale_plan([(row, away)], starting_ms_max=5 * MINUTE_MS)
    assert state_changes(plan) == {}
    [marked] = plan.changed_rows
    assert (marked.connected_ms, marked.silent_ms) == (NOW_MS, NOW_MS)
    never = scale_plan([(row, running_with(None))], starting_ms_max=5 * MINUTE_MS)
    assert state_changes(never) == {"a": "TERMINATING"}
