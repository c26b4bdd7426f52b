"""Passes over a pool with notices that the cloud's list lacks."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest

from control_plane.fleet.notices import InstanceNotice
from control_plane.fleet.rows import read_instances, read_past_instances
from provisioner.clouds.fake.provider import FakeRules
from provisioner.clouds.provider import CloudInstance
from provisioner.model import MINUTE_MS, InstanceStatus, ProvisionerSettings
from provisioner.observed_fleet import instances_with_notices
from provisioner.reconcile import PASS_MS, Reconciler
from simulator.stepped.scripted_pool import Work
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_fleet import CLUSTER, SPOT, FakeCloudFleet


def instance(name: str, notice_ms: int | None = None) -> CloudInstance:
    return CloudInstance(name, InstanceStatus.RUNNING, 1_000, {}, notice_ms)


def spot_fleet() -> FakeCloudFleet:
    simulation = FakeCloudFleet(ProvisionerSettings("fake", max_instances=3), FakeRules(), (SPOT,))
    simulation.pool.work = [Work(4, 10_000_000)]
    return simulation


def reconcile(simulation: FakeCloudFleet, notices: Callable[[], Iterable[InstanceNotice]]) -> None:
    """Run a pass with these notices."""
    clock, random = lambda: simulation.now_ms, Random(1)
    Reconciler(
        simulation.table,
        simulation.pool,
        lambda item: simulation.watched,
        CLUSTER,
        clock,
        random,
        notices,
    ).reconcile(POOL)


def test_adds_notices_to_listed_instances() -> None:
    listed = [instance("i-1"), instance("i-2"), instance("i-3", 7_000)]
    notices = [InstanceNotice("i-1", 9_000), InstanceNotice("i-2"), InstanceNotice("i-9", 5_000)]
    instances = instances_with_notices(listed, notices)
    assert [
        (cloud_instance.id, cloud_instance.notice_ms, cloud_instance.rebalance)
        for cloud_instance in instances
    ] == [
        ("i-1", 9_000, False),
        ("i-2", None, True),
        ("i-3", 7_000, False),
    ]


def test_instance_that_ends_itself_is_not_interrupted() -> None:
    notices = [InstanceNotice("i-1", 9_000, reason="the tick has not run")]
    (noticed,) = instances_with_notices([instance("i-1")], notices)
    assert (noticed.notice_ms, noticed.rebalance) == (None, False)


@pytest.mark.parametrize(
    ("is_listed", "beginning"),
    # The cloud lists an ended instance for about an hour.
    [(True, "the cloud terminated it"), (False, "the cloud no longer lists it")],
)
def test_past_instance_shows_why_it_ended_itself(is_listed: bool, beginning: str) -> None:
    simulation = spot_fleet()
    simulation.run(20)
    (row,) = read_instances(simulation.table, POOL)
    simulation.cloud.interrupt(row.id, None)
    simulation.pool.work = []
    simulation.pool.draining.add(row.id)
    if not is_listed:
        simulation.pool.known.clear()
        del simulation.cloud.machines[row.id]
    notice = InstanceNotice(row.id, simulation.now_ms, reason="the tick has not run")
    for _ in range(3):
        simulation.now_ms += MINUTE_MS
        reconcile(simulation, lambda: [notice])
    (past,), _ = read_past_instances(simulation.table, POOL)
    assert past.reason == f"{beginning}: the tick has not run"


def test_notice_drains_the_agent() -> None:
    simulation = spot_fleet()
    simulation.run(20)
    (row,) = read_instances(simulation.table, POOL)
    simulation.now_ms += PASS_MS
    reconcile(simulation, lambda: [InstanceNotice(row.id, simulation.now_ms + 120_000)])
    assert simulation.pool.draining == {row.id}
    assert simulation.pool.ends_ms == {row.id: simulation.now_ms + 120_000}


def test_draining_agent_gets_the_notice() -> None:
    simulation = spot_fleet()
    simulation.run(20)
    (row,) = read_instances(simulation.table, POOL)
    simulation.pool.draining.add(row.id)
    simulation.now_ms += PASS_MS
    reconcile(simulation, lambda: [InstanceNotice(row.id, simulation.now_ms + 120_000)])
    assert simulation.pool.ends_ms == {row.id: simulation.now_ms + 120_000}


def test_notice_of_a_reservation_applies_to_its_instances() -> None:
    inside, elsewhere = replace(instance("i-1"), reservation="cr-1"), instance("i-2")
    sooner = replace(instance("i-3"), reservation="cr-1")
    notices = [InstanceNotice("cr-1", 9_000), InstanceNotice("i-3", 7_000)]
    instances = instances_with_notices([inside, elsewhere, sooner], notices)
    assert [(cloud_instance.id, cloud_instance.notice_ms) for cloud_instance in instances] == [
        ("i-1", 9_000),
        ("i-2", None),
        ("i-3", 7_000),
    ]


def test_reads_no_notices_without_instances() -> None:
    def fail_if_read() -> list[InstanceNotice]:
        raise AssertionError("there is nothing to ask about")

    simulation = spot_fleet()
    reconcile(simulation, fail_if_read)
    # The pass launched an instance, so the pass had listed the cloud's instances.
    assert len(read_instances(simulation.table, POOL)) == 1
