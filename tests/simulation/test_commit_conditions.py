"""Tests of the conditions of commits: without any family of conditions, a check fails.

A check is a race that a condition decides. The tests run each check with all conditions, and
without the family of its mutant.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.actors.agent.actor import leases_partition
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.actors.messages.experiment import (
    CancelRequested,
    KillRequested,
    PauseRequested,
)
from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.actors.messages.trial import ExperimentStatusChanged, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.agents.leases import mark_lost_agents
from control_plane.agents.reports import Report
from control_plane.agents.service import AgentService
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.engine import due_rows, mailbox
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.state.table import Conflict, Expect, Key, Put
from simulator.checks.state_checker import StateChecker
from simulator.faults.table_faults import Crash, CrashingTable, InterleavingTable, TearingTable
from simulator.hosts.hosts import log_chunk_write
from simulator.stepped.small_search import POOL, build_search_spec, submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.engine_timing import UNHURRIED
from tests.simulation.conditions import Family, WithoutCondition
from tests.simulation.mailed_messages import everything_mailed, put_mail
from tests.simulation.scenarios import hold
from tests.simulation.scripts import train_at_once

EXPERIMENT = "experiment#1"
TRIAL = "trial#1"

Check = Callable[[SteppedCluster], None]


@dataclass(frozen=True)
class Mutant:
    """A family of conditions, and a check that fails without the family."""

    family: Family
    check: Check


def cancel_keeps_a_concurrent_kill(cluster: SteppedCluster) -> None:
    """Kill during the commit of a cancel: the kill must stay in force."""
    cluster.add_agent("a", 1, hold)
    cluster.submit(1)
    kill = _racing(cluster, lambda: cluster.engine.execute_command(EXPERIMENT, KillRequested()))
    kill.execute_command(EXPERIMENT, CancelRequested())
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.STOPPING_KILLED


def racing_configurations_construct_the_pool_once(cluster: SteppedCluster) -> None:
    """Configure a pool that a racing request has configured and an agent has joined."""
    pool = "pool#other"

    def act() -> None:
        cluster.engine.execute_command(pool, PoolConfigured("other"))
        agent = AgentEnrolled("a", "other", ((0, "cpu", "a-0", "cpu"),))
        cluster.engine.execute_command("agent#a", agent)

    _racing(cluster, act).execute_command(pool, PoolConfigured("other"))
    assert cluster.checker.actor_state(pool).slots == 1


def mail_to_a_new_actor_is_kept(cluster: SteppedCluster) -> None:
    engine = cluster.engine
    with pytest.raises(Crash), everything_mailed():
        _crashing(cluster, 2).execute_command(EXPERIMENT, submission(1, 1))

    def act(partition: str) -> None:
        engine.advance(TRIAL)
        put_mail(engine, TRIAL, EXPERIMENT, ExperimentStatusChanged(Status.PAUSED), tick=99)

    Engine(TearingTable(engine.table, act, HEAD), engine.clock, UNHURRIED).advance(TRIAL)
    engine.advance(TRIAL)
    assert cluster.checker.actor_state(TRIAL).experiment_status is Status.PAUSED


def folded_message_is_not_dead_lettered(cluster: SteppedCluster) -> None:
    """Dead-letter a message that the trial folded after the recovery pass read the row."""
    cluster.submit(1)
    key = put_mail(cluster.engine, TRIAL, EXPERIMENT, WorkAssigned(8, False))
    row = cluster.engine.table.get(key)
    assert row is not None
    cluster.engine.advance(TRIAL)
    with suppress(Conflict):
        cluster.engine.dead_letter_mail(mailbox.read_mail(row))
    assert cluster.checker.actor_state(TRIAL).status is Status.ACTIVE


def posts_of_the_same_millisecond_arrive(cluster: SteppedCluster) -> None:
    """Let two processes post first messages as one sender within a millisecond."""
    pool = f"pool#{POOL}"
    with pytest.raises(Crash):
        _crashing(cluster, 2).post_message(pool, SlotsRequested(88, 1, 1, "1"), sender="audit")
    try:
        _engine(cluster).post_message(pool, SlotsRequested(89, 1, 1, "2"), sender="audit")
    except Conflict:
        cluster.now_ms += 1
        _engine(cluster).post_message(pool, SlotsRequested(89, 1, 1, "2"), sender="audit")
    cluster.engine.advance(pool)
    assert cluster.checker.actor_state(pool).queued == 2


def racing_submissions_get_distinct_ids(cluster: SteppedCluster) -> None:
    act = lambda: cluster.engine.execute_command("experiment#2", submission(2, 3))  # noqa: E731
    # A commit that creates trials would guard the ids by the new heads.
    with everything_mailed():
        _racing(cluster, act).execute_command(EXPERIMENT, submission(1, 3))
    owners = sorted(trial.experiment_id for trial in cluster.checker.actor_states("trial"))
    assert owners == [1, 1, 1, 2, 2, 2]


def delivery_keeps_the_receivers_concurrent_fold(cluster: SteppedCluster) -> None:
    """Assign work to a trial during the commit that delivers a pause to the trial."""
    cluster.submit(1)

    def act() -> None:
        put_mail(cluster.engine, TRIAL, "experiment#9", WorkAssigned(64, False))
        cluster.engine.advance(TRIAL)

    _racing(cluster, act).execute_command(EXPERIMENT, PauseRequested())
    trial = cluster.checker.actor_state(TRIAL)
    assert (trial.length, trial.experiment_status) == (64, Status.PAUSED)


def racing_syncs_fold_a_report_once(cluster: SteppedCluster) -> None:
    """Let two hosts serve one sync; the second call starts before the first ends."""
    agent = cluster.add_agent("a", 1, train_at_once)
    cluster.submit(1)
    agent.sync()
    agent.work()
    run = agent.processes["1.1"]
    reports = tuple(
        Report(1, 1, writer, offset, line) for writer, offset, line in run.reports.lines
    )
    request = SyncRequest(agent.epoch or 0, ("1.1",), reports)
    act = lambda: cluster.host.agents.sync("a", request)  # noqa: E731
    _service(_racing(cluster, act)).sync("a", request)
    folded = [name for name, _ in cluster.checker.folded_messages(TRIAL)]
    assert folded.count("LengthReported") == 1
    assert folded.count("AllocationExited") == 1


def agent_with_a_renewed_lease_is_not_lost(cluster: SteppedCluster) -> None:
    """Let an agent renew its lease after the pass read the lease and before the commit."""
    agents = [cluster.add_agent(name, 1, hold) for name in "abcd"]
    cluster.now_ms += 15_000
    for agent in agents[1:]:
        agent.sync()
    mark_lost_agents(cluster.engine.table, POOL, cluster.now_ms, cluster.engine.advance_until_idle)
    # Agent a last synced 31 s ago, agents b to d 16 s ago. A quarter of silent agents is no outage.
    cluster.now_ms += 16_000
    racing = _racing(cluster, agents[0].sync)
    marking = mark_lost_agents(racing.table, POOL, cluster.now_ms, racing.advance_until_idle)
    assert marking.lost == ()
    assert not cluster.checker.actor_state("agent#a").lost


def lost_lease_is_not_renewed(cluster: SteppedCluster) -> None:
    """Let the pass mark an agent lost after the sync read the lease and before the renewal."""
    agents = [cluster.add_agent(name, 1, hold) for name in "abcd"]
    cluster.now_ms += 15_000
    for agent in agents[1:]:
        agent.sync()
    mark_lost_agents(cluster.engine.table, POOL, cluster.now_ms, cluster.engine.advance_until_idle)
    cluster.now_ms += 16_000
    lost: list[str] = []

    def act() -> None:
        engine = cluster.engine
        marking = mark_lost_agents(engine.table, POOL, cluster.now_ms, lambda addresses: None)
        lost.extend(marking.lost)

    agents[0].service = _service(_racing(cluster, act))
    with suppress(CommandRefused):
        agents[0].sync()
    assert lost == ["a"]
    row = cluster.checker.rows[Key(leases_partition(POOL), "a")]
    assert b'"lost":true' in row.body


def counted_attempt_does_not_restore_a_folded_message(cluster: SteppedCluster) -> None:
    """Let a racing engine fold a message while the pass counts an attempt."""
    cluster.submit(1)
    put_mail(cluster.engine, TRIAL, EXPERIMENT, WorkAssigned(8, False))
    due_rows.process_due_rows(_racing(cluster, lambda: cluster.engine.advance(TRIAL)))
    cluster.now_ms += 10_000
    due_rows.process_due_rows(cluster.engine)
    folded = [name for name, _ in cluster.checker.folded_messages(TRIAL)]
    assert folded.count("WorkAssigned") == 1
    assert cluster.checker.pending_mail() == []


def prolonged_row_does_not_expire(cluster: SteppedCluster) -> None:
    table, key = cluster.engine.table, Key("idempotency#me", "k")
    table.commit([Put(key, 1, b"", Expect.ABSENT, due_ms=cluster.now_ms)])
    later = Put(key, 2, b"", Expect.PRESENT, due_ms=cluster.now_ms + 60_000)
    due_rows.process_due_rows(_racing(cluster, lambda: table.commit([later])))
    assert table.get(key) is not None


def command_with_an_idempotency_key_runs_once(cluster: SteppedCluster) -> None:
    """Let two hosts serve a request with an idempotency key."""
    enrolled = AgentEnrolled("a", POOL, ())
    beside = (Put(Key("idempotency#me", "k"), 1, b"", Expect.ABSENT),)

    def act() -> None:
        cluster.engine.execute_command("agent#a", enrolled, extra_writes=lambda reply: beside)

    with suppress(Conflict):
        _racing(cluster, act).execute_command(
            "agent#a", enrolled, extra_writes=lambda reply: beside
        )
    assert cluster.checker.actor_state("agent#a").epoch == 1


MUTANTS = (
    Mutant(Family.HEAD, cancel_keeps_a_concurrent_kill),
    Mutant(Family.HEAD, delivery_keeps_the_receivers_concurrent_fold),
    Mutant(Family.BIRTH, racing_configurations_construct_the_pool_once),
    Mutant(Family.NO_ACTOR, mail_to_a_new_actor_is_kept),
    Mutant(Family.CONSUMED, folded_message_is_not_dead_lettered),
    Mutant(Family.NEW_MAIL, posts_of_the_same_millisecond_arrive),
    Mutant(Family.GUARD, racing_submissions_get_distinct_ids),
    Mutant(Family.SESSION, racing_syncs_fold_a_report_once),
    Mutant(Family.LEASE, agent_with_a_renewed_lease_is_not_lost),
    Mutant(Family.LEASE, lost_lease_is_not_renewed),
    Mutant(Family.ATTEMPTS, counted_attempt_does_not_restore_a_folded_message),
    Mutant(Family.EXPIRY, prolonged_row_does_not_expire),
    Mutant(Family.BESIDE, command_with_an_idempotency_key_runs_once),
)
each_mutant = pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda mutant: f"{mutant.family.name}-{mutant.check.__name__}"
)


@each_mutant
def test_check_passes_with_every_condition(mutant: Mutant, tmp_path: Path) -> None:
    run(mutant.check, tmp_path, frozenset())


@each_mutant
def test_check_fails_without_the_condition(mutant: Mutant, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as raised:
        run(mutant.check, tmp_path, frozenset({mutant.family}))
    assert raised.traceback[-1].name == mutant.check.__name__


def test_every_family_has_a_mutant() -> None:
    assert {mutant.family for mutant in MUTANTS} == set(Family)


def run(check: Check, folder: Path, families: frozenset[Family]) -> None:
    """Run `check` on a new cluster without the conditions of `families`.

    If `families` is not empty, the state checker is off, so that only `check` can fail.
    """
    checker = StateChecker(unchecked=bool(families))
    cluster = SteppedCluster(folder / "table.db", _without(families), checker=checker)
    try:
        cluster.add_pool()
        check(cluster)
    finally:
        cluster.close()


def _without(families: frozenset[Family]) -> Callable[..., WithoutCondition]:
    return lambda table, process: WithoutCondition(table, families)


def _engine(cluster: SteppedCluster) -> Engine:
    """Return an engine of a new process on the same file, without memory."""
    return Engine(cluster.engine.table, cluster.engine.clock, UNHURRIED)


def _crashing(cluster: SteppedCluster, crash_at: int) -> Engine:
    return Engine(CrashingTable(cluster.engine.table, crash_at), cluster.engine.clock, UNHURRIED)


def _racing(cluster: SteppedCluster, act: Callable[[], object]) -> Engine:
    """Return an engine of a slower process: `act` runs between the read and the first commit."""
    return Engine(InterleavingTable(cluster.engine.table, act), cluster.engine.clock, UNHURRIED)


def _service(engine: Engine) -> AgentService:
    return AgentService(engine, build_search_spec, log_chunk_write, lambda put: put)
