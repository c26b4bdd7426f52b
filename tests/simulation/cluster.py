"""A whole cluster in one thread: the real engine and services on one SQLite file, scripted agents
around them, and a clock that moves only when a test moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from control_plane.actors.era_rules import LENGTH_ERA as LENGTH_LIFE
from control_plane.actors.era_rules import LifecycleRules
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.records import TrialSettings
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.leases import mark_lost_agents
from control_plane.agents.service import AgentService
from control_plane.agents.sessions import LogChunk
from control_plane.engine import actor_types, due_rows
from control_plane.engine.engine import Engine
from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group
from control_plane.state.faults import Crash
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable, Unavailable
from control_plane.suggestions.suggester import Suggester
from lambdas.simulation.state_checker import CheckedTable, StateChecker
from tests.engine_timing import UNHURRIED
from tests.simulation.scripted_agent import Script, ScriptedAgent

# Who simulates on one machine needs no cloud's packages.
if TYPE_CHECKING:
    from control_plane.aws.state_table import DynamoDbTable
    from control_plane.gcp.state_table import FirestoreTable

T = TypeVar("T")

POOL = "default"
START_MS = 1_700_000_000_000
ROUND_MS = 1_000
RESTART_MS = 2_000
ROUNDS_MAX = 600
REPEATS_MAX = 50

Faults = Callable[[StateTable, int], StateTable]
"""Decorates the table of the n-th process, from 0."""


def no_faults(table: StateTable, process: int) -> StateTable:
    return table


@contextmanager
def everything_mailed() -> Iterator[None]:
    """Let every message be mail, one to a trial too, which its sender's commit delivers else."""
    every_type = actor_types.ACTOR_TYPES
    mailed = replace(every_type["trial"], takes_deliveries=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_types, "ACTOR_TYPES", {**every_type, "trial": mailed})
        yield


@dataclass
class Host:
    """One process of the control plane, on a table of its own."""

    table: SqliteTable | DynamoDbTable | FirestoreTable
    engine: Engine
    service: AgentService
    suggester: Suggester


@dataclass
class Cluster:
    """`faults` disturb the processes one after the other; `after_crash` is what the agents do
    when the process they spoke to has died.
    """

    path: Path
    faults: Faults = no_faults
    after_crash: Callable[[ScriptedAgent], None] = lambda agent: None
    checker: StateChecker = field(default_factory=StateChecker)
    now_ms: int = START_MS
    round_ms: int = ROUND_MS
    processes: int = 0
    agents: list[ScriptedAgent] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.host = self.boot()

    @property
    def engine(self) -> Engine:
        return self.host.engine

    def boot(self) -> Host:
        """Start a fresh process: nothing in its memory, everything in the file."""
        opened = self.open_table()
        table = self.faults(CheckedTable(opened, self.checker), self.processes)
        self.processes += 1
        engine = Engine(table, lambda: self.now_ms, UNHURRIED)
        service = AgentService(engine, spec_of, store_log, store_segment)
        return Host(opened, engine, service, Suggester(engine))

    def open_table(self) -> SqliteTable | DynamoDbTable | FirestoreTable:
        """Open the rows as a process of its own does."""
        return SqliteTable(self.path, synchronous="NORMAL")

    def close(self) -> None:
        self.host.table.close()

    def attempt(self, operation: Callable[[], T]) -> T:
        """Repeat an operation until it has an answer, as users, agents and the tick do."""
        for _ in range(REPEATS_MAX):
            try:
                return operation()
            except Crash:
                self._restart()
            except Unavailable:
                self.now_ms += ROUND_MS
            except CommandRefused as refused:
                if refused.code != "unavailable":
                    raise
                self.now_ms += ROUND_MS
        raise AssertionError(f"no answer in {REPEATS_MAX} attempts")

    def command(self, address: str, message: object) -> None:
        self.attempt(lambda: self.engine.execute_command(address, message))

    def command_once(self, address: str, message: object) -> None:
        """Send a command that is refused when it comes again; its key makes the repeat harmless."""
        key = Key("idempotency#me", type(message).__name__)
        extra_writes = (Put(key, 1, b"", Expect.ABSENT),)

        def send() -> None:
            if self.engine.table.get(key) is not None:
                return
            try:
                self.engine.execute_command(
                    address, message, extra_writes=lambda reply: extra_writes
                )
            except (Conflict, CommandRefused):
                # It may have been carried out by an attempt that got no answer.
                if self.engine.table.get(key) is None:
                    raise

        self.attempt(send)

    def post(self, address: str, message: object) -> None:
        """Send mail from outside any actor, which may arrive more than once."""

        def post() -> None:
            # A conflict: the table repeated the write, so the mail is there.
            with suppress(Conflict):
                self.engine.post_message(address, message, sender="outside")

        self.attempt(post)
        self.attempt(lambda: self.engine.advance_until_idle((address,)))

    def add_pool(self) -> None:
        self.command(f"pool#{POOL}", PoolConfigured(POOL))

    def add_agent(self, name: str, slots: int, script: Script, pool: str = POOL) -> ScriptedAgent:
        agent = ScriptedAgent(self.host.service, name, pool, slots, script)
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
        message = submission(1, trials, concurrent, max_restarts)
        self.command("experiment#1", replace(message, rules=rules))

    def round(self) -> None:
        """Run one round: each agent syncs and works, then the tick passes."""
        for agent in self.agents:
            if agent.name not in self.silent:
                self.attempt(lambda agent=agent: self._sync(agent))  # type: ignore[misc]
                agent.work()
        self.now_ms += self.round_ms
        self.tick()

    def tick(self) -> None:
        self.attempt(
            lambda: mark_lost_agents(
                self.engine.table, POOL, self.now_ms, self.engine.advance_until_idle
            )
        )
        self.attempt(lambda: due_rows.process_due_rows(self.engine))
        self.attempt(self._suggest)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Run rounds until `reached`."""
        for _ in range(ROUNDS_MAX):
            if reached():
                return
            self.round()
        raise AssertionError(f"never {what}: {self.describe()}")

    def run_to_rest(self) -> None:
        """Run rounds until nothing is pending any more."""
        self.until(self.is_quiet, "at rest")

    def is_quiet(self) -> bool:
        ended = all(state.status.is_final for state in self.checker.actor_states("experiment"))
        return (
            ended
            and not self.checker.pending_mail()
            and not any(agent.runs for agent in self.agents)
        )

    def describe(self) -> str:
        runs = {agent.name: list(agent.runs) for agent in self.agents}
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

    def _suggest(self) -> None:
        # A conflict: the table repeated the write, so the answer is there.
        with suppress(Conflict):
            self.host.suggester.suggest_all()

    def _restart(self) -> None:
        self.host.table.close()
        self.now_ms += RESTART_MS
        self.host = self.boot()
        for agent in self.agents:
            agent.service = self.host.service
            self.after_crash(agent)


def submission(
    experiment_id: int, trials: int, concurrent: int = 0, max_restarts: int = 5
) -> ExperimentSubmitted:
    """Return a random search of `trials` trials of one slot and one batch each."""
    space = Group({"x": Double(0.0, 1.0), "y": Double(0.0, 1.0)})
    plan = SearchPlan(RandomPlan(4, trials, concurrent, LENGTH_ERA), space, 7)
    settings = TrialSettings(POOL, 1, max_restarts, True, Lengths("batches"), experiment_id)
    return ExperimentSubmitted(
        experiment_id=experiment_id,
        owner="me",
        name="search",
        config="{}",
        code_sha256="0" * 64,
        plan=plan,
        settings=settings,
        metric="loss",
        searcher="random",
        paused=False,
    )


def end_state(checker: StateChecker, *, interchangeable: bool = False) -> dict[str, Any]:
    """Return the state when all is over, but for clocks and ids of rows.

    `interchangeable`: how far which trial came depends on who was first; that all ended does not.
    """
    experiments = {
        state.experiment_id: {
            "status": state.status.value,
            "trials": (state.trials, state.trials_open),
            "ended": (state.trials_completed, state.trials_errored),
            "life": (state.run_generation, state.name, state.archived),
            "settings": checker.part(f"experiment#{state.experiment_id}", "settings"),
            "best": (state.best_metric, None if interchangeable else state.best_trial),
            "progress": 0.0 if interchangeable else round(state.progress or 0.0, 6),
        }
        for state in checker.actor_states("experiment")
    }
    trials = sorted(
        (
            0 if interchangeable else state.trial_id,
            state.status.value,
            state.restarts,
            -1.0 if state.best_metric is None or interchangeable else state.best_metric,
            0 if interchangeable else state.reached,
        )
        for state in checker.actor_states("trial")
    )
    pools = {
        state.name: (state.agents, state.slots, state.free, state.queued, state.running)
        for state in checker.actor_states("pool")
    }
    held = [s.trial_id for s in checker.actor_states("trial") if s.allocation is not None]
    desired = [(s.agent, s.desired) for s in checker.actor_states("agent") if s.desired]
    outbox = [key for key in checker.rows if key.sort.startswith("P#outbox/")]
    outbox += [key for key in checker.rows if key.partition == SUGGESTION.partition]
    return {
        "experiments": experiments,
        "trials": trials,
        "pools": pools,
        "left over": [checker.pending_mail(), held, desired, outbox],
    }


def spec_of(
    experiment: ExperimentState, definition: Definition, trial: TrialState
) -> dict[str, Any]:
    """Return the fields of a specification that the scripts read."""
    return {
        "experiment_id": experiment.experiment_id,
        "trial_id": trial.trial_id,
        "metric": experiment.metric,
        "hparams": dict(trial.hparams),
        "restarts": trial.restarts,
    }


def store_log(trial_id: int, chunk: LogChunk) -> Put:
    """Return the write of a chunk's text in its index row."""
    key = Key(f"trial#{trial_id}", f"L#{chunk.allocation}#{chunk.offset:012d}")
    return Put(key, 1, chunk.text, Expect.ANYTHING)


def store_segment(put: Put) -> Put:
    """Return the write unchanged: reports of any number lie in their row."""
    return put
