"""The simulation of a cluster with users, machines and faults, for a single seed.

A run lasts from the first submission until all experiments have ended and no work is left.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.agents.audit import audit_pool
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.engine import due_rows
from control_plane.fleet.budget import check_budgets
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Write
from lambdas.maintenance import Maintenance
from simulator.checks.fleet_checker import FleetChecker
from simulator.checks.state_checker import CheckedTable, InvariantBroken, StateChecker
from simulator.faults.fault_rates import HOUR_MS, NO_FAULTS, FaultRates
from simulator.faults.fault_state import FaultState
from simulator.hosts.adapters import HostEnvironment
from simulator.hosts.hosts import Host, HostPool, NoResponse, simulated_spec_builder
from simulator.hosts.network import Network
from simulator.hosts.receiver import SimulatedReceiver
from simulator.machines.agent import AgentEnvironment, SimulatedAgent
from simulator.machines.checkpoints import CheckpointStore
from simulator.machines.cloud import SimulatedCloud, cloud_rules
from simulator.machines.machines import Machines, StaticMachines
from simulator.machines.process_environment import ProcessEnvironment
from simulator.seeded.fault_injector import NOTICES_MS, FaultInjector
from simulator.seeded.hangs import hang_sampler
from simulator.seeded.invariants import Invariants
from simulator.seeded.log_matches import log_match_sampler
from simulator.seeded.pool_limits import STATIC_SLOTS_MAX, fleet_limits, pool_capacity
from simulator.seeded.pool_sampler import PoolSampler
from simulator.seeded.sampled_limits import with_quiet_hours
from simulator.seeded.searches import EPOCHS_SHARE, Searches
from simulator.seeded.users import Users
from simulator.seeded.webhooks import check_deliveries, create_webhook, has_waiting_events

START_MS = 1_700_000_000_000
TICK_MS = 60_000
DAY_MS = 24 * HOUR_MS
TICKS_PER_AUDIT = 2
LOGGERS = ("control_plane", "lambdas", "provisioner")
RACE_MS = 3_000
TRIGGER_MS = (100, 2_000)
LATE_FACTOR = 20
# The delay from a change of a pool to the provisioner's pass.
RECONCILE_MS = 6_000
# A run must end within this time after the end of the faults.
END_HOURS = 12


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """The size of a simulated cluster."""

    experiments: int = 3
    pools: int = 2
    machines_max: int = 3
    """The maximum number of machines of a static pool. A pool with a cloud may have one more."""
    hours: float = 2.0
    """The virtual hours after which all faults stop, or earlier if all experiments have ended."""
    epochs_share: float = EPOCHS_SHARE
    """The share of searches whose lengths are in epochs."""


class SimulatedCluster:
    """All parts of a run.

    Args:
        folder: an empty folder for the files of the simulated disks.
        unchecked: whether to skip the checks of commits, whose duration grows with the cluster.

    Attributes:
        is_tick_dead: whether the function of the tick runs neither each minute nor for new rows.
    """

    notices_ms: Sequence[int] = NOTICES_MS

    def __init__(
        self,
        seed: int,
        rates: FaultRates,
        size: ClusterSize,
        folder: Path,
        *,
        unchecked: bool = False,
    ) -> None:
        self.seed = seed
        self.size = size
        self.clock = VirtualClock()
        self.random = Random(f"{seed}/world")
        self.checker = StateChecker(unchecked=unchecked)
        self.checker.on_mail = self._handle_mail
        self.rows = MemoryTable()
        self.faults = FaultState(Random(f"{seed}/weather"), rates, self._run_due_events)
        checkpoints = CheckpointStore(folder / "checkpoints")
        self.cloud = self._make_cloud(seed)
        self.cloud.faults, self.cloud.lost_zones = self.faults, set()
        self.receiver = SimulatedReceiver(self.faults)
        self.hosts = HostPool(self._host_environment(folder), self._handle_commit)
        self.network = Network(self.clock, self.faults, self.hosts)
        self.checker.on_leases = self._check_leases
        self.searches = Searches(checkpoints)
        self.process_environment = ProcessEnvironment(
            self.clock,
            checkpoints,
            draw_damage=lambda: self.faults.draw_fault(
                "damaged_checkpoints", self.faults.rates.damaged_checkpoints
            ),
            draw_low_use=lambda: self.faults.draw_fault("low_uses", self.faults.rates.low_uses),
            draw_match=lambda spec: self._draw_match(spec),
            draw_hang=hang_sampler(self.faults, self.checker),
            on_damage=lambda trial_id, uuid: self.users.verify_later(trial_id, uuid),
        )
        environment = AgentEnvironment(
            self.clock,
            self.faults,
            self.network,
            self.process_environment,
            self.searches.training_for,
            self._check_process_start,
        )
        self.fleet_checker = FleetChecker(self.rows, self.checker, self.clock, START_MS)
        self.machines = Machines(environment, self.cloud, self.rows, START_MS)
        sampled = enumerate(map(self._sample_pool, range(size.pools)))
        self.pools = {f"pool-{n}": with_quiet_hours(one, seed, n, START_MS) for n, one in sampled}
        self._capacities = {name: pool_capacity(settings) for name, settings in self.pools.items()}
        for name, settings in self.pools.items():
            if settings.provider:
                self.fleet_checker.add_pool(name, fleet_limits(settings))
        self._draw_match = log_match_sampler(self.faults, self.checker, self.pools)
        self.invariants = Invariants(self.checker, checkpoints)
        self.users = Users(
            self.clock,
            self.network,
            self.searches,
            self.checker,
            Random(f"{seed}/people"),
            self._capacities,
            self.now_ms,
            size.epochs_share,
        )
        self.is_tick_dead = False
        self.faults_stopped = False
        self.has_ended = False
        self.steps = self._ticks = 0
        self._pending_triggers: set[str] = set()
        self._holds_timers: Callable[[str], bool] = lambda address: False

    def now_ms(self) -> int:
        """Return the virtual time in epoch ms."""
        return START_MS + self.clock.now_ms

    def run(self) -> None:
        """Run the cluster until all work is done, then check the final state. Called once.

        Raises InvariantBroken if an invariant is broken, if the cluster logs an error, or if the
        run does not end in time. Other exceptions of simulated events pass, such as AssertionError.
        """
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for logger in loggers:
            logger.addHandler(self.invariants.errors)
        try:
            self._run()
        finally:
            for logger in loggers:
                logger.removeHandler(self.invariants.errors)

    def _run(self) -> None:
        self._start()
        until_ms = round((self.size.hours + END_HOURS) * HOUR_MS)
        while not self.has_ended:
            if not self.clock.run_next(until_ms):
                raise InvariantBroken(f"never at rest: {self.describe()}")
            self.steps += 1
        self.invariants.check_end(self.users.experiments.values())
        check_deliveries(self.checker, self.receiver)

    def _make_cloud(self, seed: int) -> SimulatedCloud:
        random = Random(f"{seed}/cloud")
        return SimulatedCloud(self.now_ms, random, (), rules=cloud_rules(self.faults))

    def _host_environment(self, folder: Path) -> HostEnvironment:
        """Return the parts that all hosts share, and create the folders of the stores."""
        for name in ("checkpoints", "objects"):
            (folder / name).mkdir()
        table = CheckedTable(self.rows, self.checker)
        objects = DirectoryObjectStore(folder / "objects", HmacUrlSigner(bytes(32)))
        checkpoints = Directory(type="directory", container_path=str(folder / "checkpoints"))
        return HostEnvironment(
            open_table=lambda: table,
            faults=self.faults,
            now_ms=self.now_ms,
            open_objects=lambda: objects,
            checkpoints=checkpoints,
            cloud=self.cloud,
            build_spec=simulated_spec_builder(checkpoints),
            is_api_down=lambda: self.network.is_api_down(),
            receiver=self.receiver,
        )

    def _sample_pool(self, number: int) -> PoolSettings:
        """Sample the settings of a pool, as PoolSampler describes."""
        sampler = PoolSampler(self.seed, self.random, self.cloud, self.size.machines_max)
        return sampler.sample(number)

    def _start(self) -> None:
        """Configure the pools, add static machines, and schedule submissions, ticks and faults."""
        if self.faults.rates.failed_deliveries:
            create_webhook(CheckedTable(self.rows, self.checker), self.now_ms())
            self.users.raises_events = True
        for name, settings in self.pools.items():
            self._configure_pool(name, settings)
            if not settings.provider:
                count = self.random.randint(1, self.size.machines_max)
                slots = (STATIC_SLOTS_MAX, *(self.random.randint(1, 4) for _ in range(count - 1)))
                self.machines.add_static_machines(StaticMachines(name, slots))
        self.users.schedule_submissions(self.size.experiments, self.size.hours)
        self.clock.call_at(TICK_MS, self._tick)
        injector = FaultInjector(
            self.clock,
            self.faults,
            self.machines,
            self.network,
            self.cloud,
            self.random,
            self.notices_ms,
        )
        injector.start(max(1, self.size.pools * self.size.machines_max // 2))

    def _configure_pool(self, name: str, settings: PoolSettings) -> None:
        """Configure a pool. Repeat the call until a host answers."""
        message = PoolConfigured(name, settings)
        while True:
            try:
                self.hosts.serve(
                    lambda host: host.engine.execute_command(addresses.pool(name), message)
                )
            except NoResponse:
                continue
            return

    def _tick(self) -> None:
        """Check the invariants, run the tasks of a tick, and schedule the next tick.

        Stop the faults if it is time. Set `has_ended` if no work is left. By the fault
        `duplicates`, the tasks run twice. By the fault `stale_index`, hosts read the present copy
        of the index of due rows until the next tick has run its tasks. Raises InvariantBroken.
        """
        self.clock.call_at(self.clock.now_ms + TICK_MS, self._tick)
        self.machines.check_machines(self.pools)
        self.fleet_checker.check_launches()
        self.invariants.check(self.users.experiments.values())
        if not self.faults_stopped and self._may_stop_faults():
            self._stop_faults()
        self.has_ended = self._is_over()
        self._ticks += 1
        faults = self.faults
        for _ in range(1 + faults.draw_fault("duplicates", faults.rates.duplicates)):
            for task in self._tick_tasks(self._ticks):
                self._run_on_host(task)
        is_stale = faults.draw_fault("stale_index", faults.rates.stale_index)
        faults.stale_rows = self.rows.snapshot() if is_stale else None

    def _tick_tasks(self, number: int) -> list[Callable[[Host], object]]:
        """Return the tasks of a tick: leases, mail, pools, orphans, checkpoints and suggestions.

        A dead tick has no tasks.
        They are in the order of execution: the pass over leases decides which timers the pass over
        mail postpones. Every second tick also audits the pools and checks the budgets. Each task is
        a separate call, so that a failed task does not stop the others.
        """
        if self.is_tick_dead:
            return []
        tasks: list[Callable[[Host], object]] = [self._mark_lost_agents, self._redrive_mail]
        for pool in self.pools:
            if number % TICKS_PER_AUDIT == 0:
                tasks.append(partial(_audit_pool, pool=pool))
            tasks.append(partial(self._reconcile_pool, pool=pool))
        if number % TICKS_PER_AUDIT == 0:
            tasks.append(lambda host: check_budgets(host.engine, list(self.pools)))
        tasks.append(self._terminate_orphans)
        tasks.append(lambda host: host.collector.collect())
        tasks.append(lambda host: host.suggester.suggest_all())
        return tasks

    def _mark_lost_agents(self, host: Host) -> None:
        """Mark silent agents as lost, and decide which timers the next `_redrive_mail` postpones.

        `_holds_timers` is replaced, even if the pass fails. Raises PoolsFailed if any pool failed.
        """
        maintenance = Maintenance(host.engine, host.adapters.is_api_down)
        self._holds_timers = maintenance.holds_timers
        maintenance.mark_lost_agents(TICK_MS)

    def _redrive_mail(self, host: Host) -> None:
        """Run a pass over due mail and timers. Raises Unavailable."""
        due_rows.process_due_rows(
            host.engine, holds_timers=self._holds_timers, on_events=self._deliver_events
        )

    def _deliver_events(self, partitions: Sequence[str]) -> None:
        """Schedule the delivery of the due events in the partitions."""
        for partition in partitions:
            delay_ms = self.faults.random.randint(*TRIGGER_MS)
            self._run_later_once(partition, delay_ms, partial(_deliver_events, partition=partition))

    def _reconcile_pool(self, host: Host, pool: str) -> None:
        """Run a provisioner pass over a pool with a provider, and check the pool's maximum.

        Do nothing if the tick is dead.
        """
        if self.pools[pool].provider and not self.is_tick_dead:
            host.provisioner.reconciler.reconcile(pool)
            maximum = self._capacities[pool].machines
            self.machines.instance_checker.check_maximum(pool, maximum)

    def _terminate_orphans(self, host: Host) -> None:
        host.provisioner.orphan_cleaner.terminate_orphans()

    def _run_on_host(self, operation: Callable[[Host], object]) -> None:
        """Run an operation on a host. Ignore a failure, because a later tick repeats the work."""
        try:
            self.hosts.serve(partial(self._run_with_its_clock, operation=operation))
        except NoResponse:
            return

    def _run_with_its_clock(self, host: Host, operation: Callable[[Host], object]) -> None:
        """Run an operation on a host, with the clock a day ahead by the fault `clocks_ahead`."""
        is_ahead = self.faults.draw_fault("clocks_ahead", self.faults.rates.clocks_ahead)
        with host.clock_ahead(DAY_MS if is_ahead else 0):
            operation(host)

    def _run_due_events(self) -> None:
        """Run the next event that is due within RACE_MS, in the middle of an operation."""
        self.clock.run_next(self.clock.now_ms + RACE_MS)

    def _handle_mail(self, address: str) -> None:
        """Schedule the advance of an actor with new mail, as the table's stream does.

        Do nothing if it is scheduled already, or by the fault `lost_triggers`.
        """
        faults = self.faults
        if address in self._pending_triggers:
            return
        if faults.draw_fault("lost_triggers", faults.rates.lost_triggers):
            return
        low, high = TRIGGER_MS
        is_late = faults.draw_fault("reordering", faults.rates.reordering)
        delay_ms = faults.random.randint(low, high * (LATE_FACTOR if is_late else 1))
        self._run_later_once(
            address, delay_ms, lambda host: host.engine.advance_until_idle((address,))
        )

    def _run_later_once(
        self, name: str, delay_ms: int, operation: Callable[[Host], object]
    ) -> None:
        """Schedule an operation on a host, unless an operation of this name is scheduled."""
        if name in self._pending_triggers:
            return
        self._pending_triggers.add(name)

        def act() -> None:
            self._pending_triggers.discard(name)
            self._run_on_host(operation)

        self.clock.call_at(self.clock.now_ms + delay_ms, act)

    def _handle_commit(self, address: str) -> None:
        """React to the commit of the actor at `address`.

        For an agent or a trial, end the long polls of the affected agents. For a pool with a
        provider, schedule a provisioner pass after RECONCILE_MS, unless a pass is scheduled.
        """
        kind, _, name = address.partition("#")
        if kind == "agent":
            self._answer_held_call(name)
        elif kind == "trial":
            state = self.checker.actor_state(address)
            for place in state.allocation.places if state and state.allocation else ():
                self._answer_held_call(place.agent)
        elif kind == "pool" and self.pools[name].provider:
            self._run_later_once(
                f"fleet {name}", RECONCILE_MS, lambda host: self._reconcile_pool(host, name)
            )

    def _answer_held_call(self, name: str) -> None:
        agent = self.machines.agents.get(name)
        if agent is not None:
            agent.answer_held_call()

    def _check_leases(self, writes: Sequence[Write]) -> None:
        def is_gone(name: str) -> bool:
            agent = self.machines.agents.get(name)
            return agent is None or agent.is_gone

        self.machines.outage_checker.check_commit(writes, is_gone)

    def _check_process_start(self, agent: SimulatedAgent, spec: Mapping[str, Any]) -> None:
        self.invariants.check_process_start(agent, spec)

    def _may_stop_faults(self) -> bool:
        return self.clock.now_ms >= self.size.hours * HOUR_MS or self._have_all_ended()

    def _have_all_ended(self) -> bool:
        """Return whether all experiments were submitted, and all submissions answered, and all
        experiments have ended.
        """
        users = self.users
        if not users.submissions == self.size.experiments == len(users.experiments):
            return False
        return all(state.status.is_final for state in self.checker.actor_states("experiment"))

    def _stop_faults(self) -> None:
        """Stop all faults and end their lasting effects. Then drive all experiments to an end."""
        self.faults_stopped = True
        self.faults.rates = NO_FAULTS
        self.faults.stale_rows = None
        self.network.is_down = False
        self.network.start_api()
        self.cloud.rules = cloud_rules(self.faults)
        self.cloud.quota.clear()
        self.cloud.lost_zones.clear()
        for agent in self.machines.agents.values():
            agent.is_cut_off = False
        self._drive_to_end()

    def _drive_to_end(self) -> None:
        """Activate paused experiments, now and every ten minutes.

        When all experiments have ended, set the minimum of instances of all pools to 0.
        """
        self.users.activate_all()
        if self._have_all_ended():
            for name, settings in self.pools.items():
                if settings.provider:
                    fields = json.loads(settings.provider) | {"min_instances": 0}
                    without_minimum = replace(settings, provider=json.dumps(fields))
                    self._configure_pool(name, without_minimum)
        self.clock.call_at(self.clock.now_ms + 10 * TICK_MS, self._drive_to_end)

    def _is_over(self) -> bool:
        """Return whether the faults have stopped, all experiments have ended and nothing is left.

        Mail, processes, cloud machines, instance rows and stored launch requests must be gone.
        """
        if not self.faults_stopped or not self._have_all_ended() or self.checker.pending_mail():
            return False
        if has_waiting_events(self.checker):
            return False
        is_idle = not any(agent.processes for agent in self.machines.present_agents())
        return (
            is_idle
            and not list(self.cloud.live_machines())
            and not self.machines.has_instances_or_intents(self.pools)
        )

    def describe(self) -> str:
        """Return a description of the remaining work, for a run that does not end."""
        agents = self.machines.present_agents()
        runs = {agent.name: list(agent.processes) for agent in agents if agent.processes}
        experiments = [s for s in self.checker.actor_states("experiment") if not s.status.is_final]
        trials = [s for s in self.checker.actor_states("trial") if not s.status.is_final]
        living = [machine.id for machine in self.cloud.live_machines()]
        left = f"mail {self.checker.pending_mail()[:5]}, runs {runs}, machines {living}"
        return f"{left}, {self.checker.actor_states('pool')}, {experiments[:2]}, {trials[:3]}"


def _deliver_events(host: Host, partition: str) -> None:
    host.deliverer.deliver((partition,))


def _audit_pool(host: Host, pool: str) -> None:
    audit_pool(host.engine, pool)
