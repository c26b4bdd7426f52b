"""A cluster in a single thread. A test runs rounds, in which hosts, agents and ticks act.

The hosts are those of seeded clusters, without faults. The table is a file, which outlives a host,
and `faults` may disturb each host's access to the table.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

from control_plane.actors import addresses
from control_plane.actors.era_rules import LENGTH_ERA as LENGTH_LIFE
from control_plane.actors.era_rules import LifecycleRules
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.step import CommandRefused
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.engine import due_rows
from control_plane.engine.engine import Engine
from control_plane.engine.engine_timing import EngineTiming
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.sqlite import IN_MEMORY, SqliteTable
from control_plane.state.table import Conflict, StateTable
from lambdas.maintenance import Maintenance
from provisioner.clouds.fake.provider import FakeCloud
from simulator.checks.state_checker import CheckedTable, StateChecker
from simulator.faults.fault_rates import NO_FAULTS
from simulator.faults.fault_state import FaultState
from simulator.hosts.adapters import HostAdapters, HostEnvironment
from simulator.hosts.commands import command_once, idempotency_key
from simulator.hosts.hosts import Host, NoResponse, answer_call
from simulator.stepped.moved_clock import MovedClock
from simulator.stepped.scripted_agent import Script, ScriptedAgent
from simulator.stepped.small_search import POOL, build_search_spec, submission

T = TypeVar("T")

ROUND_MS = 1_000
RESTART_MS = 2_000
ROUNDS_MAX = 600
REPEATS_MAX = 50

Faults = Callable[[StateTable, int], StateTable]
"""Decorates the table of the n-th host, from 0."""


class OpenTable(StateTable, Protocol):
    """A state table with a connection that can be closed."""

    def close(self) -> None: ...


def no_faults(table: StateTable, process: int) -> StateTable:
    """Return the table undisturbed."""
    return table


class SteppedHost(Host):
    """A host of a stepped cluster.

    Attributes:
        rows: the host's connection to the table, without checks and faults.
    """

    def __init__(self, adapters: HostAdapters, rows: OpenTable) -> None:
        super().__init__(adapters)
        self.rows = rows


def mark_lost_agents(host: Host) -> None:
    """Run a pass over the leases of all pools. Raises PoolsFailed."""
    Maintenance(host.engine).mark_lost_agents()


def redrive_mail(host: Host) -> None:
    """Run a pass over due mail and timers. Raises Unavailable."""
    due_rows.process_due_rows(host.engine)


def suggest(host: Host) -> None:
    """Answer all waiting suggestions. Raises Unavailable."""
    # After a conflict the answer is stored, by a repeated write or by another host.
    with suppress(Conflict):
        host.suggester.suggest_all()


TICK_TASKS = (mark_lost_agents, redrive_mail, suggest)


@dataclass
class SteppedCluster(MovedClock):
    """A cluster with a clock that only a test moves. A single host at a time serves all calls."""

    path: Path
    """The file of the table, or `:memory:`."""
    faults: Faults = no_faults
    after_crash: Callable[[ScriptedAgent], None] = lambda agent: None
    """Called with each agent after the crash of the host that the agent called."""
    checker: StateChecker = field(default_factory=StateChecker)
    round_ms: int = ROUND_MS
    clock: VirtualClock = field(default_factory=VirtualClock)
    processes: int = 0
    """The number of hosts that were started."""
    agents: list[ScriptedAgent] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    """The names of agents that make no calls."""
    _own_folder: TemporaryDirectory[str] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        clock, folder = (lambda: self.now_ms), self._folder()
        self.cloud = FakeCloud(clock, Random(0), ())
        self._environment = HostEnvironment(
            open_table=self.open_table,
            faults=FaultState(Random(0), NO_FAULTS, lambda: None),
            now_ms=clock,
            open_objects=lambda: DirectoryObjectStore(folder / "objects", HmacUrlSigner(bytes(32))),
            checkpoints=Directory(type="directory", container_path=str(folder / "checkpoints")),
            cloud=self.cloud,
            build_spec=build_search_spec,
            # Tests with threads need pauses after conflicts, and no pass may run out of time.
            timing=EngineTiming(monotonic_seconds=lambda: 0.0),
        )
        self.host = self.boot()

    @property
    def engine(self) -> Engine:
        """The engine of the current host."""
        return self.host.engine

    def boot(self) -> SteppedHost:
        """Start a host with empty memory on the rows of the file, and return the host."""
        rows = self.open_table()
        table = self.faults(CheckedTable(rows, self.checker), self.processes)
        self.processes += 1
        environment = replace(self._environment, open_table=lambda: table)
        return SteppedHost(HostAdapters(environment, lambda address: None), rows)

    def open_table(self) -> OpenTable:
        """Open the table, as each host does."""
        return SqliteTable(self.path, synchronous="NORMAL")

    def close(self) -> None:
        """Close the connection of the current host. Remove the files of a cluster in memory."""
        self.host.rows.close()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def _folder(self) -> Path:
        """Return the folder of objects and checkpoints. Create a folder for a table in memory."""
        if str(self.path) != IN_MEMORY:
            return self.path.absolute().parent
        self._own_folder = TemporaryDirectory(prefix="detcloud-stepped-")
        return Path(self._own_folder.name)

    def attempt(self, operation: Callable[[], T]) -> T:
        """Repeat an operation until an answer, as users, agents and the tick do.

        Start a new host after a crash. Otherwise, move the clock before each repetition. Raises
        AssertionError after REPEATS_MAX attempts, and CommandRefused.
        """
        for _ in range(REPEATS_MAX):
            try:
                return answer_call(self.host, lambda host: operation())
            except NoResponse:
                if self.host.table.is_dead:
                    self._restart()
                else:
                    self.now_ms += ROUND_MS
        raise AssertionError(f"no answer in {REPEATS_MAX} attempts")

    def command(self, address: str, message: object) -> None:
        """Send a command to an actor until an answer. The actor may execute the command repeatedly.

        Raises CommandRefused, and AssertionError after REPEATS_MAX attempts.
        """
        self.attempt(lambda: self.engine.execute_command(address, message))

    def command_once(self, address: str, message: object) -> None:
        """Send a command that the actor executes once, although the call may be repeated.

        Raises CommandRefused, and AssertionError after REPEATS_MAX attempts.
        """
        key = idempotency_key(type(message).__name__)
        self.attempt(lambda: command_once(self.host, address, message, key))

    def post(self, address: str, message: object) -> None:
        """Send mail from outside any actor, and advance the actor until no mail is left.

        After a crash or a failure, the call is repeated, so the mail may arrive more than once.
        Receivers of new mail are advanced, too. Raises AssertionError after REPEATS_MAX attempts.
        """

        def post() -> None:
            # A conflict means that the table has repeated the write, so the mail is stored.
            with suppress(Conflict):
                self.engine.post_message(address, message, sender="outside")

        self.attempt(post)
        self.attempt(lambda: self.engine.advance_until_idle((address,)))

    def add_pool(self) -> None:
        """Configure the pool POOL."""
        self.command(addresses.pool(POOL), PoolConfigured(POOL))

    def add_agent(self, name: str, slots: int, script: Script, pool: str = POOL) -> ScriptedAgent:
        """Add an agent and let the agent enrol."""
        agent = ScriptedAgent(self.host.agents, name, pool, slots, script)
        self.agents.append(agent)
        self.attempt(agent.enrol)
        return agent

    def submit(
        self,
        trials: int,
        *,
        concurrent: int = 0,
        max_restarts: int = 5,
        rules: LifecycleRules = LENGTH_LIFE,
    ) -> None:
        """Submit the search of `small_search.submission` as experiment 1."""
        message = submission(1, trials, concurrent, max_restarts)
        self.command(addresses.experiment(1), replace(message, rules=rules))

    def round(self) -> None:
        """Let each agent sync and work, move the clock by `round_ms`, then run a tick."""
        for agent in self.agents:
            if agent.name not in self.silent:
                self.attempt(partial(self._sync, agent))
                agent.work()
        self.now_ms += self.round_ms
        self.tick()

    def tick(self) -> None:
        """Run the passes over leases, due rows and suggestions until each has an answer."""
        for task in TICK_TASKS:
            self.attempt(partial(self._run_on_host, task))

    def _run_on_host(self, task: Callable[[SteppedHost], None]) -> None:
        """Run a task on the host of this attempt, which a crash may have replaced."""
        task(self.host)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Run rounds until `reached`. Raises AssertionError after ROUNDS_MAX rounds.

        Args:
            what: the awaited state, for the error.
        """
        for _ in range(ROUNDS_MAX):
            if reached():
                return
            self.round()
        raise AssertionError(f"never {what}: {self.describe()}")

    def run_to_rest(self) -> None:
        """Run rounds until `is_quiet`."""
        self.until(self.is_quiet, "at rest")

    def is_quiet(self) -> bool:
        """Return whether all experiments have ended, and no mail and no allocation is left."""
        ended = all(state.status.is_final for state in self.checker.actor_states("experiment"))
        return (
            ended
            and not self.checker.pending_mail()
            and not any(agent.processes for agent in self.agents)
        )

    def describe(self) -> str:
        """Return a description of the remaining work, for errors."""
        runs = {agent.name: list(agent.processes) for agent in self.agents}
        states = [
            self.checker.actor_states(kind) for kind in ("experiment", "pool", "trial", "agent")
        ]
        return f"mail {self.checker.pending_mail()}, runs {runs}, {states}"

    def _sync(self, agent: ScriptedAgent) -> None:
        try:
            agent.sync()
        except CommandRefused as refused:
            if refused.code == "unavailable":
                raise
            agent.enrol()

    def _restart(self) -> None:
        self.host.rows.close()
        self.now_ms += RESTART_MS
        self.host = self.boot()
        for agent in self.agents:
            agent.service = self.host.agents
            self.after_crash(agent)
