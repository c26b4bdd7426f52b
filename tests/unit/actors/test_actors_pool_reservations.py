"""A pool that reserves slots for a job that has waited too long."""

import pytest

from control_plane.actors.messages.agent import AllocationPlaced
from control_plane.actors.messages.pool import (
    AgentLost,
    PoolConfigured,
    PoolSettings,
    SchedulingContinued,
)
from control_plane.actors.pool.groups import Group
from control_plane.scheduling.model import SchedulerRules
from control_plane.scheduling.reservations import Reservation
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.pool_messages import (
    agent_joined,
    group_of,
    pool,
    preempted_trials,
    running,
    slots_released,
    slots_requested,
)

AFTER_MS = 600
GANG = 20
TAKING_TURNS = PoolSettings(SchedulerRules("round_robin"), reserve_after_ms=AFTER_MS)
SHARING = PoolSettings(SchedulerRules("fair_share"), reserve_after_ms=AFTER_MS)


def busy_pool(settings: PoolSettings) -> ActorHarness:
    """Create two full agents with jobs 1 to 4.

    Job 20 waits for all four slots, and job 21 for a slot.
    """
    small = [slots_requested(n, n) for n in range(1, 5)]
    joined = [agent_joined("a", 2), agent_joined("b", 2)]
    actor = pool(*joined, *small, settings=settings)
    actor.deliver(slots_requested(GANG, GANG, slots=4), slots_requested(21, 21))
    assert running(actor) == [1, 2, 3, 4]
    return actor


def release(actor: ActorHarness, *trials: int) -> None:
    actor.deliver(*(slots_released(n, n) for n in trials))


def test_freed_slots_are_reserved_after_the_wait() -> None:
    actor = busy_pool(TAKING_TURNS)
    actor.now_ms = START_MS + AFTER_MS
    release(actor, 1)
    assert actor.state.reservation == Reservation(GANG, 4, ("a", "b"), started=4)
    (reason,) = [one for one in actor.reasons if "waited" in one]
    assert reason == "4 slots of a, b are held for job 20, which has waited too long"
    assert running(actor) == [2, 3, 4]
    release(actor, 2, 3, 4)
    assert running(actor) == [GANG]
    assert actor.state.reservation is None
    assert len(actor.all_messages(AllocationPlaced)) == 4 + 2


@pytest.mark.parametrize(
    ("settings", "now_ms"),
    [
        (TAKING_TURNS, START_MS + AFTER_MS - 1),
        (PoolSettings(SchedulerRules("round_robin")), START_MS + 10**9),
    ],
)
def test_small_requests_pass_before_the_wait_is_over(settings: PoolSettings, now_ms: int) -> None:
    actor = busy_pool(settings)
    actor.now_ms = now_ms
    release(actor, 1)
    assert running(actor) == [2, 3, 4, 21]
    assert actor.state.reservation is None


def test_reservation_ends_with_the_job_or_the_agent() -> None:
    for gone in (slots_released(GANG, GANG), AgentLost("b", 1, "silent")):
        actor = busy_pool(TAKING_TURNS)
        actor.now_ms += AFTER_MS
        release(actor, *(n for n in (1, 2, 3, 4) if n not in (3, 4)))
        assert actor.state.reservation is not None
        actor.deliver(gone)
        assert actor.state.reservation is None
        assert 21 in running(actor)


def test_fair_share_protects_the_allocation_for_a_second_wait() -> None:
    actor = busy_pool(SHARING)
    actor.now_ms = until = START_MS + AFTER_MS
    release(actor, 1)
    # Lent, then taken back.
    assert running(actor) == [2, 3, 4, 21]
    release(actor, 2, 3, 4)
    assert preempted_trials(actor) == ["trial#21"]
    actor.deliver(slots_requested(21, 21, epoch=2), slots_released(21, 21))
    assert running(actor) == [GANG]
    until += AFTER_MS
    actor.now_ms = until - 1
    actor.deliver(*(slots_requested(n, n) for n in range(5, 9)))
    assert preempted_trials(actor) == []
    (timer,) = actor.timers
    assert (timer.due_ms, timer.message) == (until, SchedulingContinued())
    actor.now_ms = until
    actor.deliver(timer.message)
    assert preempted_trials(actor) == [f"trial#{GANG}"]
    assert actor.state.protected == ()


def test_wait_begins_with_the_request_and_after_the_last_release() -> None:
    actor = busy_pool(TAKING_TURNS)
    assert group_of(actor, GANG).waits_since_ms == START_MS
    assert group_of(actor, 21).waits_since_ms == START_MS
    actor.now_ms += 5
    actor.deliver(slots_requested(22, GANG, slots=4))
    assert group_of(actor, GANG).waits_since_ms == START_MS
    release(actor, 1, 2, 3, 4)
    release(actor, 21)
    assert group_of(actor, GANG).waits_since_ms is None
    actor.now_ms += 5
    actor.deliver(slots_requested(23, 23), slots_released(GANG, GANG))
    assert running(actor) == [22]
    actor.deliver(slots_requested(24, GANG, slots=4))
    assert group_of(actor, GANG).waits_since_ms is None
    actor.deliver(slots_requested(5, 5), slots_released(22, GANG))
    assert group_of(actor, GANG) == Group(
        group_of(actor, GANG).row, pending={4: 1}, waits_since_ms=actor.now_ms
    )


def test_job_without_a_recorded_wait_has_waited_since_submission() -> None:
    """Older releases and pools without reservations record no waits."""
    actor = busy_pool(PoolSettings(SchedulerRules("round_robin")))
    assert group_of(actor, GANG).waits_since_ms is None
    actor.deliver(PoolConfigured("default", TAKING_TURNS))
    release(actor, 1)
    assert running(actor) == [2, 3, 4]
    assert actor.state.reservation is not None


DAY_MS = 86_400_000


def test_wait_from_the_future_begins_now() -> None:
    actor = pool(
        agent_joined("a", 2),
        agent_joined("b", 2),
        *(slots_requested(n, n) for n in range(1, 5)),
        settings=TAKING_TURNS,
    )
    actor.now_ms = START_MS + DAY_MS
    actor.deliver(slots_requested(GANG, GANG, slots=4))
    assert group_of(actor, GANG).waits_since_ms == START_MS + DAY_MS
    # The clock is right again, and the message is about another job.
    actor.now_ms = START_MS
    actor.deliver(slots_requested(21, 21))
    assert group_of(actor, GANG).waits_since_ms == START_MS
    actor.now_ms = START_MS + AFTER_MS
    release(actor, 1)
    assert actor.state.reservation == Reservation(GANG, 4, ("a", "b"), started=4)


def test_protection_from_the_future_begins_now() -> None:
    actor = busy_pool(SHARING)
    actor.now_ms = START_MS + AFTER_MS
    release(actor, 1)
    release(actor, 2, 3, 4)
    actor.deliver(slots_requested(21, 21, epoch=2))
    actor.now_ms += DAY_MS
    actor.deliver(slots_released(21, 21))
    assert running(actor) == [GANG]
    actor.now_ms = START_MS
    actor.deliver(*(slots_requested(n, n) for n in range(5, 9)))
    assert [one.until_ms for one in actor.state.protected] == [START_MS + AFTER_MS]
    timer = actor.timers[-1]
    assert (timer.due_ms, timer.message) == (START_MS + AFTER_MS, SchedulingContinued())
    actor.now_ms = timer.due_ms
    actor.deliver(timer.message)
    assert preempted_trials(actor) == [f"trial#{GANG}"]
