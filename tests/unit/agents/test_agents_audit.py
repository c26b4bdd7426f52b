"""The audit finds each difference between a pool's records and the others', and no others."""

from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.actors.agent.actor import AgentState, DesiredAllocation
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.job_row import JobRow, encode_job
from control_plane.actors.messages.agent import AgentEnrolled, AllocationPlaced, AllocationRemoved
from control_plane.actors.messages.experiment import KillRequested
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    JobChanged,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
    StaleAllocationsFound,
)
from control_plane.actors.messages.trial import ExperimentStatusChanged, SlotsAssigned
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.pool.job_queue import Group
from control_plane.actors.records import Availability, Place, Status
from control_plane.actors.trial.state import TrialState
from control_plane.agents.audit import (
    AuditFindings,
    PoolRecords,
    add_job_findings,
    audit_pool,
    find_differences,
)
from control_plane.agents.leases import Lease
from control_plane.engine.engine import Engine
from control_plane.evolve import evolve
from control_plane.scheduling.model import AllocationRequest
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from tests.engine_timing import UNHURRIED
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, trial_created

NOTHING = AuditFindings(StaleAllocationsFound(()), (), ())
AGENT = AgentState("a", "default", 1, (), 0)


def trial(trial_id: int, *messages: object) -> TrialState:
    """A trial with its first allocation, whatever the messages make of it."""
    actor = ActorHarness(f"trial#{trial_id}")
    actor.deliver(replace(trial_created(), trial_id=trial_id), *messages)
    assert isinstance(actor.state, TrialState)
    return actor.state


PAUSED = ExperimentStatusChanged(Status.PAUSED)
ACTIVE = ExperimentStatusChanged(Status.ACTIVE)
HOLDING = trial(4, SlotsAssigned(1, (Place("a", (0,)),)))
RELEASED = trial(4, PAUSED)
NEXT_EPOCH = trial(4, PAUSED, ACTIVE)
LET_GO = pytest.mark.parametrize(
    "state", [None, RELEASED, NEXT_EPOCH], ids=["no trial", "released", "another epoch"]
)


def findings(
    state: TrialState | None,
    *,
    queued: bool = False,
    running: bool = False,
    desired: bool = False,
    agent: AgentState | None = AGENT,
) -> AuditFindings:
    """The findings about allocation 4.1, queued, running on agent a, or desired there."""
    slots = AgentSlots(1, (0, 1), {"4.1": AllocationPart((0,))} if running else {})
    waiting = (AllocationRequest("4.1", 1, "t", group=3),) if queued else ()
    records = PoolRecords(waiting, {"a": slots}, {"a": Lease(1, 0)})
    if agent and desired:
        agent = replace(agent, desired=(DesiredAllocation(4, 1, (0,)),))
    return find_differences(
        records,
        lambda trial_id: state if trial_id == 4 else None,
        lambda name: agent if name == "a" else None,
    )


def test_books_that_agree_have_no_difference() -> None:
    assert findings(None) == NOTHING
    assert findings(trial(4), queued=True) == NOTHING
    assert findings(HOLDING, running=True, desired=True) == NOTHING


@LET_GO
def test_a_queued_allocation_that_its_trial_let_go_of_is_freed(state: TrialState | None) -> None:
    stale = (SlotsReleased(4, 1, "t", (), group=3),)
    assert findings(state, queued=True) == AuditFindings(StaleAllocationsFound(stale), (), ())


@LET_GO
def test_a_running_allocation_that_its_trial_let_go_of_is_freed(state: TrialState | None) -> None:
    stale = (SlotsReleased(4, 1, "", ("a",)),)
    assert findings(state, running=True) == AuditFindings(StaleAllocationsFound(stale), (), ())


@pytest.mark.parametrize("agent", [AGENT, None])
def test_a_running_allocation_that_its_agent_does_not_know_is_placed_again(
    agent: AgentState | None,
) -> None:
    said = (("a", AllocationPlaced(4, 1, (0,))),)
    assert findings(HOLDING, running=True, agent=agent) == AuditFindings(
        StaleAllocationsFound(()), (), said
    )


@LET_GO
def test_an_allocation_that_only_its_agent_still_wants_is_removed(
    state: TrialState | None,
) -> None:
    said = (("a", AllocationRemoved(4, 1)),)
    assert findings(state, desired=True) == AuditFindings(StaleAllocationsFound(()), (), said)


@LET_GO
def test_what_pool_and_agent_both_kept_is_freed_and_removed(state: TrialState | None) -> None:
    assert findings(state, running=True, desired=True) == AuditFindings(
        StaleAllocationsFound((SlotsReleased(4, 1, "", ("a",)),)),
        (),
        (("a", AllocationRemoved(4, 1)),),
    )


def test_an_allocation_on_its_way_is_left_alone() -> None:
    # The agent was told, and the pool's parts were read before it was: both name 4.1's trial.
    assert findings(HOLDING, desired=True) == NOTHING


SECOND = AgentState("a", "default", 2, ((3, "cpu", "u", "n"),), 0)


def sessions(pools_epoch: int | None, lease: Lease) -> tuple[object, ...]:
    """The messages to the pool about agent a, whose second session has slot 3."""
    agents = {} if pools_epoch is None else {"a": AgentSlots(pools_epoch, (3,), {})}
    records = PoolRecords((), agents, {"a": lease})
    return find_differences(records, lambda trial_id: None, lambda name: SECOND).sessions


def test_an_agent_that_the_pool_does_not_have_in_its_books_joins_it() -> None:
    joined = (AgentJoined("a", 2, (3,)),)
    assert sessions(None, Lease(2, 0)) == joined
    assert sessions(1, Lease(2, 0)) == joined
    assert sessions(2, Lease(2, 0)) == ()


def test_an_agent_that_was_lost_leaves_the_books_and_does_not_join_again() -> None:
    lost = Lease(2, 0, lost=True)
    assert sessions(2, lost) == (AgentLost("a", 2, "it has not been heard of", 0),)
    assert sessions(None, lost) == ()


def test_a_pool_that_has_not_heard_what_was_disabled_hears_it() -> None:
    drained = Availability(enabled=False, draining=True)
    state = replace(SECOND, availability=drained)
    records = PoolRecords((), {"a": AgentSlots(2, (3,))}, {"a": Lease(2, 0)})
    found = find_differences(records, lambda trial_id: None, lambda name: state)
    assert found.sessions == (AgentAvailabilityChanged("a", 2, drained),)
    knows = replace(records, agents={"a": AgentSlots(2, (3,), availability=drained)})
    assert find_differences(knows, lambda trial_id: None, lambda name: state).sessions == ()


def test_an_agent_that_enrols_during_the_audit_is_left_alone() -> None:
    # The lease is the third session's, the state read before it the second's.
    assert sessions(2, Lease(3, 0)) == ()


def test_an_agent_that_enrolled_before_its_pool_was_there_joins_it(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("agent#a", AgentEnrolled("a", "default", ((0, "cpu", "u", "n"),)))
    engine.execute_command("pool#default", PoolConfigured("default"))
    assert engine.read_state("pool#default").slots == 0
    assert audit_pool(engine, "default").sessions == (AgentJoined("a", 1, (0,)),)
    assert engine.read_state("pool#default").slots == 1
    assert audit_pool(engine, "default") == NOTHING


def test_an_audit_frees_more_than_one_message_takes(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("pool#default", PoolConfigured("default"))
    for trial_id in range(20):
        message = SlotsRequested(trial_id, 1, 1, f"t{trial_id}", trial_id)
        engine.post_message("pool#default", message, sender="nobody")
    assert len(audit_pool(engine, "default").pool.stale) == 20
    assert engine.read_state("pool#default").queued == 0


def test_an_audit_mails_what_it_finds(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("pool#default", PoolConfigured("default"))
    engine.execute_command("agent#a", AgentEnrolled("a", "default", ((0, "cpu", "u", "n"),)))
    # Two trials that nobody has heard of: one is placed, the other waits.
    for trial_id in (8, 9):
        message = SlotsRequested(trial_id, 1, 1, f"t{trial_id}")
        engine.post_message("pool#default", message, sender="nobody")
    assert (
        engine.read_state("pool#default").running,
        engine.read_state("pool#default").queued,
    ) == (1, 1)
    first = audit_pool(engine, "default")
    assert len(first.pool.stale) == 2
    state = engine.read_state("pool#default")
    assert (state.running, state.queued, state.free) == (0, 0, 1)
    assert engine.read_state("agent#a").desired == ()
    assert audit_pool(engine, "default") == NOTHING


def jobs(groups: dict[int, Group], rows: dict[int, JobRow], *live: int) -> AuditFindings:
    """The findings about the jobs of a pool with experiments 1 to 5; the `live` ones run."""
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted())

    def experiment(number: int) -> ExperimentState | None:
        status = Status.ACTIVE if number in live else Status.COMPLETED
        return evolve(actor.state, status=status) if number < 6 else None

    records = PoolRecords((), {}, {}, groups, rows)
    return add_job_findings(NOTHING, "default", records, experiment)


ROW = JobRow(7)


def test_jobs_that_are_as_their_rows_say_have_no_difference() -> None:
    assert jobs({1: Group(ROW, has_row=True)}, {1: ROW}, 1) == NOTHING
    # It has ended, and its last trial is about to give its slots back.
    assert jobs({1: Group(ROW, running=1, held=1)}, {}) == NOTHING


def test_a_pool_that_does_not_know_a_job_as_its_row_says_reads_it() -> None:
    told = (JobChanged(1),)
    assert jobs({}, {1: ROW}, 1).jobs == told
    assert jobs({1: Group(ROW, has_row=True)}, {1: JobRow(7, weight=2.0)}, 1).jobs == told
    assert jobs({1: Group(ROW, running=1)}, {1: ROW}, 1).jobs == told


def test_a_job_that_has_nothing_and_no_row_is_forgotten() -> None:
    assert jobs({1: Group(ROW), 2: Group(ROW, has_row=True)}, {}).jobs == (
        JobChanged(1),
        JobChanged(2),
    )


def test_a_row_of_an_experiment_that_does_not_live_is_put_right_by_it() -> None:
    found = jobs({1: Group(ROW, has_row=True)}, {1: ROW})
    assert (found.experiments, found.jobs) == ((1,), ())
    assert jobs({}, {9: ROW}).experiments == ()


def test_a_live_experiment_without_a_row_writes_it() -> None:
    assert jobs({1: Group(ROW, running=1, held=1)}, {}, 1).experiments == (1,)


def test_an_audit_finds_rows_that_nobody_writes_any_more(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("pool#default", PoolConfigured("default"))
    engine.execute_command("experiment#1", experiment_submitted())
    engine.execute_command("experiment#1", KillRequested())
    key = Key("jobs#default", "000000000001")
    assert (engine.table.get(key), audit_pool(engine, "default")) == (None, NOTHING)
    engine.table.commit((Put(key, 1, encode_job(ROW), Expect.ABSENT),))
    first = audit_pool(engine, "default")
    assert (first.jobs, first.experiments) == ((JobChanged(1),), (1,))
    assert engine.table.get(key) is None
    assert audit_pool(engine, "default") == NOTHING


def test_a_part_of_a_gang_that_its_agent_does_not_know_is_placed_as_its_node() -> None:
    places = (Place("b", (0,)), Place("a", (0,)))
    state = trial(4, SlotsAssigned(1, places))
    # It lost its first node, so the pool counts one.
    records = PoolRecords(
        (), {"a": AgentSlots(1, (0,), {"4.1": AllocationPart((0,), leaving=True)})}, {}
    )
    found = find_differences(records, lambda trial_id: state, lambda name: AGENT)
    assert found.agents == (("a", AllocationPlaced(4, 1, (0,), 1, 2)),)
