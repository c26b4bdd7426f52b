"""Failed boots: the errors that count for the offering, and the stored boot logs."""

from dataclasses import replace
from random import Random

from control_plane.fleet.records import ErrorKind, InstanceState
from control_plane.fleet.rows import read_past_instances
from provisioner.boot_logs import FETCHES_MAX, BootLogs
from provisioner.clouds.fake.provider import FakeCloud, FakeRules
from provisioner.clouds.provider import CloudInstance, NotAllowed
from provisioner.model import EndReason, InstanceStatus, ObservedInstance, ProvisionerSettings
from simulator.stepped.scripted_pool import Work
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_fleet import FakeCloudFleet
from tests.unit.provisioner.fleet_table import (
    BUSY,
    MINUTE_MS,
    NOW_MS,
    SMALL,
    SPOT,
    cloud_lists,
    instance,
    running_with,
    scale_plan,
    starting_instance,
)

TERMINATED = InstanceStatus.TERMINATED
SETTINGS = ProvisionerSettings("fake", max_instances=3, starting_ms_max=60_000)


def test_batch_without_agents_counts_as_one_error() -> None:
    silent_ms = NOW_MS - 10 * MINUTE_MS
    rows = [starting_instance(f"i{n}", 31, silent_ms=silent_ms) for n in range(5)]
    plan = scale_plan([(row, running_with(None)) for row in rows])
    health = plan.fleet.health[SMALL.name]
    assert (health.kind, health.faults, health.given_up) == (ErrorKind.BOOT, 1, False)


def test_interruption_with_notice_during_boot_is_no_error() -> None:
    row = starting_instance("a", 2, offering=SPOT, notice_ms=NOW_MS - MINUTE_MS)
    plan = scale_plan([(row, cloud_lists(TERMINATED))], offerings=(SPOT,))
    health = plan.fleet.health[SPOT.name]
    assert (health.faults, health.interrupted_ms) == (0, NOW_MS)


def test_interruption_without_notice_during_boot_is_no_error() -> None:
    end = EndReason("Server.SpotInstanceTermination", taken_back=True)
    row = starting_instance("a", 2, offering=SPOT)
    plan = scale_plan([(row, ObservedInstance(TERMINATED, end=end))], offerings=(SPOT,))
    health = plan.fleet.health[SPOT.name]
    assert (health.faults, health.interrupted_ms) == (0, NOW_MS)


def test_batch_ended_for_capacity_counts_as_one_capacity_error() -> None:
    end = EndReason("Server.InsufficientInstanceCapacity: none", ErrorKind.CAPACITY)
    rows = [starting_instance(f"i{n}", 2) for n in range(5)]
    plan = scale_plan([(row, ObservedInstance(TERMINATED, end=end)) for row in rows])
    health = plan.fleet.health[SMALL.name]
    assert (health.kind, health.errors, health.faults) == (ErrorKind.CAPACITY, 1, 0)
    assert [row.reason for row in plan.changed_rows][:1] == [
        "the cloud terminated it: Server.InsufficientInstanceCapacity: none"
    ]


def test_boot_report_terminates_the_instance() -> None:
    report = "E: no route to host\ndetcloud: the boot failed with 100 at line 9: apt-get"
    row = starting_instance("a", 1)
    plan = scale_plan([(row, running_with(None, boot_report=report))])
    (changed,) = plan.changed_rows
    text = "detcloud: the boot failed with 100 at line 9: apt-get"
    assert (changed.state, changed.reason) == (
        InstanceState.TERMINATING,
        f"its boot failed: {text}",
    )
    assert plan.fleet.health[SMALL.name].message == f"instance a failed to boot: {text}"
    # The instance has shut itself down in the meantime.
    plan = scale_plan([(row, ObservedInstance(TERMINATED, boot_report=report))])
    (changed,) = plan.changed_rows
    assert changed.reason == f"the cloud terminated it when its boot failed: {text}"
    # A late report is ignored if the agent has enrolled.
    plan = scale_plan([(instance("a"), running_with(BUSY, boot_report=report))])
    assert not plan.changed_rows


def test_fetches_the_first_boot_logs_of_a_batch_once() -> None:
    simulation = FakeCloudFleet(SETTINGS, FakeRules(never_boots_share=1.0))
    simulation.pool.work = [Work(4, 10_000) for _ in range(3)]
    simulation.step()
    names = sorted(simulation.cloud.machines)
    simulation.cloud.boot_logs = {name: f"{name}: kernel panic" for name in names}
    # A pass runs every 5 s until the starting period ends; each log is fetched once.
    simulation.run(65)
    assert simulation.cloud.boot_log_calls == names[:FETCHES_MAX]
    simulation.run(30)
    assert simulation.cloud.boot_log_calls == names[:FETCHES_MAX]
    past, _ = read_past_instances(simulation.table, POOL)
    assert sorted(row.boot_log for row in past) == [
        "",
        *(f"{text}: kernel panic" for text in names[:2]),
    ]


def test_own_boot_report_needs_no_cloud_request() -> None:
    cloud = FakeCloud(lambda: NOW_MS, Random(1), (SMALL,))
    row = starting_instance("a", state=InstanceState.TERMINATING)
    listed = {"a": CloudInstance("a", InstanceStatus.RUNNING, NOW_MS, {}, boot_report="no disk")}
    (instance,) = BootLogs().add_logs(cloud, [row], {"a": starting_instance("a")}, listed)
    assert (instance.boot_log, cloud.boot_log_calls) == ("no disk", [])


class SecretiveCloud(FakeCloud):
    """A cloud that refuses requests for boot logs."""

    def boot_log(self, instance: str) -> str:
        raise NotAllowed("UnauthorizedOperation")


def test_refused_boot_log_is_empty() -> None:
    cloud = SecretiveCloud(lambda: NOW_MS, Random(1), (SMALL,))
    row = starting_instance("a", state=InstanceState.ENDED)
    assert BootLogs().add_logs(cloud, [row], {"a": starting_instance("a")}, {}) == (row,)


def test_no_boot_log_for_booted_or_interrupted_instances() -> None:
    cloud = FakeCloud(lambda: NOW_MS, Random(1), (SMALL,))
    ended = instance("a", state=InstanceState.ENDED)
    taken = starting_instance("b", state=InstanceState.ENDED, notice_ms=NOW_MS)
    starting = starting_instance("c")
    rows = (ended, taken, starting)
    before = {row.id: replace(row, state=InstanceState.STARTING) for row in rows}
    assert BootLogs().add_logs(cloud, rows, before, {}) == rows
    assert cloud.boot_log_calls == []
