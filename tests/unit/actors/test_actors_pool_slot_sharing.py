"""Trials of a job that share slots: starts, counts, preemption, releases and losses."""

from dataclasses import replace

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.agent import AllocationPlaced
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentLost,
    JobChanged,
    PoolConfigured,
    PoolSettings,
)
from control_plane.actors.messages.trial import AllocationLost, PreemptionRequested, SlotsAssigned
from control_plane.actors.records import Availability, Place
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.pool_messages import (
    PREEMPTING,
    agent_joined,
    agents,
    group_of,
    pool,
    preempted_trials,
    running,
    slots_released,
    slots_requested,
    write_job,
)

SHARED = JobRow(slot_sharers=3)


def shared_pool(trials: int, slots: int = 4, row: JobRow = SHARED) -> ActorHarness:
    """Create a pool with one agent, and request slots for trials of job 1, of which three share."""
    requests = (slots_requested(trial, 1) for trial in range(1, trials + 1))
    return pool(agent_joined("a", slots), *requests, job1=row)


def trials_by_slot(actor: ActorHarness, agent: str = "a") -> dict[int, list[int]]:
    """Return the ids of the trials on each used slot."""
    found: dict[int, list[int]] = {}
    for name, [slot] in agents(actor)[agent].items():
        found.setdefault(slot, []).append(int(name.split(".")[0]))
    return {slot: sorted(found[slot]) for slot in sorted(found)}


def counts(actor: ActorHarness) -> tuple[int, int, int]:
    """Return the running allocations, the held slots and the leaving slots of job 1."""
    group = group_of(actor, 1)
    return group.running, group.held, group.leaving


def test_three_trials_start_on_each_slot() -> None:
    actor = shared_pool(7)
    assert trials_by_slot(actor) == {0: [1, 2, 3], 1: [4, 5, 6], 2: [7]}
    assert (actor.state.running, actor.state.free, actor.state.queued) == (7, 1, 0)
    assert counts(actor) == (7, 3, 0)


def test_later_trial_starts_on_the_fullest_slot_with_room() -> None:
    actor = shared_pool(7)
    actor.deliver(slots_released(1, 1, "a"))
    actor.deliver(slots_requested(8, 1))
    assert trials_by_slot(actor) == {0: [2, 3, 8], 1: [4, 5, 6], 2: [7]}
    assert actor.messages_to("trial#8") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert actor.messages_to("agent#a") == [AllocationPlaced(8, 1, (0,))]


def test_jobs_share_no_slot() -> None:
    actor = shared_pool(1)
    write_job(actor, 2, SHARED)
    actor.deliver(slots_requested(9, 2))
    assert trials_by_slot(actor) == {0: [1], 1: [9]}


def test_request_for_whole_slots_uses_no_shared_slot() -> None:
    actor = shared_pool(1, slots=2)
    actor.deliver(slots_requested(9, 2, slots=2))
    assert running(actor) == [1]
    actor.deliver(slots_released(1, 1, "a"))
    assert running(actor) == [9]


def test_slot_is_free_after_its_last_trial() -> None:
    actor = shared_pool(3)
    for trial in (2, 1):
        actor.deliver(slots_released(trial, 1, "a"))
        assert (actor.state.free, counts(actor)[1]) == (3, 1)
    actor.deliver(slots_released(3, 1, "a"))
    assert (actor.state.free, counts(actor)) == (4, (0, 0, 0))


def test_max_slots_limits_slots_and_not_trials() -> None:
    actor = shared_pool(5, row=replace(SHARED, max_slots=1))
    assert trials_by_slot(actor) == {0: [1, 2, 3]}
    assert actor.state.queued == 2
    actor.deliver(slots_released(2, 1, "a"))
    assert trials_by_slot(actor) == {0: [1, 3, 4]}


def test_shared_slot_is_preempted_as_a_whole() -> None:
    settings = PREEMPTING
    low, high = replace(SHARED, priority=50), JobRow(priority=1)
    requests = (slots_requested(trial, 1) for trial in (1, 2, 3))
    actor = pool(agent_joined("a", 1), *requests, settings=settings, job1=low, job2=high)
    actor.deliver(slots_requested(9, 2))
    assert preempted_trials(actor) == ["trial#1", "trial#2", "trial#3"]
    assert counts(actor) == (3, 1, 1)
    # A leaving slot takes no more trials, and the slot leaves until its last trial has ended.
    actor.deliver(slots_requested(4, 1), slots_released(1, 1, "a"), slots_released(2, 1, "a"))
    assert (running(actor), counts(actor)) == ([3], (1, 1, 1))
    actor.deliver(slots_released(3, 1, "a"))
    assert running(actor) == [9]


def test_disabled_slot_stops_all_its_trials() -> None:
    actor = shared_pool(4)
    actor.deliver(AgentAvailabilityChanged("a", 1, Availability(disabled=(0,))))
    assert preempted_trials(actor) == ["trial#1", "trial#2", "trial#3"]
    assert counts(actor) == (4, 2, 1)
    actor.deliver(slots_requested(5, 1))
    assert trials_by_slot(actor)[1] == [4, 5]


def test_loss_of_an_agent_loses_all_its_trials() -> None:
    actor = shared_pool(4)
    actor.deliver(AgentLost("a", 1, "silence"))
    assert [send.to for send in actor.sent if isinstance(send.message, AllocationLost)] == [
        f"trial#{trial}" for trial in (1, 2, 3, 4)
    ]
    assert (actor.state.running, actor.state.slots) == (0, 0)
    assert counts(actor) == (0, 0, 0)


def test_agent_without_a_shared_slot_loses_the_trials_on_it() -> None:
    actor = shared_pool(4)
    actor.deliver(agent_joined("a", 1, epoch=2))
    assert trials_by_slot(actor) == {0: [1, 2, 3]}
    assert counts(actor) == (3, 1, 0)


def test_lower_max_slots_preempts_whole_slots() -> None:
    actor = shared_pool(6)
    write_job(actor, 1, replace(SHARED, max_slots=1))
    actor.deliver(JobChanged(1))
    assert preempted_trials(actor) == ["trial#1", "trial#2", "trial#3"]
    assert counts(actor) == (6, 2, 1)


def test_trial_that_excludes_an_agent_holds_no_other_trial_back() -> None:
    actor = pool(agent_joined("a", 1), job1=SHARED)
    first = replace(slots_requested(1, 1), excluded_agents=("a",))
    actor.deliver(first, slots_requested(2, 1), slots_requested(3, 1))
    assert trials_by_slot(actor) == {0: [2, 3]}
    actor.deliver(agent_joined("b", 1))
    assert trials_by_slot(actor, "b") == {0: [1]}


def test_quiet_hours_start_no_trial_on_a_shared_slot() -> None:
    rule = QuietHours((0, 1, 2, 3, 4, 5, 6), 0, 480, "UTC")
    periods = (QuietPeriod(START_MS + 1, START_MS + 1000),)
    settings = PoolSettings(quiet_hours=(rule,), quiet_periods=periods)
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), settings=settings, job1=SHARED)
    actor.now_ms = START_MS + 1
    actor.deliver(slots_requested(2, 1))
    assert running(actor) == [1]
    actor.now_ms = START_MS + 1000
    actor.deliver(slots_requested(3, 1))
    assert running(actor) == [1, 2, 3]


def test_draining_pool_starts_no_trial_on_a_shared_slot() -> None:
    actor = shared_pool(1)
    actor.deliver(PoolConfigured("default", PoolSettings(draining=True)))
    actor.deliver(slots_requested(2, 1))
    assert running(actor) == [1]


def test_draining_agent_starts_no_trial_on_a_shared_slot() -> None:
    actor = shared_pool(1)
    actor.deliver(AgentAvailabilityChanged("a", 1, Availability(enabled=False, draining=True)))
    actor.deliver(slots_requested(2, 1))
    assert running(actor) == [1]


def test_many_trials_start_over_several_commits() -> None:
    actor = shared_pool(40, slots=16)
    assert {len(trials) for trials in trials_by_slot(actor).values()} == {3, 1}
    assert counts(actor) == (40, 14, 0)
    assert not any(isinstance(send.message, PreemptionRequested) for send in actor.sent)
