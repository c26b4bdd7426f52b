"""Passes and sweeps over pools whose instances are EC2's, on the simulated one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.fleet.records import ErrorKind, InstanceState, Market, Offering
from control_plane.fleet.rows import read_fleet, read_intents, read_past_instances
from control_plane.state.sqlite import SqliteTable
from provisioner.clouds.aws.provider import Ec2Clouds
from provisioner.model import ProvisionerSettings
from simulator.stepped.scripted_pool import ScriptedPool
from simulator.stepped.stepped_fleet import STEP_MS, SteppedFleet
from tests.unit.provisioner.ec2_account import G5, Account, open_account, request

POOL = "blue"
A, B = "us-east-1a", "us-east-1b"
SPOT_A = Offering("spot-a", G5, A, Market.SPOT, 4, 1.0)
SPOT_B = Offering("spot-b", G5, B, Market.SPOT, 4, 1.0)
ON_DEMAND = Offering("on-demand", G5, "", Market.ON_DEMAND, 4)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with open_account() as found:
        yield found


class SimulatedFleet(SteppedFleet):
    """The account, the pool, and the provisioner, in steps of five seconds."""

    def __init__(self, ec2: Account, *sold: Offering, **settings: Any) -> None:
        ec2.reset(visible_ms=10_000, running_ms=20_000, ending_ms=15_000)
        section = json.dumps({"region": "us-east-1"})
        super().__init__()
        fleet = ProvisionerSettings("aws", offerings=sold, section=section, **settings)
        self.ec2, self.region = ec2, ec2.region
        self.table = SqliteTable(Path(":memory:"))
        self.pool = ScriptedPool(fleet, lambda name: 4, POOL, yields_at_once=True)
        self.region.on_running = lambda machine: self.pool.connect(machine.id)
        self.region.on_terminated = lambda machine: self.pool.lose(machine.id)
        clouds = Ec2Clouds(lambda item: b"boot", lambda: ec2.now_ms, lambda region: ec2.api).cloud
        self.boot(self.table, clouds)
        self.cloud = clouds(fleet)

    @property
    def now_ms(self) -> int:
        return self.ec2.now_ms

    def step(self) -> None:
        self.ec2.now_ms += STEP_MS
        self.region.tend()
        self.reconciler.reconcile(POOL)

    def living(self) -> list[str]:
        return [machine.id for machine in self.region.billed_machines()]


def test_a_pool_goes_from_nothing_to_its_work_and_back(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND, idle_ms_max=60_000)
    simulation.add_work(2)
    simulation.run(5)
    assert list(simulation.states().values()) == [InstanceState.STARTING] * 2
    # They are not listed yet for 10 s and up after 20: nobody asks for others.
    simulation.run(30)
    assert list(simulation.states().values()) == [InstanceState.RUNNING] * 2
    assert len(simulation.region.machines) == 2
    simulation.pool.work.clear()
    simulation.run_until(lambda: not simulation.states(), 180)
    assert not simulation.living()
    past, _ = read_past_instances(simulation.table, POOL)
    # The list price of a g5.12xlarge, since the configuration says none, with 200 GiB of its disk
    # for 0.08 $ a month of 730 hours and a public address for 0.005 $.
    assert {row.offering.price_per_hour for row in past} == {round(5.672 + 16 / 730 + 0.005, 6)}


def test_a_zone_without_capacity_is_left_for_the_next(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, SPOT_B)
    simulation.region.capacity = {(G5, A, "spot"): 0}
    simulation.add_work(1)
    simulation.run(5)
    (machine,) = simulation.region.machines.values()
    assert (machine.zone, machine.is_spot) == (B, True)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    health = fleet.health["spot-a"]
    assert health.kind is ErrorKind.CAPACITY
    assert "sufficient g5.12xlarge capacity" in health.message


def test_spot_gives_way_to_on_demand_when_the_quota_is_used_up(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, ON_DEMAND)
    simulation.region.quota = {"spot": 0}
    simulation.add_work(1)
    simulation.run(5)
    assert [machine.is_spot for machine in simulation.region.machines.values()] == [False]


def test_a_machine_that_never_boots_is_replaced(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND, starting_ms_max=60_000)
    simulation.region.sleepers = 1
    simulation.add_work(1)
    simulation.run(5)
    (sleeper,) = simulation.living()
    simulation.ec2.machine(
        sleeper
    ).console = "\x1b[0mubuntu login: E: no space left, token=hunter2\r\n"
    # Believed in for a minute; then it ends, and its replacement boots.
    simulation.run_until(lambda: sleeper not in simulation.living(), 70)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.health["on-demand"].kind is ErrorKind.BOOT
    simulation.run_until(
        lambda: simulation.pool.is_working and sleeper not in simulation.states(), 300
    )
    past, _ = read_past_instances(simulation.table, POOL)
    assert [row.boot_log for row in past] == ["ubuntu login: E: no space left, token=********"]
    assert simulation.ec2.call_count("GetConsoleOutput") == 1


def test_an_instance_that_ec2_could_not_start_says_why(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.add_work(1)
    simulation.run(5)
    (name,) = simulation.living()
    code = "Client.InternalError"
    simulation.ec2.machine(name).end(simulation.ec2.now_ms, code, f"{code}: Client error on launch")
    simulation.run(25)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    health = fleet.health["on-demand"]
    assert (health.kind, health.message) == (
        ErrorKind.CONFIGURATION,
        f"instance {name} ended before its agent enrolled: Client.InternalError: Client error on "
        "launch (often a key of KMS for its disk that EC2 may not use)",
    )


def test_a_replacement_starts_at_the_notice(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, SPOT_B)
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.region.interrupt(first)
    simulation.run(10)
    # The machine has its two minutes, and another one is on its way, from another zone.
    assert first in simulation.living()
    (second,) = set(simulation.living()) - {first}
    assert simulation.ec2.machine(second).zone == B
    assert first in simulation.pool.draining
    simulation.run(180)
    assert simulation.living() == [second]
    assert list(simulation.states()) == [second]


def test_a_lost_answer_launches_once(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.region.lose("CreateFleet")
    simulation.add_work(1)
    simulation.run(5)
    assert (len(simulation.living()), simulation.states()) == (1, {})
    assert len(read_intents(simulation.table, POOL)) == 1
    simulation.run(5)
    assert list(simulation.states()) == simulation.living()
    assert not read_intents(simulation.table, POOL)
    assert len(simulation.region.machines) == 1


def test_a_pass_that_is_throttled_does_nothing_and_says_so(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.region.fail("DescribeInstances", "RequestLimitExceeded", "Request limit exceeded.")
    simulation.add_work(1)
    simulation.run(5)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.trouble == "throttled: RequestLimitExceeded: Request limit exceeded."
    simulation.run(5)
    assert len(simulation.living()) == 1


def test_what_nobody_claims_is_swept_and_nothing_else(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.add_work(1)
    simulation.run(30)
    (ours,) = simulation.living()
    (leaked,) = simulation.cloud.launch(request("nobody-s"))
    stranger = simulation.cloud.launch(request("strange", cluster_tag="another"))
    simulation.ec2.machine(stranger[0].id).tags["detcloud-cluster"] = "another"
    assert simulation.orphan_cleaner.terminate_orphans() == []
    simulation.run(90)
    assert simulation.orphan_cleaner.terminate_orphans() == [leaked.id]
    assert sorted(simulation.living()) == sorted([ours, stranger[0].id])
