"""Passes and sweeps over pools whose instances are Compute Engine's, on the simulated one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.fleet.records import ErrorKind, InstanceState, Market, Offering
from control_plane.fleet.rows import read_fleet, read_intents, read_past_instances
from control_plane.state.sqlite import SqliteTable
from provisioner.clouds.gcp.provider import GceClouds
from provisioner.model import ProvisionerSettings
from provisioner.reconcile import PASS_MS
from simulator.stepped.scripted_pool import ScriptedPool
from simulator.stepped.stepped_fleet import STEP_MS, SteppedFleet
from tests.unit.provisioner.gce_account import A2, PLACE, Account, open_account, request

POOL = "blue"
A, B = "us-central1-a", "us-central1-b"
SPOT_A = Offering("spot-a", A2, A, Market.SPOT, 4, 1.0)
SPOT_B = Offering("spot-b", A2, B, Market.SPOT, 4, 1.0)
ON_DEMAND = Offering("on-demand", A2, "", Market.ON_DEMAND, 4)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with open_account() as found:
        yield found


class SimulatedFleet(SteppedFleet):
    """The project, the pool, and the provisioner, in steps of five seconds. A bulk insert takes 12
    seconds: until then nobody knows what comes of it.
    """

    def __init__(self, gce: Account, *sold: Offering, **settings: Any) -> None:
        gce.reset(
            visible_ms=10_000,
            staging_ms=12_000,
            running_ms=20_000,
            ending_ms=15_000,
            operation_ms=12_000,
            late=True,
        )
        super().__init__()
        fleet = ProvisionerSettings("gcp", offerings=sold, section=json.dumps(PLACE), **settings)
        self.gce, self.project = gce, gce.project
        self.table = SqliteTable(Path(":memory:"))
        self.pool = ScriptedPool(fleet, lambda name: 4, POOL, yields_at_once=True)
        self.project.on_running = lambda machine: self.pool.connect(machine.name)
        self.project.on_terminated = lambda machine: self.pool.lose(machine.name)
        clouds = GceClouds(lambda item: b"boot", lambda: gce.now_ms, api=lambda: gce.api).cloud
        self.boot(self.table, clouds)
        self.cloud = clouds(fleet)

    @property
    def now_ms(self) -> int:
        return self.gce.now_ms

    def step(self) -> None:
        self.gce.now_ms += STEP_MS
        self.project.tend()
        self.reconciler.reconcile(POOL)

    def living(self) -> list[str]:
        return [machine.name for machine in self.project.billed_machines()]


def test_a_pool_goes_from_nothing_to_its_work_and_back(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND, idle_ms_max=60_000)
    simulation.add_work(2)
    simulation.run(5)
    # Asked for, and nothing is known of it: the next pass looks again, and nobody is troubled.
    assert (len(simulation.living()), simulation.states()) == (2, {})
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.trouble == ""
    simulation.gce.now_ms += STEP_MS
    told = simulation.reconciler.reconcile(POOL)
    assert told.retry_after_ms == PASS_MS
    assert "makes 2 of a2-highgpu-4g" in told.reasons[-1]
    # The operation is over after 12 s, so at the third look after 15, and they are up after 20.
    simulation.run(10)
    assert list(simulation.states().values()) == [InstanceState.STARTING] * 2
    simulation.run(10)
    assert list(simulation.states().values()) == [InstanceState.RUNNING] * 2
    assert len(simulation.project.machines) == 2
    simulation.pool.work.clear()
    simulation.run_until(lambda: not simulation.states(), 240)
    assert not simulation.living()
    past, _ = read_past_instances(simulation.table, POOL)
    # The list price of an a2-highgpu-4g, since the configuration says none, with 200 GiB of
    # pd-standard for 0.04 $ a month of 730 hours, without a public address.
    assert {row.offering.price_per_hour for row in past} == {round(14.69354 + 8 / 730, 6)}
    assert {row.zone for row in past} == {A}


def test_a_zone_without_capacity_is_left_for_the_next(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, SPOT_B)
    simulation.project.capacity = {(A2, A, "spot"): 0}
    simulation.add_work(1)
    # 12 s until the operation says so, and as long for the other.
    simulation.run_until(lambda: bool(simulation.states()), 40)
    (machine,) = simulation.project.machines.values()
    assert (machine.zone, machine.is_spot) == (B, True)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    health = fleet.health["spot-a"]
    assert health.kind is ErrorKind.CAPACITY
    assert "does not have enough resources available" in health.message


def test_spot_gives_way_to_on_demand_when_the_quota_is_used_up(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, ON_DEMAND)
    simulation.project.quota = {"spot": 0}
    simulation.add_work(1)
    simulation.run_until(lambda: bool(simulation.states()), 40)
    assert [machine.is_spot for machine in simulation.project.machines.values()] == [False]
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.health["spot-a"].kind is ErrorKind.QUOTA
    assert "PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1" in fleet.health["spot-a"].message


def test_a_machine_that_never_boots_is_replaced(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND, starting_ms_max=60_000)
    simulation.project.sleepers = 1
    simulation.add_work(1)
    simulation.run_until(lambda: bool(simulation.states()), 30)
    (sleeper,) = simulation.living()
    simulation.gce.machine(
        sleeper
    ).console = "\x1b[0mubuntu login: no space left, token=hunter2\r\n"
    simulation.run_until(lambda: sleeper not in simulation.living(), 90)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.health["on-demand"].kind is ErrorKind.BOOT
    simulation.run_until(
        lambda: simulation.pool.is_working and sleeper not in simulation.states(), 300
    )
    past, _ = read_past_instances(simulation.table, POOL)
    assert [row.boot_log for row in past] == ["ubuntu login: no space left, token=********"]
    assert simulation.gce.call_count("getSerialPortOutput") == 1


def test_a_replacement_starts_when_a_machine_is_taken_back(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, SPOT_B)
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.project.preempt(first)
    simulation.run(5)
    # The machine has half a minute, and another one is on its way, from another zone.
    assert first in simulation.pool.draining
    simulation.run(5)
    (second,) = set(simulation.living()) - {first}
    assert simulation.gce.machine(second).zone == B
    simulation.run(120)
    assert simulation.living() == [second]
    assert list(simulation.states()) == [second]
    past, _ = read_past_instances(simulation.table, POOL)
    assert [(row.id, row.boot_log) for row in past] == [(first, "")]
    assert "the spot instance was preempted" in past[0].reason


def test_a_machine_that_shut_itself_down_leaves_no_disk_behind(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.project.shut_down(first)
    simulation.run(60)
    assert simulation.gce.machine(first).deleted
    assert first not in simulation.states()


def test_a_lost_answer_launches_once(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.project.lose("bulkInsert")
    simulation.add_work(1)
    simulation.run(5)
    assert (len(simulation.living()), simulation.states()) == (1, {})
    assert len(read_intents(simulation.table, POOL)) == 1
    simulation.run(15)
    assert list(simulation.states()) == simulation.living()
    assert not read_intents(simulation.table, POOL)
    assert len(simulation.project.machines) == 1


def test_a_pass_that_is_throttled_does_nothing_and_says_so(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.project.fail("listInstances", 403, "rateLimitExceeded", "Rate Limit Exceeded")
    simulation.add_work(1)
    simulation.run(5)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.trouble == "throttled: rateLimitExceeded: Rate Limit Exceeded"
    simulation.run(5)
    assert len(simulation.living()) == 1


def test_what_nobody_claims_is_swept_and_nothing_else(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.add_work(1)
    simulation.run(30)
    (ours,) = simulation.living()
    (leaked,) = lasting.launch(simulation.cloud, request("nobody-s"))
    (stranger,) = lasting.launch(simulation.cloud, request("strange"))
    labels: Any = simulation.gce.machine(stranger.id).labels
    labels["detcloud-cluster"] = "another"
    assert simulation.orphan_cleaner.terminate_orphans() == []
    simulation.run(90)
    assert simulation.orphan_cleaner.terminate_orphans() == [leaked.id]
    assert sorted(simulation.living()) == sorted([ours, stranger.id, leaked.id])
    simulation.run(15)
    assert sorted(simulation.living()) == sorted([ours, stranger.id])
