"""Tests of races: the end of every scenario equals the undisturbed end.

The disturbances are several engines on one file, torn queries, a failing table, and calls that
arrive twice, late or never.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from control_plane.actors.messages.experiment import PauseRequested
from control_plane.actors.messages.trial import ExperimentStatusChanged, TrialCreated, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.agents.service import SyncResponse
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.engine import actor_types, due_rows, mailbox
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.state.table import (
    NEVER_MS,
    Expect,
    Key,
    Put,
    StateTable,
    Unavailable,
    Write,
)
from simulator.checks.end_state import end_state
from simulator.faults.faulty_table import FlakyTable
from simulator.faults.table_faults import (
    Crash,
    CrashingTable,
    InterleavingTable,
    TableDecorator,
    TearingTable,
)
from simulator.machines.machine_agent import AgentCalls
from simulator.stepped.small_search import POOL, submission
from simulator.stepped.stepped_cluster import TICK_TASKS, SteppedCluster, SteppedHost
from tests.changed_actors import change_actor_type
from tests.engine_timing import UNHURRIED
from tests.simulation.gate_sample import gate_pairs
from tests.simulation.mailed_messages import everything_mailed, put_mail
from tests.simulation.scenarios import SCENARIOS, Scenario, hold
from tests.simulation.test_crash_proof import run_without_crash

EXPERIMENT = "experiment#1"
# Ticks after every message of the real senders of the same millisecond.
LATER = 1_000
SMALL = [scenario for scenario in SCENARIOS if not scenario.big]
by_name = pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
SEEDS = range(12)
TORN_AT = (HEAD, "M#8", "M#0018bcfe56801000", "P#queue")
by_seed = pytest.mark.parametrize(("scenario", "seed"), gate_pairs(product(SMALL, SEEDS), SEEDS))


def play(scenario: Scenario, cluster: SteppedCluster) -> None:
    """Play a scenario, close the cluster, and compare the end with the undisturbed end."""
    try:
        scenario.play(cluster)
    finally:
        cluster.close()
    end = end_state(cluster.checker, interchangeable=scenario.interchangeable)
    assert end == run_without_crash(scenario)[0]


class FlakyCalls:
    """Calls of an agent that get lost, lose the answer, or arrive again late.

    The first sync always gets lost. `disturbed`: number of disturbed calls.
    """

    def __init__(self, service: AgentCalls, seed: int) -> None:
        self.service = service
        self.disturbed = 0
        self._random = Random(seed)
        self._earlier: list[SyncRequest] = []

    def enrol(
        self, agent: str, pool: str, slots: tuple[tuple[int, str, str, str], ...], version: str
    ) -> int:
        return self.service.enrol(agent, pool, slots, version)

    def sync(self, agent: str, request: SyncRequest) -> SyncResponse:
        drawn = self._random.random() if self.disturbed else 0.0
        self.disturbed += drawn < 0.4 or drawn > 0.8
        if drawn < 0.2:
            raise Unavailable("the call got lost")
        if drawn < 0.4 and self._earlier:
            late = self._random.choice(self._earlier[-3:])
            try:
                self.service.sync(agent, late)
            except CommandRefused as refused:
                assert refused.code == "conflict"  # noqa: PT017
        self._earlier.append(request)
        answer = self.service.sync(agent, request)
        if drawn > 0.8:
            raise Unavailable("the answer got lost")
        return answer


class CallsFromTwoPlaces:
    """Calls of an agent that reach two hosts at once; the answer of a random host counts."""

    def __init__(
        self, hosts: Sequence[SteppedHost], threads: ThreadPoolExecutor, seed: int
    ) -> None:
        self._hosts = hosts
        self._threads = threads
        self._random = Random(seed)

    def enrol(
        self, agent: str, pool: str, slots: tuple[tuple[int, str, str, str], ...], version: str
    ) -> int:
        return self._random.choice(self._hosts).agents.enrol(agent, pool, slots, version)

    def sync(self, agent: str, request: SyncRequest) -> SyncResponse:
        chosen = self._random.sample(self._hosts, 2)
        calls = [self._threads.submit(host.agents.sync, agent, request) for host in chosen]
        answers = [_answer(call) for call in calls]
        answer = answers[self._random.randrange(2)]
        if isinstance(answer, CommandRefused):
            raise answer
        return answer


def _answer(call: "Future[SyncResponse]") -> SyncResponse | CommandRefused:
    try:
        return call.result()
    except CommandRefused as refused:
        return refused


class CrowdedCluster(SteppedCluster):
    """A cluster of many hosts on one file; every host runs every tick."""

    def crowd(self, hosts: Sequence[SteppedHost], threads: ThreadPoolExecutor, seed: int) -> None:
        self.hosts = hosts
        self.threads = threads
        self.calls = CallsFromTwoPlaces(hosts, threads, seed)

    def add_agent(self, name: str, slots: int, script: Any, pool: str = POOL) -> Any:
        agent = super().add_agent(name, slots, script, pool)
        agent.service = self.calls
        return agent

    def tick(self) -> None:
        passes = [self.threads.submit(self._tick_of, host) for host in self.hosts]
        for host_pass in passes:
            host_pass.result()

    def command(self, address: str, message: object) -> None:
        calls = [
            self.threads.submit(host.engine.execute_command, address, message)
            for host in self.hosts[:2]
        ]
        for call in calls:
            call.result()

    def _tick_of(self, host: SteppedHost) -> None:
        for task in TICK_TASKS:
            task(host)


@by_name
@pytest.mark.parametrize(
    "engines", [*(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 4)), 8]
)
def test_racing_engines_reach_the_undisturbed_end(
    scenario: Scenario, engines: int, tmp_path: Path, coverage_line: Callable[[str], None]
) -> None:
    cluster = CrowdedCluster(tmp_path / "table.db")
    with ExitStack() as stack, ThreadPoolExecutor(engines) as threads:
        hosts = [cluster.host, *(cluster.boot() for _ in range(engines - 1))]
        for host in hosts[1:]:
            stack.callback(host.rows.close)
        cluster.crowd(hosts, threads, seed=engines)
        play(scenario, cluster)
    coverage_line(
        f"{scenario.name:10} {engines} engines at once {cluster.checker.commits:9} commits"
    )


@by_seed
def test_flaky_table_keeps_the_undisturbed_end(
    scenario: Scenario, seed: int, tmp_path: Path
) -> None:
    tables: list[FlakyTable] = []

    def flaky(table: StateTable, process: int) -> StateTable:
        tables.append(FlakyTable(table, seed, share=0.3, reads_share=0.02))
        return tables[-1]

    play(scenario, SteppedCluster(tmp_path / "table.db", flaky))
    assert tables[0].fault_count > 0


@by_seed
def test_lost_repeated_and_late_calls_keep_the_undisturbed_end(
    scenario: Scenario, seed: int, tmp_path: Path
) -> None:
    class Unheard(SteppedCluster):
        def add_agent(self, name: str, slots: int, script: Any, pool: str = POOL) -> Any:
            agent = super().add_agent(name, slots, script, pool)
            agent.service = FlakyCalls(self.host.agents, seed)
            return agent

    cluster = Unheard(tmp_path / "table.db")
    play(scenario, cluster)
    for agent in cluster.agents:
        assert isinstance(agent.service, FlakyCalls)
        assert agent.service.disturbed > 0


@pytest.mark.parametrize(("scenario", "torn_at"), gate_pairs(product(SMALL, TORN_AT), TORN_AT))
def test_torn_queries_keep_the_undisturbed_end(
    scenario: Scenario, torn_at: str, tmp_path: Path
) -> None:
    """A second engine advances the queried actor in the middle of every query."""
    others: list[Engine] = []
    cluster = SteppedCluster(tmp_path / "table.db")

    def act(partition: str) -> None:
        if partition.partition("#")[0] in actor_types.ACTOR_TYPES:
            others[0].advance(partition, timers=True)

    def build_tearing_table(table: StateTable, process: int) -> StateTable:
        return TearingTable(table, act, torn_at, queries=None)

    other = cluster.boot()
    others.append(other.engine)
    cluster.host.rows.close()
    cluster.faults = build_tearing_table
    cluster.host = cluster.boot()
    play(scenario, cluster)
    other.rows.close()


def test_late_sync_does_not_lose_a_trial_started_since(cluster: SteppedCluster) -> None:
    """The first call of the agent arrives late, after the start of a trial."""
    agent = cluster.add_agent("a", 1, hold)
    cluster.submit(1)
    late = SyncRequest(agent.epoch or 0, known=(), call=agent.next_call())
    agent.sync()
    agent.work()
    agent.sync()
    assert cluster.checker.actor_state("trial#1").best_metric is not None
    cluster.host.agents.sync("a", late)
    assert cluster.checker.actor_state("trial#1").losses == 0


def test_mail_is_kept_if_the_actor_appears_during_the_query(
    cluster: SteppedCluster,
) -> None:
    """The query misses the new head of the actor, but reads the mail behind the head."""
    engine = cluster.engine
    # The experiment has mailed its trial, and no engine has folded the mail yet.
    dying = Engine(CrashingTable(engine.table, 2), lambda: cluster.now_ms, UNHURRIED)
    with pytest.raises(Crash), everything_mailed():
        dying.execute_command(EXPERIMENT, submission(1, 1))
    assert cluster.checker.actor_state("trial#1") is None

    def act(partition: str) -> None:
        engine.advance("trial#1")
        put_mail(engine, "trial#1", "experiment#1", ExperimentStatusChanged(Status.PAUSED), tick=99)

    torn = TearingTable(engine.table, act, HEAD)
    Engine(torn, lambda: cluster.now_ms, UNHURRIED).advance("trial#1")
    engine.advance("trial#1")
    assert torn.queries >= 1
    assert cluster.checker.actor_state("trial#1").experiment_status is Status.PAUSED


def test_mail_of_a_sender_without_memory_is_folded_in_order(cluster: SteppedCluster) -> None:
    """Two rows appear during the second query, which returns only the later row."""
    cluster.submit(1)
    engine, trial = cluster.engine, "trial#1"
    put_mail(engine, trial, "somebody", WorkAssigned(8, False), tick=100)

    def act(partition: str) -> None:
        put_mail(engine, trial, EXPERIMENT, ExperimentStatusChanged(Status.PAUSED), tick=10)
        put_mail(engine, trial, EXPERIMENT, ExperimentStatusChanged(Status.ACTIVE), tick=60)

    ticks = mailbox.next_clock(0, cluster.now_ms) + LATER
    middle = mailbox.mail_key(trial, ticks + 50, "").sort
    torn = TearingTable(engine.table, act, middle, queries=frozenset({2}))
    Engine(torn, lambda: cluster.now_ms, UNHURRIED).advance(trial)
    statuses = [f["status"] for _, f in cluster.checker.folded_messages(trial) if "status" in f]
    assert statuses == ["PAUSED", "ACTIVE"]
    assert cluster.checker.actor_state(trial).length == 8


@pytest.mark.parametrize("rows", [1, 60, 130])
def test_mail_to_a_missing_actor_is_journaled_once_and_dropped(
    cluster: SteppedCluster, rows: int
) -> None:
    other = cluster.boot()
    for tick in range(rows):
        put_mail(cluster.engine, "trial#404", f"trial#{tick}", WorkAssigned(8, False), tick=tick)
    racing = InterleavingTable(
        cluster.engine.table, lambda: other.engine.advance("trial#404"), _writes_to("trial#404")
    )
    Engine(racing, lambda: cluster.now_ms, UNHURRIED).advance("trial#404")
    assert racing.acted
    assert cluster.checker.pending_mail() == []
    dropped = [key for key in cluster.checker.rows if key.partition == "trial#404"]
    assert len(dropped) == rows
    assert all(key.sort.startswith("Z#dropped#") for key in dropped)
    assert cluster.checker.actor_state("trial#404") is None
    other.rows.close()


@pytest.mark.parametrize(("grows", "first"), [(False, 65), (True, 4)])
def test_concurrent_submissions_get_distinct_ids(
    cluster: SteppedCluster, grows: bool, first: int
) -> None:
    """Both submissions draw ids from a counter; the loser of the race gets the next ids."""
    other = cluster.boot()
    beaten, winner = (replace(submission(n, 3), has_growing_id_blocks=grows) for n in (1, 2))
    racing = InterleavingTable(
        cluster.engine.table,
        lambda: other.engine.execute_command("experiment#2", winner),
        _writes_to(EXPERIMENT),
    )
    Engine(racing, lambda: cluster.now_ms, UNHURRIED).execute_command(EXPERIMENT, beaten)
    trials = {t.trial_id: t.experiment_id for t in cluster.checker.actor_states("trial")}
    # The winner got the block 1 to 64, or 1 to 3; the beaten submission got the next block.
    assert trials == {1: 2, 2: 2, 3: 2, first: 1, first + 1: 1, first + 2: 1}
    other.rows.close()


def test_failed_condition_of_an_extra_write_raises_to_the_caller(cluster: SteppedCluster) -> None:
    cluster.submit(1)
    key = Key("idempotency#me", "k")
    beside = (Put(key, 1, b"", Expect.ABSENT),)
    cluster.engine.execute_command(EXPERIMENT, PauseRequested(), extra_writes=lambda reply: beside)
    with pytest.raises(Exception, match="idempotency#me / k"):
        cluster.engine.execute_command(
            EXPERIMENT, PauseRequested(), extra_writes=lambda reply: beside
        )


def test_prolonged_row_does_not_expire_by_a_stale_index(cluster: SteppedCluster) -> None:
    """The due index may be stale and still list the former time of a row."""
    table, key = cluster.engine.table, Key("idempotency#me", "k")
    table.commit([Put(key, 1, b"", Expect.ABSENT, due_ms=1, expires=True)])

    class Lagging(TableDecorator):
        def due_keys(
            self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
        ) -> tuple[Key, ...]:
            return (key,)

    table.commit([Put(key, 2, b"", 1, due_ms=cluster.now_ms + 60_000, expires=True)])
    lagging = Engine(Lagging(table), lambda: cluster.now_ms, UNHURRIED)
    for shards in ((), [0]), ([0], ()):
        assert due_rows.process_due_rows(lagging, *shards) == due_rows.DueRowCounts()
    assert table.get(key) is not None
    cluster.now_ms += 60_000
    assert due_rows.process_due_rows(cluster.engine).expired == 1
    assert table.get(key) is None


@pytest.mark.parametrize("crash_at", [0, 1, 2, 3])
def test_timer_fires_once(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    def step(state: Any, message: Any, context: StepContext) -> Any:
        if isinstance(message, TrialCreated):
            context.set_timer(context.now_ms + 7_000, WorkAssigned(8, False))
            context.set_timer(context.now_ms + 9_000, WorkAssigned(9, False))
        return healthy.step(state, message, context)

    healthy = change_actor_type(monkeypatch, "trial", step=step)
    cluster.submit(1)
    other = cluster.boot()
    fired: dict[int, list[int]] = {}
    for second in range(30):
        crashing = CrashingTable(cluster.engine.table, crash_at if second in (7, 8) else 0)
        with suppress(Crash):
            due_rows.process_due_rows(Engine(crashing, lambda: cluster.now_ms, UNHURRIED))
        due_rows.process_due_rows(other.engine)
        lengths = [
            f["length"]
            for n, f in cluster.checker.folded_messages("trial#1")
            if n == "WorkAssigned"
        ]
        fired[second] = lengths
        cluster.now_ms += 1_000
    assert fired[6] == []
    assert fired[29] == [8, 9]
    assert cluster.checker.pending_mail() == []
    other.rows.close()


def _writes_to(partition: str) -> Callable[[Sequence[Write]], bool]:
    return lambda writes: any(write.key.partition == partition for write in writes)
