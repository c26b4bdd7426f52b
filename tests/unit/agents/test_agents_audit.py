"""The audit finds each kind of difference between a pool's books and the others', no others."""

from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.actors.agent import AgentState, Desired
from control_plane.actors.agent_messages import AgentEnrolled, AllocationPlaced, AllocationRemoved
from control_plane.actors.experiment_messages import KillRequested
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.jobs import JobRow, written_job
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    AuditFound,
    JobChanged,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.slots import AgentSlots, Availability, Part
from control_plane.actors.trial_messages import ExperimentStatusChanged, SlotsAssigned
from control_plane.actors.trial_state import TrialState
from control_plane.actors.waiting import Group
from control_plane.agents.audit import Differences, Holdings, audit, differences, with_jobs
from control_plane.agents.leases import Lease
from control_plane.dispatch.engine import Engine
from control_plane.evolve import evolve
from control_plane.scheduling.model import Request
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import created, submitted

NOTHING = Differences(AuditFound(()), (), ())
AGENT = AgentState("a", "default", 1, (), 0)


def trial(trial_id: int, *messages: object) -> TrialState:
    """A trial with its first allocation, whatever the messages make of it."""
    desk = Desk(f"trial#{trial_id}")
    desk.tell(replace(created(), trial_id=trial_id), *messages)
    assert isinstance(desk.state, TrialState)
    return desk.state


PAUSED = ExperimentStatusChanged(Status.PAUSED)
ACTIVE = ExperimentStatusChanged(Status.ACTIVE)
HOLDING = trial(4, SlotsAssigned(1, (Place("a", (0,)),)))
RELEASED = trial(4, PAUSED)
NEXT_EPOCH = trial(4, PAUSED, ACTIVE)
LET_GO = pytest.mark.parametrize(
    "state", [None, RELEASED, NEXT_EPOCH], ids=["no trial", "released", "another epoch"]
)


def found(
    state: TrialState | None,
    *,
    queued: bool = False,
    running: bool = False,
    desired: bool = False,
    agent: AgentState | None = AGENT,
) -> Differences:
    """With allocation 4.1 queued, running on agent a, or desired there."""
    slots = AgentSlots(1, (0, 1), {"4.1": Part((0,))} if running else {})
    waiting = (Request("4.1", 1, "t", group=3),) if queued else ()
    holdings = Holdings(waiting, {"a": slots}, {"a": Lease(1, 0)})
    if agent and desired:
        agent = replace(agent, desired=(Desired(4, 1, (0,)),))
    return differences(
        holdings,
        lambda trial_id: state if trial_id == 4 else None,
        lambda name: agent if name == "a" else None,
    )


def test_books_that_agree_have_no_difference() -> None:
    assert found(None) == NOTHING
    assert found(trial(4), queued=True) == NOTHING
    assert found(HOLDING, running=True, desired=True) == NOTHING


@LET_GO
def test_a_queued_allocation_that_its_trial_let_go_of_is_freed(state: TrialState | None) -> None:
    stale = (SlotsReleased(4, 1, "t", (), group=3),)
    assert found(state, queued=True) == Differences(AuditFound(stale), (), ())


@LET_GO
def test_a_running_allocation_that_its_trial_let_go_of_is_freed(state: TrialState | None) -> None:
    stale = (SlotsReleased(4, 1, "", ("a",)),)
    assert found(state, running=True) == Differences(AuditFound(stale), (), ())


@pytest.mark.parametrize("agent", [AGENT, None])
def test_a_running_allocation_that_its_agent_does_not_know_is_placed_again(
    agent: AgentState | None,
) -> None:
    said = (("a", AllocationPlaced(4, 1, (0,))),)
    assert found(HOLDING, running=True, agent=agent) == Differences(AuditFound(()), (), said)


@LET_GO
def test_an_allocation_that_only_its_agent_still_wants_is_removed(
    state: TrialState | None,
) -> None:
    said = (("a", AllocationRemoved(4, 1)),)
    assert found(state, desired=True) == Differences(AuditFound(()), (), said)


@LET_GO
def test_what_pool_and_agent_both_kept_is_freed_and_removed(state: TrialState | None) -> None:
    assert found(state, running=True, desired=True) == Differences(
        AuditFound((SlotsReleased(4, 1, "", ("a",)),)), (), (("a", AllocationRemoved(4, 1)),)
    )


def test_an_allocation_on_its_way_is_left_alone() -> None:
    # The agent was told, and the pool's parts were read before it was: both name 4.1's trial.
    assert found(HOLDING, desired=True) == NOTHING


SECOND = AgentState("a", "default", 2, ((3, "cpu", "u", "n"),), 0)


def sessions(pools_epoch: int | None, lease: Lease) -> tuple[object, ...]:
    """What the pool is told of agent a, whose second session has slot 3."""
    agents = {} if pools_epoch is None else {"a": AgentSlots(pools_epoch, (3,), {})}
    holdings = Holdings((), agents, {"a": lease})
    return differences(holdings, lambda trial_id: None, lambda name: SECOND).sessions


def test_an_agent_that_the_pool_does_not_have_in_its_books_joins_it() -> None:
    joined = (AgentJoined("a", 2, (3,)),)
    assert sessions(None, Lease(2, 0)) == joined
    assert sessions(1, Lease(2, 0)) == joined
    assert sessions(2, Lease(2, 0)) == ()


def test_an_agent_that_was_lost_leaves_the_books_and_does_not_join_again() -> None:
    lost = Lease(2, 0, lost=True)
    assert sessions(2, lost) == (AgentLost("a", 2, "it has not been heard of"),)
    assert sessions(None, lost) == ()


def test_a_pool_that_has_not_heard_what_was_disabled_hears_it() -> None:
    drained = Availability(enabled=False, draining=True)
    state = replace(SECOND, availability=drained)
    holdings = Holdings((), {"a": AgentSlots(2, (3,))}, {"a": Lease(2, 0)})
    found = differences(holdings, lambda trial_id: None, lambda name: state)
    assert found.sessions == (AgentAvailabilityChanged("a", 2, drained),)
    knows = replace(holdings, agents={"a": AgentSlots(2, (3,), availability=drained)})
    assert differences(knows, lambda trial_id: None, lambda name: state).sessions == ()


def test_an_agent_that_enrols_during_the_audit_is_left_alone() -> None:
    # The lease is the third session's, the state read before it the second's.
    assert sessions(2, Lease(3, 0)) == ()


def test_an_agent_that_enrolled_before_its_pool_was_there_joins_it(tmp_path: Path) -> None:
    engine = Engine(SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000)
    engine.command("agent#a", AgentEnrolled("a", "default", ((0, "cpu", "u", "n"),)))
    engine.command("pool#default", PoolConfigured("default"))
    assert engine.state("pool#default").slots == 0
    assert audit(engine, "default").sessions == (AgentJoined("a", 1, (0,)),)
    assert engine.state("pool#default").slots == 1
    assert audit(engine, "default") == NOTHING


def test_an_audit_frees_more_than_one_message_takes(tmp_path: Path) -> None:
    engine = Engine(SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000)
    engine.command("pool#default", PoolConfigured("default"))
    for trial_id in range(20):
        message = SlotsRequested(trial_id, 1, 1, f"t{trial_id}", trial_id)
        engine.post("pool#default", message, sender="nobody")
    assert len(audit(engine, "default").pool.stale) == 20
    assert engine.state("pool#default").queued == 0


def test_an_audit_mails_what_it_finds(tmp_path: Path) -> None:
    engine = Engine(SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000)
    engine.command("pool#default", PoolConfigured("default"))
    engine.command("agent#a", AgentEnrolled("a", "default", ((0, "cpu", "u", "n"),)))
    # Two trials that nobody has heard of: one is placed, the other waits.
    for trial_id in (8, 9):
        message = SlotsRequested(trial_id, 1, 1, f"t{trial_id}")
        engine.post("pool#default", message, sender="nobody")
    assert (engine.state("pool#default").running, engine.state("pool#default").queued) == (1, 1)
    first = audit(engine, "default")
    assert len(first.pool.stale) == 2
    state = engine.state("pool#default")
    assert (state.running, state.queued, state.free) == (0, 0, 1)
    assert engine.state("agent#a").desired == ()
    assert audit(engine, "default") == NOTHING


def jobs(groups: dict[int, Group], rows: dict[int, JobRow], *live: int) -> Differences:
    """Of a pool with these jobs, in which experiments 1 to 5 are; those of `live` run."""
    desk = Desk("experiment#1")
    desk.tell(submitted())

    def experiment(number: int) -> ExperimentState | None:
        status = Status.ACTIVE if number in live else Status.COMPLETED
        return evolve(desk.state, status=status) if number < 6 else None

    holdings = Holdings((), {}, {}, groups, rows)
    return with_jobs(NOTHING, "default", holdings, experiment)


ROW = JobRow(7)


def test_jobs_that_are_as_their_rows_say_have_no_difference() -> None:
    assert jobs({1: Group(ROW, listed=True)}, {1: ROW}, 1) == NOTHING
    # It has ended, and its last trial is about to give its slots back.
    assert jobs({1: Group(ROW, running=1, held=1)}, {}) == NOTHING


def test_a_pool_that_does_not_know_a_job_as_its_row_says_reads_it() -> None:
    told = (JobChanged(1),)
    assert jobs({}, {1: ROW}, 1).jobs == told
    assert jobs({1: Group(ROW, listed=True)}, {1: JobRow(7, weight=2.0)}, 1).jobs == told
    assert jobs({1: Group(ROW, running=1)}, {1: ROW}, 1).jobs == told


def test_a_job_that_has_nothing_and_no_row_is_forgotten() -> None:
    assert jobs({1: Group(ROW), 2: Group(ROW, listed=True)}, {}).jobs == (
        JobChanged(1),
        JobChanged(2),
    )


def test_a_row_of_an_experiment_that_does_not_live_is_put_right_by_it() -> None:
    found = jobs({1: Group(ROW, listed=True)}, {1: ROW})
    assert (found.experiments, found.jobs) == ((1,), ())
    assert jobs({}, {9: ROW}).experiments == ()


def test_a_live_experiment_without_a_row_writes_it() -> None:
    assert jobs({1: Group(ROW, running=1, held=1)}, {}, 1).experiments == (1,)


def test_an_audit_finds_rows_that_nobody_writes_any_more(tmp_path: Path) -> None:
    engine = Engine(SqliteTable(tmp_path / "state.db", synchronous="NORMAL"), lambda: 1_000)
    engine.command("pool#default", PoolConfigured("default"))
    engine.command("experiment#1", submitted())
    engine.command("experiment#1", KillRequested())
    key = Key("jobs#default", "000000000001")
    assert (engine.table.get(key), audit(engine, "default")) == (None, NOTHING)
    engine.table.commit((Put(key, 1, written_job(ROW), Expect.ABSENT),))
    first = audit(engine, "default")
    assert (first.jobs, first.experiments) == ((JobChanged(1),), (1,))
    assert engine.table.get(key) is None
    assert audit(engine, "default") == NOTHING


def test_a_part_of_a_gang_that_its_agent_does_not_know_is_placed_as_its_node() -> None:
    places = (Place("b", (0,)), Place("a", (0,)))
    state = trial(4, SlotsAssigned(1, places))
    # It lost its first node, so the pool counts one.
    holdings = Holdings((), {"a": AgentSlots(1, (0,), {"4.1": Part((0,), leaving=True)})}, {})
    found = differences(holdings, lambda trial_id: state, lambda name: AGENT)
    assert found.agents == (("a", AllocationPlaced(4, 1, (0,), 1, 2)),)
