"""A pool that releases jobs to the next preferred pools."""

import pytest

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.experiment import WaitEnded
from control_plane.actors.messages.pool import (
    AgentLost,
    BudgetChecked,
    JobChanged,
    PatienceEnded,
    PoolSettings,
    SchedulingContinued,
    SupplyChecked,
)
from control_plane.actors.pool.patience import RELEASED_MAX
from control_plane.scheduling.model import SchedulerRules
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.pool_messages import (
    POOL,
    agent_joined,
    group_of,
    pool,
    running,
    slots_released,
    slots_requested,
    write_job,
)

PATIENCE = 600_000
PATIENT = JobRow(patience_ms=PATIENCE)
LATER = JobRow(patience_ms=PATIENCE, stay=2, rounds=1, waits_since_ms=1)
PROVIDED = PoolSettings(provider="{}")
NOTHING_STARTED = f"nothing of it started in pool {POOL} for 10 min"


def busy_pool(row: JobRow = PATIENT, settings: PoolSettings | None = None) -> ActorHarness:
    """Create a pool in which job 1 has the only slot, and job 2 waits with several pools."""
    joined = (agent_joined("a", 1), slots_requested(1, 1))
    actor = pool(*joined, settings=settings, job1=JobRow(), job2=row)
    actor.deliver(slots_requested(2, 2))
    assert running(actor) == [1]
    return actor


def wait_ends(actor: ActorHarness) -> list[WaitEnded]:
    """Return the WaitEnded messages to experiment 2 of the last delivery."""
    messages = actor.messages_to("experiment#2")
    assert all(isinstance(one, WaitEnded) for one in messages)
    return [one for one in messages if isinstance(one, WaitEnded)]


def timers(actor: ActorHarness) -> list[tuple[int, object]]:
    return [(timer.due_ms, timer.message) for timer in actor.timers]


def test_job_is_released_if_no_trial_started_within_the_patience() -> None:
    actor = busy_pool()
    ended = PatienceEnded(2, START_MS)
    assert timers(actor) == [(START_MS + PATIENCE, ended)]
    assert wait_ends(actor) == []
    actor.now_ms += PATIENCE
    actor.deliver(ended)
    assert wait_ends(actor) == [WaitEnded(POOL, 0, START_MS, NOTHING_STARTED)]
    assert group_of(actor, 2).released


def test_job_with_a_single_pool_sets_no_timer() -> None:
    actor = busy_pool(JobRow())
    assert actor.timers == []
    actor.now_ms += PATIENCE
    actor.deliver(PatienceEnded(2, START_MS), BudgetChecked(over_budget=True))
    assert actor.sent == []


def test_timer_of_an_earlier_wait_changes_no_state() -> None:
    actor = busy_pool()
    actor.now_ms += 1
    actor.deliver(slots_released(1, 1, "a"))
    assert running(actor) == [2]
    assert group_of(actor, 2).stays_since_ms is None
    actor.now_ms = START_MS + PATIENCE
    actor.deliver(PatienceEnded(2, START_MS))
    assert actor.sent == []
    # The job lost its slots with the agent, and begins a new wait.
    actor.deliver(AgentLost("a", 1, "silent"), agent_joined("b", 1), slots_requested(3, 1))
    actor.deliver(slots_requested(2, 2, epoch=2))
    assert running(actor) == [3]
    assert timers(actor)[1:] == [(START_MS + 2 * PATIENCE, PatienceEnded(2, actor.now_ms))]
    actor.deliver(PatienceEnded(2, START_MS))
    assert actor.sent == []


def test_job_with_a_running_trial_is_not_released() -> None:
    actor = busy_pool()
    actor.deliver(agent_joined("b", 1), slots_requested(3, 2))
    assert running(actor) == [1, 2]
    actor.now_ms += 10 * PATIENCE
    actor.deliver(PatienceEnded(2, START_MS), BudgetChecked(over_budget=True))
    assert actor.sent == []


def test_second_request_does_not_restart_the_wait() -> None:
    actor = busy_pool()
    actor.now_ms += PATIENCE - 1
    actor.deliver(slots_requested(3, 2))
    assert group_of(actor, 2).stays_since_ms == START_MS
    assert len(actor.timers) == 1


@pytest.mark.parametrize(
    ("settings", "message", "reason"),
    [
        (None, BudgetChecked(over_budget=True), f"the budget of pool {POOL} is used up"),
        (
            PROVIDED,
            SupplyChecked("none to be had", START_MS + 1),
            f"pool {POOL} gets no instances: none to be had",
        ),
        (
            None,
            AgentLost("a", 1, "silent"),
            f"pool {POOL} has no agents and launches none",
        ),
    ],
)
def test_closed_pool_releases_a_job_immediately_and_once(
    settings: PoolSettings | None, message: object, reason: str
) -> None:
    actor = busy_pool(settings=settings)
    actor.deliver(message)
    assert wait_ends(actor) == [WaitEnded(POOL, 0, START_MS, reason)]
    actor.deliver(message, slots_requested(9, 9))
    assert wait_ends(actor) == []


def test_closed_pool_releases_a_new_job_with_the_first_request() -> None:
    actor = pool(settings=PoolSettings(draining=True), job2=PATIENT)
    actor.deliver(slots_requested(2, 2))
    assert wait_ends(actor) == [WaitEnded(POOL, 0, START_MS, f"pool {POOL} is draining")]


def test_lack_of_supply_expires() -> None:
    actor = pool(SupplyChecked("none", START_MS + 5), settings=PROVIDED, job2=PATIENT)
    actor.now_ms += 5
    actor.deliver(slots_requested(2, 2))
    assert wait_ends(actor) == []
    actor.deliver(SupplyChecked("none", START_MS + 50))
    assert len(wait_ends(actor)) == 1
    actor = pool(SupplyChecked("none", START_MS + 5), SupplyChecked("", 0), settings=PROVIDED)
    write_job(actor, 2, PATIENT)
    actor.deliver(slots_requested(2, 2))
    assert wait_ends(actor) == []


def test_later_round_waits_for_the_whole_patience_in_a_closed_pool() -> None:
    actor = busy_pool(LATER)
    actor.deliver(BudgetChecked(over_budget=True))
    assert wait_ends(actor) == []
    actor.now_ms += PATIENCE
    actor.deliver(PatienceEnded(2, START_MS))
    reason = f"{NOTHING_STARTED}; the budget of pool {POOL} is used up"
    assert wait_ends(actor) == [WaitEnded(POOL, 2, START_MS, reason)]


def test_later_round_waits_twice_as_long_in_an_open_pool() -> None:
    actor = busy_pool(LATER)
    actor.now_ms += PATIENCE
    actor.deliver(PatienceEnded(2, START_MS))
    assert wait_ends(actor) == []
    assert timers(actor)[1:] == [(START_MS + 2 * PATIENCE, PatienceEnded(2, START_MS))]
    actor.now_ms += PATIENCE
    actor.deliver(PatienceEnded(2, START_MS))
    assert len(wait_ends(actor)) == 1


def test_later_round_waits_while_slots_are_reserved() -> None:
    turns = PoolSettings(SchedulerRules("round_robin"), reserve_after_ms=PATIENCE)
    actor = busy_pool(LATER, turns)
    # The wait in the earlier pools counts as well, so a reservation for the job is due.
    actor.now_ms = 1 + PATIENCE
    actor.deliver(slots_requested(3, 3))
    assert actor.state.reservation.group == 2
    actor.now_ms = START_MS + 2 * PATIENCE
    actor.deliver(PatienceEnded(2, START_MS))
    assert wait_ends(actor) == []
    assert timers(actor)[-1] == (actor.now_ms + PATIENCE, PatienceEnded(2, START_MS))


def test_job_that_comes_back_begins_a_new_wait() -> None:
    actor = busy_pool()
    actor.now_ms += 7
    write_job(actor, 2, JobRow(patience_ms=PATIENCE, stay=2, rounds=1))
    actor.deliver(JobChanged(2))
    assert group_of(actor, 2).stays_since_ms == START_MS + 7
    actor.now_ms = START_MS + PATIENCE
    actor.deliver(PatienceEnded(2, START_MS))
    assert actor.sent == []


def test_wait_from_the_future_begins_now() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), job2=PATIENT)
    actor.now_ms = START_MS + 10**9
    actor.deliver(slots_requested(2, 2))
    actor.now_ms = START_MS
    actor.deliver(slots_requested(3, 3))
    assert group_of(actor, 2).stays_since_ms == START_MS
    assert timers(actor)[-1] == (START_MS + PATIENCE, PatienceEnded(2, START_MS))


def test_excess_jobs_are_released_by_the_next_commit() -> None:
    numbers = range(1, RELEASED_MAX + 4)
    actor = pool(settings=PoolSettings(draining=True), **{f"job{n}": PATIENT for n in numbers})
    actor.deliver(*(slots_requested(n, n) for n in numbers))
    assert len(actor.all_messages(WaitEnded)) == RELEASED_MAX
    assert actor.messages_to(actor.address) == [SchedulingContinued()]
    actor.deliver(SchedulingContinued())
    assert len(actor.all_messages(WaitEnded)) == len(numbers)
    assert actor.messages_to(actor.address) == []
