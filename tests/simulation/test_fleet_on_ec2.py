"""Passes and sweeps over pools on the emulated EC2."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from control_plane.fleet.records import ErrorKind, InstanceState, Market, Offering
from control_plane.fleet.rows import read_fleet, read_past_instances
from provisioner.clouds.aws.provider import Ec2Clouds
from provisioner.clouds.provider import CloudInstance
from provisioner.model import ProvisionerSettings
from tests.simulation.fleet_contract import POOL, EmulatedFleet, FleetContract, MakeFleet
from tests.unit.provisioner.ec2_account import G5, Account, open_account, request

A, B = "us-east-1a", "us-east-1b"
SPOT_A = Offering("spot-a", G5, A, Market.SPOT, 4, 1.0)
SPOT_B = Offering("spot-b", G5, B, Market.SPOT, 4, 1.0)
ON_DEMAND = Offering("on-demand", G5, "", Market.ON_DEMAND, 4)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with open_account() as account:
        yield account


class SimulatedFleet(EmulatedFleet):
    """An EC2 account, a pool and a provisioner, in steps of five seconds."""

    machine_key = "id"

    def __init__(self, ec2: Account, *sold: Offering, **settings: Any) -> None:
        ec2.reset(visible_ms=10_000, running_ms=20_000, ending_ms=15_000)
        section = json.dumps({"region": "us-east-1"})
        fleet = ProvisionerSettings("aws", offerings=sold, section=section, **settings)
        clouds = Ec2Clouds(lambda item: b"boot", lambda: ec2.now_ms, lambda region: ec2.api).cloud
        super().__init__(ec2, ec2.region, fleet, clouds)

    def launch(self, name: str) -> CloudInstance:
        (launched,) = self.cloud.launch(request(name))
        return launched

    def tags_of(self, machine: str) -> Any:
        return self.account.machine(machine).tags


class TestFleetOnEc2(FleetContract):
    machine_type, zones = G5, (A, B)
    launch_call, log_call = "CreateFleet", "GetConsoleOutput"
    throttle = ("DescribeInstances", "RequestLimitExceeded", "Request limit exceeded.")
    throttled = "RequestLimitExceeded: Request limit exceeded."
    sold_out = "sufficient g5.12xlarge capacity"
    quota_used_up = "vCPU"

    @pytest.fixture
    def make_fleet(self, lasting: Account) -> MakeFleet:
        return partial(SimulatedFleet, lasting)


def test_ec2_pool_scales_up_for_work_and_back_to_zero(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND, idle_ms_max=60_000)
    simulation.add_work(2)
    simulation.run(5)
    assert list(simulation.states().values()) == [InstanceState.STARTING] * 2
    # EC2 lists the instances after 10 s and runs them after 20 s: no pass launches more.
    simulation.run(30)
    assert list(simulation.states().values()) == [InstanceState.RUNNING] * 2
    assert len(simulation.emulator.machines) == 2
    simulation.pool.work.clear()
    simulation.run_until(lambda: not simulation.states(), 180)
    assert not simulation.living()
    past, _ = read_past_instances(simulation.table, POOL)
    # Without a configured price: the list price of a g5.12xlarge, 200 GiB of disk for 0.08 $ a
    # month of 730 hours, and a public address for 0.005 $.
    assert {row.offering.price_per_hour for row in past} == {round(5.672 + 16 / 730 + 0.005, 6)}


def test_failed_ec2_start_is_recorded_with_the_reason(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.add_work(1)
    simulation.run(5)
    (name,) = simulation.living()
    code = "Client.InternalError"
    simulation.account.machine(name).end(
        simulation.account.now_ms, code, f"{code}: Client error on launch"
    )
    simulation.run(25)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    health = fleet.health["on-demand"]
    assert (health.kind, health.message) == (
        ErrorKind.CONFIGURATION,
        f"instance {name} ended before its agent enrolled: Client.InternalError: Client error on "
        "launch (often a key of KMS for its disk that EC2 may not use)",
    )


def test_replacement_starts_at_the_interruption_notice(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, SPOT_B)
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.emulator.interrupt(first)
    simulation.run(10)
    # The machine runs for two more minutes, and a replacement starts in zone B.
    assert first in simulation.living()
    (second,) = set(simulation.living()) - {first}
    assert simulation.account.machine(second).zone == B
    assert first in simulation.pool.draining
    simulation.run(180)
    assert simulation.living() == [second]
    assert list(simulation.states()) == [second]
