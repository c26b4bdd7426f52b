"""The contract of a fleet on an emulated cloud. A launch is listed within 40 s on every cloud."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control_plane.fleet.records import ErrorKind, FleetRow, Market, Offering
from control_plane.fleet.rows import read_fleet, read_intents, read_past_instances
from control_plane.state.sqlite import SqliteTable
from provisioner.clouds.provider import CloudFactory, CloudInstance
from provisioner.model import ProvisionerSettings
from simulator.stepped.scripted_pool import ScriptedPool
from simulator.stepped.stepped_fleet import STEP_MS, SteppedFleet

POOL = "blue"
CONSOLE = "\x1b[0mubuntu login: E: no space left, token=hunter2\r\n"


class EmulatedFleet(SteppedFleet):
    """A fleet, a scripted pool and a provisioner on an emulated account.

    `emulator`: the part of the account with the machines. `machine_key`: name of the attribute of a
    machine that is its instance id.
    """

    machine_key: str

    def __init__(
        self, account: Any, emulator: Any, settings: ProvisionerSettings, clouds: CloudFactory
    ) -> None:
        super().__init__()
        self.account, self.emulator, self.cloud = account, emulator, clouds(settings)
        self.table = SqliteTable(Path(":memory:"))
        self.pool = ScriptedPool(settings, lambda name: 4, POOL, yields_at_once=True)
        emulator.on_running = lambda machine: self.pool.connect(self._name_of(machine))
        emulator.on_terminated = lambda machine: self.pool.lose(self._name_of(machine))
        self.boot(self.table, clouds)

    @property
    def now_ms(self) -> int:
        now_ms: int = self.account.now_ms
        return now_ms

    def step(self) -> None:
        self.account.now_ms += STEP_MS
        self.emulator.tend()
        self.reconciler.reconcile(POOL)

    def living(self) -> list[str]:
        return [self._name_of(machine) for machine in self.emulator.billed_machines()]

    def fleet_row(self) -> FleetRow:
        fleet = read_fleet(self.table, POOL)
        assert fleet is not None
        return fleet

    @abstractmethod
    def launch(self, name: str) -> CloudInstance:
        """Launch a machine without a row, with a token derived from `name`."""

    @abstractmethod
    def tags_of(self, machine: str) -> Any:
        """Return the tags or labels of a machine."""

    def _name_of(self, machine: Any) -> str:
        name: str = getattr(machine, self.machine_key)
        return name


MakeFleet = Callable[..., EmulatedFleet]


class FleetContract:
    """Tests of a fleet.

    A subclass has a fixture `make_fleet`, which accepts offerings and settings.
    """

    machine_type: str
    zones: tuple[str, str]
    launch_call: str
    log_call: str
    throttle: tuple[Any, ...]
    throttled: str
    sold_out: str
    quota_used_up: str

    @property
    def spot_offerings(self) -> list[Offering]:
        named = zip(("spot-a", "spot-b"), self.zones, strict=True)
        return [Offering(n, self.machine_type, zone, Market.SPOT, 4, 1.0) for n, zone in named]

    @property
    def on_demand(self) -> Offering:
        return Offering("on-demand", self.machine_type, "", Market.ON_DEMAND, 4)

    def test_zone_without_capacity_is_skipped_for_the_next_zone(
        self, make_fleet: MakeFleet
    ) -> None:
        fleet = make_fleet(*self.spot_offerings)
        fleet.emulator.capacity = {(self.machine_type, self.zones[0], "spot"): 0}
        fleet.add_work(1)
        fleet.run_until(lambda: bool(fleet.states()), 40)
        (machine,) = fleet.emulator.machines.values()
        assert (machine.zone, machine.is_spot) == (self.zones[1], True)
        health = fleet.fleet_row().health["spot-a"]
        assert health.kind is ErrorKind.CAPACITY
        assert self.sold_out in health.message

    def test_exhausted_spot_quota_launches_on_demand(self, make_fleet: MakeFleet) -> None:
        fleet = make_fleet(self.spot_offerings[0], self.on_demand)
        fleet.emulator.quota = {"spot": 0}
        fleet.add_work(1)
        fleet.run_until(lambda: bool(fleet.states()), 40)
        assert [machine.is_spot for machine in fleet.emulator.machines.values()] == [False]
        health = fleet.fleet_row().health["spot-a"]
        assert health.kind is ErrorKind.QUOTA
        assert self.quota_used_up in health.message

    def test_machine_that_never_boots_is_replaced(self, make_fleet: MakeFleet) -> None:
        fleet = make_fleet(self.on_demand, starting_ms_max=60_000)
        fleet.emulator.sleepers = 1
        fleet.add_work(1)
        fleet.run_until(lambda: bool(fleet.states()), 30)
        (sleeper,) = fleet.living()
        fleet.account.machine(sleeper).console = CONSOLE
        # After a minute without a boot, the pass replaces the machine.
        fleet.run_until(lambda: sleeper not in fleet.living(), 90)
        assert fleet.fleet_row().health["on-demand"].kind is ErrorKind.BOOT
        fleet.run_until(lambda: fleet.pool.is_working and sleeper not in fleet.states(), 300)
        past, _ = read_past_instances(fleet.table, POOL)
        assert [row.boot_log for row in past] == ["ubuntu login: E: no space left, token=********"]
        assert fleet.account.call_count(self.log_call) == 1

    def test_lost_launch_answer_launches_a_single_machine(self, make_fleet: MakeFleet) -> None:
        fleet = make_fleet(self.on_demand)
        fleet.emulator.lose(self.launch_call)
        fleet.add_work(1)
        fleet.run(5)
        assert (len(fleet.living()), fleet.states()) == (1, {})
        assert len(read_intents(fleet.table, POOL)) == 1
        fleet.run(15)
        assert list(fleet.states()) == fleet.living()
        assert not read_intents(fleet.table, POOL)
        assert len(fleet.emulator.machines) == 1

    def test_throttled_pass_launches_no_machine_and_records_the_trouble(
        self, make_fleet: MakeFleet
    ) -> None:
        fleet = make_fleet(self.on_demand)
        fleet.emulator.fail(*self.throttle)
        fleet.add_work(1)
        fleet.run(5)
        assert fleet.fleet_row().trouble == f"throttled: {self.throttled}"
        fleet.run(5)
        assert len(fleet.living()) == 1

    def test_sweep_terminates_only_unclaimed_machines_of_the_cluster(
        self, make_fleet: MakeFleet
    ) -> None:
        fleet = make_fleet(self.on_demand)
        fleet.add_work(1)
        fleet.run(30)
        (claimed,) = fleet.living()
        leaked, foreign = fleet.launch("leaked").id, fleet.launch("foreign").id
        fleet.tags_of(foreign)["detcloud-cluster"] = "another"
        assert fleet.orphan_cleaner.terminate_orphans() == []
        fleet.run(90)
        assert fleet.orphan_cleaner.terminate_orphans() == [leaked]
        fleet.run(15)
        assert sorted(fleet.living()) == sorted([claimed, foreign])
