"""The audit finds exactly the differences between a pool's records and other records."""

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
from control_plane.actors.pool.groups import Group
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
from control_plane.scheduling.agent_needs import AgentDevice, AgentKind
from control_plane.scheduling.model import AllocationRequest
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from tests.engine_timing import UNHURRIED
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, trial_created

NOTHING = AuditFindings(StaleAllocationsFound(()), (), ())
AGENT = AgentState("a", "default", 1, (), 0)


def trial(trial_id: int, *messages: object) -> TrialState:
    """Return a trial with a first allocation after further messages."""
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
    """Return the findings about allocation 4.1.

    The allocation is queued, running on agent a, or desired by agent a, as the flags demand.
    """
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


def test_consistent_records_have_no_findings() -> None:
    assert findings(None) == NOTHING
    assert findings(trial(4), queued=True) == NOTHING
    assert findings(HOLDING, running=True, desired=True) == NOTHING


@LET_GO
def test_queued_allocation_without_trial_is_freed(state: TrialState | None) -> None:
    stale = (SlotsReleased(4, 1, "t", (), group=3),)
    assert findings(state, queued=True) == AuditFindings(StaleAllocationsFound(stale), (), ())


@LET_GO
def test_running_allocation_without_trial_is_freed(state: TrialState | None) -> None:
    stale = (SlotsReleased(4, 1, "", ("a",)),)
    assert findings(state, running=True) == AuditFindings(StaleAllocationsFound(stale), (), ())


@pytest.mark.parametrize("agent", [AGENT, None])
def test_allocation_missing_on_the_agent_is_placed_again(
    agent: AgentState | None,
) -> None:
    placed = (("a", AllocationPlaced(4, 1, (0,))),)
    assert findings(HOLDING, running=True, agent=agent) == AuditFindings(
        StaleAllocationsFound(()), (), placed
    )


@LET_GO
def test_allocation_only_on_the_agent_is_removed(
    state: TrialState | None,
) -> None:
    removed = (("a", AllocationRemoved(4, 1)),)
    assert findings(state, desired=True) == AuditFindings(StaleAllocationsFound(()), (), removed)


@LET_GO
def test_ended_allocation_in_pool_and_agent_is_freed_and_removed(state: TrialState | None) -> None:
    assert findings(state, running=True, desired=True) == AuditFindings(
        StaleAllocationsFound((SlotsReleased(4, 1, "", ("a",)),)),
        (),
        (("a", AllocationRemoved(4, 1)),),
    )


def test_allocation_being_placed_has_no_findings() -> None:
    # The pool's parts were read before the agent got allocation 4.1, which trial 4 already holds.
    assert findings(HOLDING, desired=True) == NOTHING


CPU_KIND = AgentKind((AgentDevice("cpu", "n"),))
SECOND = AgentState("a", "default", 2, ((3, "cpu", "u", "n"),), 0)


def sessions(pools_epoch: int | None, lease: Lease) -> tuple[object, ...]:
    """Return the messages to the pool about agent a, which has slot 3 in session 2."""
    agents = {} if pools_epoch is None else {"a": AgentSlots(pools_epoch, (3,), {})}
    records = PoolRecords((), agents, {"a": lease})
    return find_differences(records, lambda trial_id: None, lambda name: SECOND).sessions


def test_agent_missing_in_pool_joins() -> None:
    joined = (AgentJoined("a", 2, (3,), kind=CPU_KIND),)
    assert sessions(None, Lease(2, 0)) == joined
    assert sessions(1, Lease(2, 0)) == joined
    assert sessions(2, Lease(2, 0)) == ()


def test_lost_agent_leaves_pool_and_does_not_join_again() -> None:
    lost = Lease(2, 0, lost=True)
    assert sessions(2, lost) == (AgentLost("a", 2, "it has not been heard of", 0),)
    assert sessions(None, lost) == ()


def test_pool_gets_missed_change_of_availability() -> None:
    drained = Availability(enabled=False, draining=True)
    state = replace(SECOND, availability=drained)
    records = PoolRecords((), {"a": AgentSlots(2, (3,))}, {"a": Lease(2, 0)})
    found = find_differences(records, lambda trial_id: None, lambda name: state)
    assert found.sessions == (AgentAvailabilityChanged("a", 2, drained),)
    knows = replace(records, agents={"a": AgentSlots(2, (3,), availability=drained)})
    assert find_differences(knows, lambda trial_id: None, lambda name: state).sessions == ()


def test_agent_that_enrols_during_audit_has_no_findings() -> None:
    # The lease belongs to the third session; the state was read during the second session.
    assert sessions(2, Lease(3, 0)) == ()


def test_agent_enrolled_before_the_pool_existed_joins(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("agent#a", AgentEnrolled("a", "default", ((0, "cpu", "u", "n"),)))
    engine.execute_command("pool#default", PoolConfigured("default"))
    assert engine.read_state("pool#default").slots == 0
    assert audit_pool(engine, "default").sessions == (AgentJoined("a", 1, (0,), kind=CPU_KIND),)
    assert engine.read_state("pool#default").slots == 1
    assert audit_pool(engine, "default") == NOTHING


def test_audit_frees_allocations_in_several_messages(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("pool#default", PoolConfigured("default"))
    for trial_id in range(20):
        message = SlotsRequested(trial_id, 1, 1, f"t{trial_id}", trial_id)
        engine.post_message("pool#default", message, sender="nobody")
    assert len(audit_pool(engine, "default").pool.stale) == 20
    assert engine.read_state("pool#default").queued == 0


def test_audit_mails_the_findings(tmp_path: Path) -> None:
    engine = Engine(
        SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000, UNHURRIED
    )
    engine.execute_command("pool#default", PoolConfigured("default"))
    engine.execute_command("agent#a", AgentEnrolled("a", "default", ((0, "cpu", "u", "n"),)))
    # Trials 8 and 9 do not exist. The pool has placed the first and queued the second.
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
    """Return the findings about a pool's jobs. Experiments 1 to 5 exist, active if in `live`."""
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted())

    def experiment(number: int) -> ExperimentState | None:
        status = Status.ACTIVE if number in live else Status.COMPLETED
        return evolve(actor.state, status=status) if number < 6 else None

    records = PoolRecords((), {}, {}, groups, rows)
    return add_job_findings(NOTHING, "default", records, experiment)


ROW = JobRow(7)


def test_jobs_equal_to_the_rows_have_no_findings() -> None:
    assert jobs({1: Group(ROW, has_row=True)}, {1: ROW}, 1) == NOTHING
    # Experiment 1 has ended, and the last trial has not released the slots yet.
    assert jobs({1: Group(ROW, running=1, held=1)}, {}) == NOTHING


def test_pool_reads_row_that_differs_from_the_job() -> None:
    changed = (JobChanged(1),)
    assert jobs({}, {1: ROW}, 1).jobs == changed
    assert jobs({1: Group(ROW, has_row=True)}, {1: JobRow(7, weight=2.0)}, 1).jobs == changed
    assert jobs({1: Group(ROW, running=1)}, {1: ROW}, 1).jobs == changed


def test_idle_job_without_row_is_forgotten() -> None:
    assert jobs({1: Group(ROW), 2: Group(ROW, has_row=True)}, {}).jobs == (
        JobChanged(1),
        JobChanged(2),
    )


def test_ended_experiment_corrects_the_row() -> None:
    found = jobs({1: Group(ROW, has_row=True)}, {1: ROW})
    assert (found.experiments, found.jobs) == ((1,), ())
    assert jobs({}, {9: ROW}).experiments == ()


def test_live_experiment_writes_missing_row() -> None:
    assert jobs({1: Group(ROW, running=1, held=1)}, {}, 1).experiments == (1,)


def test_audit_finds_stale_rows(tmp_path: Path) -> None:
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


def test_missing_gang_node_is_placed_with_the_rank() -> None:
    places = (Place("b", (0,)), Place("a", (0,)))
    state = trial(4, SlotsAssigned(1, places))
    # The pool lost the first node's agent, so the pool counts a single node.
    records = PoolRecords(
        (), {"a": AgentSlots(1, (0,), {"4.1": AllocationPart((0,), leaving=True)})}, {}
    )
    found = find_differences(records, lambda trial_id: state, lambda name: AGENT)
    assert found.agents == (("a", AllocationPlaced(4, 1, (0,), 1, 2)),)
