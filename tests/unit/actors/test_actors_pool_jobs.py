"""The jobs of a pool: settings from rows, limits and preemption, and the costs of a decision."""

from decimal import Decimal

import pytest

from control_plane.actors.job_row import JobRow, decode_job, encode_job
from control_plane.actors.messages.pool import (
    AgentLost,
    JobChanged,
    PoolConfigured,
    PoolMessage,
    PoolRemoved,
    PoolSettings,
)
from control_plane.actors.messages.trial import PreemptionRequested
from control_plane.actors.ordered_map import Directory, Leaf
from control_plane.actors.pool.actor import finish_fold, step
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.state import PoolState, job_queue_of
from control_plane.actors.step import CommandRefused, ObservedRow, StepContext
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.pool_messages import (
    PREEMPTING,
    PRIORITY,
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


def test_job_row_is_decoded_with_defaults() -> None:
    row = JobRow(7, 2.0, 1, 4, "7000.5", "a100", single_agent=True)
    assert decode_job(encode_job(row)) == row
    assert decode_job(b'{"weight": 3.0, "colour": "red"}') == JobRow(weight=3.0)


def test_only_the_row_of_a_non_preemptible_job_has_the_field() -> None:
    assert b"preemptible" not in encode_job(JobRow(7))
    row = JobRow(7, preemptible=False)
    assert decode_job(encode_job(row)) == row


@pytest.mark.parametrize(("preemptible", "asked"), [(True, ["trial#1"]), (False, [])])
def test_non_preemptible_job_keeps_all_slots(preemptible: bool, asked: list[str]) -> None:
    row = JobRow(priority=50, preemptible=preemptible)
    actor = pool(
        agent_joined("a", 1),
        slots_requested(1, 1),
        settings=PREEMPTING,
        job1=row,
        job2=JobRow(priority=1),
    )
    actor.deliver(slots_requested(2, 2))
    assert preempted_trials(actor) == asked
    assert running(actor) == [1]


def test_fair_share_does_not_preempt_non_preemptible_jobs() -> None:
    # Of the 2 slots each job's share is 1, and the first job has both.
    actor = pool(
        agent_joined("a", 2),
        slots_requested(1, 1),
        slots_requested(2, 1),
        job1=JobRow(preemptible=False),
        job2=JobRow(),
    )
    assert running(actor) == [1, 2]
    actor.deliver(slots_requested(3, 2))
    assert preempted_trials(actor) == []


def test_job_position_is_the_submission_unless_moved() -> None:
    # Positions are in us: 7 ms are 7,000.
    assert JobRow(7).queue_position() == Decimal(7000)
    assert JobRow(7, position="6999.5").queue_position() == Decimal("6999.5")


def test_job_without_a_row_has_the_submission_time_of_the_tickets() -> None:
    assert group_of(pool(slots_requested(1, group=5)), 5) == Group(JobRow(5), pending={1: 1})


def test_settings_are_read_with_the_first_request() -> None:
    row = JobRow(1, max_slots=2)
    actor = pool(agent_joined("a", 4), *(slots_requested(n, 1) for n in range(1, 5)), job1=row)
    assert running(actor) == [1, 2]
    assert group_of(actor, 1) == Group(row, True, {1: 2}, running=2, held=2)
    assert actor.state.wait_reason == "max_slots 2 reached"


def test_changed_row_is_read_after_the_message() -> None:
    actor = pool(
        agent_joined("a", 4),
        *(slots_requested(n, 1) for n in range(1, 5)),
        job1=JobRow(max_slots=1),
    )
    write_job(actor, 1, JobRow(max_slots=3))
    actor.deliver(slots_requested(5, 1))
    assert running(actor) == [1]
    actor.deliver(JobChanged(1))
    assert running(actor) == [1, 2, 3]


def test_already_read_change_has_no_effect() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), slots_requested(2, 1), job1=JobRow())
    before = actor.state
    actor.deliver(JobChanged(1), JobChanged(1), JobChanged(9))
    assert actor.state == before
    assert set(actor.parts_written) <= {"groups/0"}


def test_job_at_the_limit_does_not_block_the_queue() -> None:
    actor = pool(
        agent_joined("a", 3), *(slots_requested(n, 1) for n in (1, 2, 3)), job1=JobRow(max_slots=1)
    )
    actor.deliver(slots_requested(8, 2), slots_requested(9, 3))
    assert running(actor) == [1, 8, 9]


def test_limit_counts_slots_not_requests() -> None:
    # 5 slots hold two requests of 2 slots: 2 + 2 + 2 = 6 > 5.
    asked = [slots_requested(n, 1, slots=2) for n in range(1, 4)]
    assert running(pool(agent_joined("a", 8), *asked, job1=JobRow(max_slots=5))) == [1, 2]


def test_zero_slot_requests_have_no_limit_and_no_share() -> None:
    asked = [slots_requested(n, 1, slots=0) for n in range(1, 4)]
    actor = pool(agent_joined("a", 1), slots_requested(9, 2), *asked, job1=JobRow(max_slots=0))
    assert running(actor) == [1, 2, 3, 9]


def test_agent_has_a_limit_of_zero_slot_requests() -> None:
    asked = [slots_requested(n, 1, slots=0) for n in range(1, 5)]
    actor = pool(agent_joined("a", 1), *asked, settings=PoolSettings(aux_per_agent=3))
    assert running(actor) == [1, 2, 3]
    actor.deliver(slots_released(2, 1, "a"))
    assert running(actor) == [1, 3, 4]


def test_lower_limit_preempts_the_excess() -> None:
    actor = pool(agent_joined("a", 4), *(slots_requested(n, 1) for n in range(1, 5)), job1=JobRow())
    write_job(actor, 1, JobRow(max_slots=2))
    actor.deliver(JobChanged(1))
    assert preempted_trials(actor) == ["trial#1", "trial#2"]
    assert group_of(actor, 1) == Group(JobRow(1, max_slots=2), True, {}, 4, 4, leaving=2)
    # The trials request slots again immediately, and do not start before two have left.
    actor.deliver(slots_released(1, 1, "a"), slots_requested(1, 1, epoch=2))
    assert running(actor) == [2, 3, 4]
    actor.deliver(slots_released(2, 1, "a"), slots_requested(2, 1, epoch=2))
    assert running(actor) == [3, 4]
    actor.deliver(slots_released(3, 1, "a"))
    assert running(actor) == [1, 4]


def test_full_pool_is_shared_with_a_new_job() -> None:
    actor = pool(agent_joined("a", 4), *(slots_requested(n, 1) for n in range(1, 5)))
    actor.deliver(*(slots_requested(n, 2) for n in range(5, 9)))
    # Two of four slots each: the oldest of the first make room.
    assert preempted_trials(actor) == ["trial#1", "trial#2"]
    assert running(actor) == [1, 2, 3, 4]
    [asked] = actor.messages_to("trial#1")
    assert isinstance(asked, PreemptionRequested)
    assert (asked.epoch, asked.forced) == (1, False)
    actor.deliver(slots_released(1, 1, "a"))
    assert preempted_trials(actor) == []
    actor.deliver(slots_released(2, 1, "a"))
    assert running(actor) == [3, 4, 5, 6]


def test_allocation_is_preempted_only_once() -> None:
    actor = pool(agent_joined("a", 4), *(slots_requested(n, 1) for n in range(1, 5)))
    actor.deliver(*(slots_requested(n, 2) for n in range(5, 9)))
    assert len(preempted_trials(actor)) == 2
    for number in range(9, 12):
        actor.deliver(slots_requested(number, 2))
        assert preempted_trials(actor) == []


def test_heavier_job_has_more_slots() -> None:
    # 8 slots at weights 1 and 3: 2 and 6.
    actor = pool(
        *(slots_requested(n, 1) for n in range(1, 9)),
        *(slots_requested(n, 2) for n in range(11, 19)),
        job1=JobRow(weight=1.0),
        job2=JobRow(weight=3.0),
    )
    actor.deliver(agent_joined("a", 8))
    assert (group_of(actor, 1).held, group_of(actor, 2).held) == (2, 6)


def test_most_important_job_starts_first() -> None:
    jobs = {"job1": JobRow(), "job2": JobRow(priority=41), "job3": JobRow(priority=43)}
    actor = pool(
        slots_requested(3, 3),
        slots_requested(1, 1),
        slots_requested(2, 2),
        settings=PRIORITY,
        **jobs,
    )
    for number in (2, 1, 3):
        actor.deliver(agent_joined(f"node-{number}", 1))
        assert number in running(actor)


def test_job_moved_ahead_preempts_the_next_job() -> None:
    actor = pool(
        agent_joined("a", 1),
        slots_requested(1, 1),
        slots_requested(2, 2),
        settings=PREEMPTING,
        job1=JobRow(10),
        job2=JobRow(20),
    )
    assert running(actor) == [1]
    # 10 ms are at 10,000 us.
    write_job(actor, 2, JobRow(20, position="9999"))
    actor.deliver(JobChanged(2))
    assert preempted_trials(actor) == ["trial#1"]
    actor.deliver(slots_released(1, 1, "a"), slots_requested(1, 1, epoch=2))
    assert running(actor) == [2]


def test_job_is_not_preempted_without_preemption() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), settings=PRIORITY)
    write_job(actor, 2, JobRow(priority=1))
    actor.deliver(slots_requested(2, 2))
    assert (preempted_trials(actor), running(actor)) == ([], [1])


def test_job_runs_only_on_agents_with_the_label() -> None:
    actor = pool(agent_joined("plain", 2), slots_requested(1, 1), job1=JobRow(label="a100"))
    assert running(actor) == []
    assert actor.state.wait_reason == "no agent has the label a100"
    actor.deliver(
        agent_joined("rare", 1, label="a100"), slots_requested(2, 2), slots_requested(3, 2)
    )
    assert agents(actor) == {"plain": {"2.1": (0,), "3.1": (1,)}, "rare": {"1.1": (0,)}}


def test_ended_job_without_requests_is_removed() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), job1=JobRow())
    actor.deliver(slots_released(1, 1, "a"))
    assert group_of(actor, 1).has_row
    write_job(actor, 1, None)
    actor.deliver(JobChanged(1))
    assert [name for name in actor.parts if name.startswith(("groups/", "requests/"))] == []


def test_job_without_a_row_keeps_the_settings_while_slots_are_in_use() -> None:
    row = JobRow(1, max_slots=3)
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), job1=row)
    write_job(actor, 1, None)
    actor.deliver(JobChanged(1))
    assert group_of(actor, 1) == Group(row, False, {}, running=1, held=1)
    actor.deliver(slots_released(1, 1, "a"))
    assert group_of(actor, 1) == Group()


def test_lost_agent_frees_the_limit_of_the_job() -> None:
    asked = [slots_requested(n, 1) for n in (1, 2, 3)]
    actor = pool(agent_joined("a", 2), *asked, job1=JobRow(max_slots=2))
    actor.deliver(agent_joined("b", 2))
    assert running(actor) == [1, 2]
    actor.deliver(AgentLost("a", 1, "silence"))
    assert running(actor) == [3]
    assert (group_of(actor, 1).running, group_of(actor, 1).held) == (1, 1)


def test_agent_that_comes_back_smaller_frees_the_limit_of_the_job() -> None:
    actor = pool(
        agent_joined("a", 1), slots_requested(1, 1), slots_requested(2, 1), job1=JobRow(max_slots=1)
    )
    actor.deliver(agent_joined("b", 1))
    actor.deliver(agent_joined("a", 0, epoch=2))
    assert agents(actor) == {"a": {}, "b": {"2.1": (0,)}}


def test_repeated_requests_wait_once_and_start_once() -> None:
    actor = pool(slots_requested(1, 1), slots_requested(1, 1))
    assert actor.state.queued == 1
    actor.deliver(agent_joined("a", 2))
    actor.deliver(slots_requested(1, 1))
    assert (actor.state.queued, actor.state.running) == (0, 1)


# How much a decision reads and writes ------------------------------------------------------------


class CountingPool:
    """A pool's decoded parts, and the names of the parts that a fold reads and writes."""

    def __init__(self) -> None:
        self.parts: dict[str, object] = {}
        self.rows: dict[tuple[str, str], ObservedRow] = {}
        self.state: PoolState | None = None
        self.read: set[str] = set()
        self.wrote: set[str] = set()
        self.planned: set[str] = set()
        self.deliver(PoolConfigured("default"))

    def part(self, name: str) -> object | None:
        self.read.add(name)
        return self.parts.get(name)

    def row(self, partition: str, sort: str) -> ObservedRow:
        return self.rows.get((partition, sort), ObservedRow(0, b""))

    def deliver(self, *messages: PoolMessage) -> None:
        self.read, self.wrote = set(), set()
        for message in messages:
            context = self._context()
            self._store_effects(step(self.state, message, context), context)
        assert self.state is not None
        context = self._context()
        self._store_effects(finish_fold(self.state, context), context)
        self.planned = set(context.parts)

    def _context(self) -> StepContext:
        return StepContext("pool#default", START_MS, self)

    def _store_effects(self, state: PoolState | None, context: StepContext) -> None:
        self.state = state
        self.wrote |= set(context.parts)
        for name, value in context.parts.items():
            assert value is None or isinstance(value, Directory | Leaf | PoolSettings)
            self.parts[name] = value


def crowded_pool(groups: int, requests: int) -> CountingPool:
    """Create a full agent, `groups` groups of two requests, and a group of `requests` requests."""
    ledger = CountingPool()
    ledger.deliver(agent_joined("a", 2), slots_requested(1, 1), slots_requested(2, 2))
    waiting: list[PoolMessage] = [slots_requested(10 + n, 1) for n in range(requests)]
    waiting += [slots_requested(100_000 + n, 10 + n // 2) for n in range(2 * groups)]
    for first in range(0, len(waiting), 500):
        ledger.deliver(*waiting[first : first + 500])
    return ledger


@pytest.fixture(scope="module")
def sizes() -> tuple[CountingPool, CountingPool]:
    return crowded_pool(20, 100), crowded_pool(1_000, 10_000)


def test_writes_do_not_grow_with_requests_and_jobs(
    sizes: tuple[CountingPool, CountingPool],
) -> None:
    messages: list[PoolMessage] = [
        slots_released(1, 1, "a"),
        slots_released(2, 2, "a"),
        slots_requested(9, 1),
        slots_released(12, 1),
    ]
    wrote: list[list[int]] = []
    for ledger in sizes:
        costs = []
        for message in messages:
            ledger.deliver(message)
            costs.append(len(ledger.wrote))
            # Only the requests that may start are read, with the nodes on the path to their leaves.
            assert len([name for name in ledger.read if name.startswith("requests/")]) <= 8
        wrote.append(costs)
    for small, large in zip(*wrote, strict=True):
        # A leaf or a directory more where an entry stands at an edge; nothing grows with size.
        assert large <= small + 2
        assert large <= 8


def test_many_starts_of_a_job_fit_in_a_commit() -> None:
    ledger = CountingPool()
    ledger.deliver(*(slots_requested(number, 1) for number in range(1, 201)))
    ledger.deliver(agent_joined("a", 200))
    # 200 requests are in 200 / 12 = 17 leaves. A directory, the job and the agent are 3 more parts.
    assert ledger.state is not None
    assert ledger.state.running == 200
    assert len(ledger.planned) == 20


def test_many_simultaneous_starts_fit_in_a_commit() -> None:
    # 80 jobs have requests in separate leaves, on agents in 20 leaves. So consecutive starts change
    # different parts.
    ledger = CountingPool()
    groups, each = 80, 20
    numbers = [(n * groups + group, 1 + group) for group in range(groups) for n in range(each)]
    ledger.deliver(*(slots_requested(number, group) for number, group in numbers))
    ledger.deliver(*(agent_joined(f"node-{n:03d}", 1) for n in range(320)))
    rounds = 1
    while ledger.state and ledger.state.needs_scheduling:
        # 60 that the fold may have used, and a few for the outbox: a commit has 100.
        assert len(ledger.planned) <= 100 - 60 - 4
        ledger.deliver()
        rounds += 1
    assert ledger.state is not None
    assert ledger.state.running == 320
    assert rounds > 10


def test_parts_of_a_pool_are_small() -> None:
    actor = ActorHarness("pool#default")
    actor.deliver(PoolConfigured("default"))
    for number in range(1, 13):
        actor.deliver(slots_requested(number, number))
    # 12 jobs with a request each fill a leaf of each map. A leaf fits into a write unit.
    assert len(actor.parts["groups/0"]) < 1024
    assert len(actor.parts["requests/0"]) < 1024
    for number in range(8):
        actor.deliver(agent_joined(f"agent-{number}", 8))
    assert len(actor.parts["agents/0"]) < 2048


def jobs_at_work(actor: ActorHarness) -> list[int]:
    context = StepContext(actor.address, 0, actor)
    return [number for number, _ in job_queue_of(context).groups_at_work()]


def all_jobs(actor: ActorHarness) -> list[int]:
    context = StepContext(actor.address, 0, actor)
    return sorted(number for number, _ in job_queue_of(context).groups())


def test_paused_job_is_stored_apart() -> None:
    actor = pool(
        JobChanged(1),
        *(slots_requested(n, 1) for n in (1, 2)),
        settings=PoolSettings(stores_idle_jobs_apart=True),
        job1=JobRow(),
        job2=JobRow(),
    )
    actor.deliver(JobChanged(2))
    assert (jobs_at_work(actor), all_jobs(actor)) == ([1], [1, 2])
    actor.deliver(slots_released(1, 1), slots_released(2, 1))
    assert group_of(actor, 1) == Group(JobRow(1), has_row=True)
    assert (jobs_at_work(actor), all_jobs(actor)) == ([], [1, 2])
    with pytest.raises(CommandRefused, match="2 jobs"):
        actor.deliver(PoolRemoved())


def test_idle_job_of_an_earlier_release_moves_apart_on_a_change() -> None:
    actor = pool(JobChanged(1), job1=JobRow())
    actor.deliver(PoolConfigured("default", PoolSettings(stores_idle_jobs_apart=True)))
    assert group_of(actor, 1).has_row
    write_job(actor, 1, JobRow(weight=2.0))
    actor.deliver(JobChanged(1))
    assert "groups/0" not in actor.parts
    assert group_of(actor, 1) == Group(JobRow(1, 2.0), has_row=True)
