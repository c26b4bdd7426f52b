"""Hosts of the control plane: each serves one call at a time, remembers what it read, and may die.

A call comes to a host that is warm or to one that starts for it. What a host knows goes with it;
everything that counts is in the table.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from control_plane.actors.experiment_state import Definition, ExperimentState
from control_plane.actors.step import Refused
from control_plane.actors.trial_state import TrialState
from control_plane.agents.desired import SpecOf
from control_plane.agents.segments import stored
from control_plane.agents.service import AgentService
from control_plane.agents.sessions import LogChunk
from control_plane.agents.spec import spec_builder
from control_plane.collection.collector import Collector
from control_plane.collection.stores import Stores
from control_plane.dispatch.engine import Engine, Pacing
from control_plane.objects.store import ObjectStore
from control_plane.state.faults import Crash
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable, Unavailable
from control_plane.suggestions.suggester import Suggester
from lambdas.simulation.disturbed import DisturbedTable, Weather
from lambdas.simulation.suggestions import drawn_point
from provisioner.clouds.provider import CloudProvider
from provisioner.demand import EnginePools
from provisioner.reconcile import Reconciler
from provisioner.sweep import Sweep

T = TypeVar("T")

CLOCK_SKEW_MS_MAX = 3_000
WARM_MAX = 3
COLD_SHARE = 0.05
CLUSTER = "simulated"


class NoAnswer(Exception):
    """The caller learns nothing: the host died, or the table did not answer it."""


class SimulatedEngine(Engine):
    """An engine whose host may end before it has gone on with those to whom it wrote."""

    weather: Weather

    def follow(self, addresses: Iterable[str], *, budget_ms: int = 10_000) -> None:
        """See Engine."""
        weather = self.weather
        if weather.strikes("lost_triggers", weather.chances.lost_triggers):
            return
        super().follow(addresses, budget_ms=budget_ms)


@dataclass
class Host:
    """What one process of the control plane is made of."""

    table: DisturbedTable
    engine: SimulatedEngine
    agents: AgentService
    suggester: Suggester
    collector: Collector
    reconciler: Reconciler
    sweep: Sweep
    busy: bool = False


@dataclass(frozen=True)
class Stage:
    """What all hosts share: the table behind their own views of it, the time, and the stores."""

    table: StateTable
    weather: Weather
    now_ms: Callable[[], int]
    objects: ObjectStore
    checkpoints: Path
    cloud: CloudProvider


class Hosts:
    """Hosts as they are needed. `told` hears of each actor that one of them committed."""

    def __init__(self, stage: Stage, told: Callable[[str], None]) -> None:
        self.started = 0
        self.died = 0
        self._stage = stage
        self._told = told
        self._warm: list[Host] = []

    def serve(self, operation: Callable[[Host], T]) -> T:
        """Has one host do something.

        Raises:
            NoAnswer: it may have been done or not.
            Refused: with any code but "unavailable".
        """
        host = self._next()
        host.busy = True
        try:
            return operation(host)
        except Crash as crash:
            self.died += 1
            raise NoAnswer(str(crash)) from None
        except (Conflict, Unavailable) as error:
            raise NoAnswer(str(error)) from None
        except Refused as refused:
            if refused.code == "unavailable":
                raise NoAnswer(str(refused)) from None
            raise
        finally:
            host.busy = False
            if host.table.dead:
                self._warm.remove(host)

    def _next(self) -> Host:
        random = self._stage.weather.random
        idle = [host for host in self._warm if not host.busy]
        if idle and random.random() >= COLD_SHARE:
            return idle[random.randrange(len(idle))]
        if len(self._warm) >= WARM_MAX and idle:
            self._warm.remove(idle[0])
        host = self._boot()
        self._warm.append(host)
        return host

    def _boot(self) -> Host:
        stage = self._stage
        self.started += 1
        table = DisturbedTable(stage.table, stage.weather)
        skew = CLOCK_SKEW_MS_MAX * stage.weather.chances.clock_skew
        skew_ms = round(stage.weather.random.uniform(-skew, skew))
        # A conflict needs no pause: who was faster is done.
        pacing = Pacing(seconds=lambda: stage.now_ms() / 1000, pause=lambda: None)
        engine = SimulatedEngine(table, lambda: stage.now_ms() + skew_ms, pacing)
        engine.weather = stage.weather
        engine.on_commit = self._told
        clock, clouds = engine.clock, lambda settings: stage.cloud
        jitter = Random(stage.weather.random.random())
        return Host(
            table=table,
            engine=engine,
            agents=AgentService(
                engine, _specs(stage.checkpoints), _store_log, partial(stored, stage.objects)
            ),
            suggester=Suggester(engine, drawn_point),
            collector=Collector(
                Stores(engine, stage.objects, stage.checkpoints), lambda: stage.now_ms() / 1000
            ),
            reconciler=Reconciler(table, EnginePools(engine), clouds, CLUSTER, clock, jitter),
            sweep=Sweep(table, clouds, CLUSTER, clock),
        )


def _specs(checkpoints: Path) -> SpecOf:
    """Specifications with what a simulated process looks at besides."""
    built = spec_builder(CLUSTER, checkpoints)

    def spec_of(
        experiment: ExperimentState, definition: Definition, trial: TrialState
    ) -> dict[str, Any]:
        inherited = trial.inherited.uuid if trial.inherited else None
        more = {"restarts": trial.restarts, "inherited": inherited, "search": experiment.name}
        return built(experiment, definition, trial) | more

    return spec_of


def _store_log(trial_id: int, chunk: LogChunk) -> Put:
    key = Key(f"trial#{trial_id}", f"L#{chunk.allocation}#{chunk.offset:012d}")
    return Put(key, 1, chunk.text, Expect.ANYTHING)
