"""Trials that are created, run without training, and closed by the real code: engine, actors,
journal, agent service and SQLite.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

from bench.figures import progress
from bench.instant_agent import InstantAgent
from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.records import Status, TrialSettings
from control_plane.actors.trial.state import TrialState
from control_plane.agents.service import AgentService
from control_plane.agents.sessions import LogChunk
from control_plane.engine import due_rows
from control_plane.engine.engine import Engine
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.method import MethodPlan
from control_plane.searchers.methods.adaptive_asha import plan_adaptive_asha
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Put, StateTable, Write
from simulator.faults.table_faults import TableDecorator

POOL = "default"
EXPERIMENT_ID = 1
PARAMETERS = 5
SLOTS = 16

Synchronous = Literal["FULL", "NORMAL"]


@dataclass(frozen=True, slots=True)
class Load:
    """A search over five real hyperparameters. `concurrent`: number of trials that are open at
    first.
    """

    trials: int
    synchronous: Synchronous = "NORMAL"
    concurrent: int = 16
    searcher: Literal["random", "adaptive_asha"] = "random"

    def __str__(self) -> str:
        return f"{self.trials:,} trials, synchronous={self.synchronous}, {self.concurrent} open"


def rate(load: Load, runs: int = 1) -> float:
    """Return trials per second from the submission to the end of the experiment, as the median of
    `runs` runs.
    """
    return load.trials / median(_timed_run(load, f"run {n + 1} of {runs}") for n in range(runs))


def run(load: Load, wrap: Callable[[StateTable], StateTable] = lambda table: table) -> float:
    """Return the seconds of an experiment on a new table that `wrap` may decorate. Raise
    RuntimeError unless the experiment completes.
    """
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        table = SqliteTable(Path(folder) / "table.db", synchronous=load.synchronous)
        try:
            return run_on(Engine(wrap(table), lambda: time.time_ns() // 1_000_000), load)
        finally:
            table.close()


def bare_rate(load: Load) -> float:
    """Return trials per second of the table's commits alone: the commits of a run, repeated on a
    new table.
    """
    commits: list[Sequence[Write]] = []

    class Recording(TableDecorator):
        snapshot_queries = True

        def commit(self, writes: Sequence[Write]) -> None:
            super().commit(writes)
            commits.append(writes)

    run(load, Recording)
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        table = SqliteTable(Path(folder) / "table.db", synchronous=load.synchronous)
        started = time.perf_counter()
        for writes in commits:
            table.commit(writes)
        seconds = time.perf_counter() - started
        table.close()
    return load.trials / seconds


def _timed_run(load: Load, which: str) -> float:
    with progress(f"{load}, {which}"):
        return run(load)


def run_on(engine: Engine, load: Load) -> float:
    """Return the seconds of an experiment on an empty table. Raise RuntimeError unless the
    experiment completes.
    """
    engine.execute_command(addresses.pool(POOL), PoolConfigured(POOL))
    agent = InstantAgent(new_service(engine), POOL, SLOTS)
    started = time.perf_counter()
    engine.execute_command(addresses.experiment(EXPERIMENT_ID), submission_of(load))
    agent.work(
        lambda: _experiment(engine).status.is_final, lambda: due_rows.process_due_rows(engine)
    )
    seconds = time.perf_counter() - started
    state = _experiment(engine)
    if state.status is not Status.COMPLETED or state.trials_completed != load.trials:
        raise RuntimeError(
            f"the experiment is {state.status} with {state.trials_completed} of {load.trials}"
            " trials completed"
        )
    return seconds


def _experiment(engine: Engine) -> ExperimentState:
    found = engine.read_state(addresses.experiment(EXPERIMENT_ID))
    assert isinstance(found, ExperimentState)
    return found


def new_service(engine: Engine) -> AgentService:
    """The service of agents that log nothing."""
    return AgentService(engine, _spec_of, _no_log, _in_row)


def submission_of(load: Load) -> ExperimentSubmitted:
    """The experiment of a load."""
    space = Group({f"p{n}": Double(0.0, 1.0) for n in range(PARAMETERS)})
    settings = TrialSettings(
        pool=POOL,
        slots=1,
        max_restarts=5,
        smaller_is_better=True,
        lengths=Lengths("batches"),
        submitted_ms=1,
    )
    return ExperimentSubmitted(
        experiment_id=EXPERIMENT_ID,
        owner="bench",
        name="bench",
        config="{}",
        code_sha256="0" * 64,
        plan=SearchPlan(_method(load), space, 7),
        settings=settings,
        metric="loss",
        searcher=load.searcher,
        paused=False,
    )


def _method(load: Load) -> MethodPlan:
    if load.searcher == "random":
        return RandomPlan(1, load.trials, load.concurrent, LENGTH_ERA)
    return plan_adaptive_asha(halving_of(load.trials, load.concurrent), "standard")


def halving_of(trials: int, concurrent: int) -> HalvingPlan:
    """Return a halving plan with five rungs that promotes a quarter of the trials."""
    return HalvingPlan(
        max_length=256,
        num_rungs=5,
        divisor=4.0,
        max_trials=trials,
        max_concurrent_trials=concurrent,
        smaller_is_better=True,
        rules=LENGTH_ERA,
    )


def _spec_of(
    experiment: ExperimentState, definition: Definition, trial: TrialState
) -> dict[str, Any]:
    return {"metric": experiment.metric, "hparams": trial.hparams}


def _no_log(trial_id: int, chunk: LogChunk) -> Put:
    raise AssertionError(f"trial {trial_id} logs nothing")


def _in_row(put: Put) -> Put:
    return put
