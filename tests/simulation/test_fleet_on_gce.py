"""Passes and sweeps over pools on the emulated Compute Engine."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from control_plane.fleet.records import ErrorKind, InstanceState, Market, Offering
from control_plane.fleet.rows import read_fleet, read_instances, read_past_instances
from provisioner.clouds.gcp.provider import GceClouds
from provisioner.clouds.provider import CloudInstance
from provisioner.model import ProvisionerSettings
from provisioner.reconcile import PASS_MS
from simulator.stepped.stepped_fleet import STEP_MS
from tests.simulation.fleet_contract import POOL, EmulatedFleet, FleetContract, MakeFleet
from tests.unit.provisioner.gce_account import A2, PLACE, Account, open_account, request

A, B = "us-central1-a", "us-central1-b"
SPOT_A = Offering("spot-a", A2, A, Market.SPOT, 4, 1.0)
SPOT_B = Offering("spot-b", A2, B, Market.SPOT, 4, 1.0)
ON_DEMAND = Offering("on-demand", A2, "", Market.ON_DEMAND, 4)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with open_account() as account:
        yield account


class SimulatedFleet(EmulatedFleet):
    """A project, a pool and a provisioner, in steps of five seconds.

    The outcome of a bulk insert is unknown for 12 seconds.
    """

    machine_key = "name"

    def __init__(self, gce: Account, *sold: Offering, **settings: Any) -> None:
        gce.reset(
            visible_ms=10_000,
            staging_ms=12_000,
            running_ms=20_000,
            ending_ms=15_000,
            operation_ms=12_000,
            late=True,
        )
        fleet = ProvisionerSettings("gcp", offerings=sold, section=json.dumps(PLACE), **settings)
        clouds = GceClouds(lambda item: b"boot", lambda: gce.now_ms, api=lambda: gce.api).cloud
        super().__init__(gce, gce.project, fleet, clouds)

    def launch(self, name: str) -> CloudInstance:
        launched: tuple[CloudInstance, ...] = self.account.launch(self.cloud, request(name))
        return launched[0]

    def tags_of(self, machine: str) -> Any:
        return self.account.machine(machine).labels


class TestFleetOnComputeEngine(FleetContract):
    machine_type, zones = A2, (A, B)
    launch_call, log_call = "bulkInsert", "getSerialPortOutput"
    throttle = ("listInstances", 403, "rateLimitExceeded", "Rate Limit Exceeded")
    throttled = "rateLimitExceeded: Rate Limit Exceeded"
    sold_out = "does not have enough resources available"
    quota_used_up = "PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1"

    @pytest.fixture
    def make_fleet(self, lasting: Account) -> MakeFleet:
        return partial(SimulatedFleet, lasting)


def test_gce_pool_scales_up_for_work_and_back_to_zero(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND, idle_ms_max=60_000)
    simulation.add_work(2)
    simulation.run(5)
    # The outcome of the launch is unknown: the next pass polls again without a trouble message.
    assert (len(simulation.living()), simulation.states()) == (2, {})
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.trouble == ""
    simulation.account.now_ms += STEP_MS
    outcome = simulation.reconciler.reconcile(POOL)
    assert outcome.retry_after_ms == PASS_MS
    assert "makes 2 of a2-highgpu-4g" in outcome.reasons[-1]
    # The operation ends after 12 s, so at the third pass after 15 s. The machines run after 20 s.
    simulation.run(10)
    assert list(simulation.states().values()) == [InstanceState.STARTING] * 2
    simulation.run(10)
    assert list(simulation.states().values()) == [InstanceState.RUNNING] * 2
    assert len(simulation.emulator.machines) == 2
    simulation.pool.work.clear()
    simulation.run_until(lambda: not simulation.states(), 240)
    assert not simulation.living()
    past, _ = read_past_instances(simulation.table, POOL)
    # Without a configured price: the list price of an a2-highgpu-4g, and 200 GiB of pd-standard
    # for 0.04 $ a month of 730 hours. The machine has no public address.
    assert {row.offering.price_per_hour for row in past} == {round(14.69354 + 8 / 730, 6)}
    assert {row.zone for row in past} == {A}


def test_replacement_starts_at_the_preemption_of_a_machine(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A, SPOT_B)
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.emulator.preempt(first)
    simulation.run(5)
    # The machine runs for 30 more seconds, and a replacement starts in zone B.
    assert first in simulation.pool.draining
    simulation.run(5)
    (second,) = set(simulation.living()) - {first}
    assert simulation.account.machine(second).zone == B
    simulation.run(120)
    assert simulation.living() == [second]
    assert list(simulation.states()) == [second]
    past, _ = read_past_instances(simulation.table, POOL)
    assert [(row.id, row.boot_log) for row in past] == [(first, "")]
    assert "the spot instance was preempted" in past[0].reason


def test_replacement_without_quota_starts_when_the_preempted_machine_has_ended(
    lasting: Account,
) -> None:
    simulation = SimulatedFleet(lasting, SPOT_A)
    # The quota suffices for a single machine, an a2-highgpu-4g.
    simulation.emulator.quota = {"spot": 4}
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.emulator.preempt(first)
    # The refusal is the result of an operation that ends after 12 s.
    simulation.run(25)
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert fleet.health["spot-a"].kind is ErrorKind.QUOTA
    # The machine ends 30 s after the notice. Without the end, the back-off would last a minute or
    # two from the refusal.
    simulation.run_until(lambda: first not in simulation.living(), 40)
    simulation.run_until(lambda: bool(simulation.living()), 20)


def test_machine_shut_down_from_inside_is_deleted(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.add_work(1)
    simulation.run_until(lambda: simulation.pool.is_working, 60)
    (first,) = simulation.living()
    simulation.emulator.shut_down(first)
    simulation.run(60)
    assert simulation.account.machine(first).deleted
    assert first not in simulation.states()


def test_pool_launches_singly_after_a_refused_bulk_insert(
    lasting: Account, caplog: pytest.LogCaptureFixture
) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.emulator.bulk_refused = True
    simulation.add_work(2)
    simulation.run(5)
    # The first pass falls back by itself: one refused call, then a call for each instance.
    assert simulation.emulator.calls.count("bulkInsert") == 1
    assert simulation.emulator.calls.count("insert") == 2
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert "a call of its own for 24 h" in fleet.warning
    assert "compute.instances.create" in fleet.warning
    # The offering has no back-off, because it can be launched.
    assert fleet.health == {}
    simulation.run_until(
        lambda: list(simulation.states().values()) == [InstanceState.RUNNING] * 2, 60
    )
    rows = read_instances(simulation.table, POOL)
    assert {row.uid for row in rows} == {item.id for item in simulation.emulator.machines.values()}
    simulation.add_work(4)
    simulation.run(30)
    # Later passes, and other processes, do not try the bulk insert again.
    assert simulation.emulator.calls.count("bulkInsert") == 1
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_pool_tries_the_bulk_insert_again_after_a_day(lasting: Account) -> None:
    simulation = SimulatedFleet(lasting, ON_DEMAND)
    simulation.emulator.bulk_refused = True
    simulation.add_work(1)
    simulation.run(30)
    simulation.emulator.bulk_refused = False
    simulation.account.now_ms += 24 * 3_600_000
    simulation.add_work(2)
    simulation.run(60)
    assert simulation.emulator.calls.count("bulkInsert") >= 2
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    assert (fleet.warning, fleet.batch_refused_ms) == ("", 0)
