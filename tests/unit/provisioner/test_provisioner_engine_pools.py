"""The provisioner's reads from an engine's pools, and reports to them."""

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.job_row import JobRow, encode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.agent import (
    AgentDisableRequested,
    AgentEnrolled,
    AgentExcluded,
    FaultsReported,
)
from control_plane.actors.messages.pool import (
    PoolConfigured,
    PoolRemoved,
    PoolSettings,
    SlotsRequested,
)
from control_plane.agents.leases import read_leases
from control_plane.engine.engine import Engine
from control_plane.engine.engine_timing import EngineTiming
from control_plane.engine.head import HEAD
from control_plane.fleet.records import Market, Offering
from control_plane.scheduling.agent_needs import AgentDevice
from control_plane.scheduling.quiet_hours import QuietPeriod
from control_plane.scheduling.reservations import OverdueSize
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from provisioner.clouds.fake.provider import FakeCloud
from provisioner.engine_pools import EnginePools
from provisioner.model import ConnectedAgent, Demand, JobDemand, ProvisionerSettings
from provisioner.reconcile import PASS_MS, Reconciler
from provisioner.settings import SettingsInvalid
from tests.engine_timing import UNHURRIED

NOW_MS = 1_000_000
LOCAL = json.dumps({"type": "local", "max_instances": 2})


class Cluster:
    """An engine with a pool named blue."""

    def __init__(self, **settings: Any) -> None:
        self.engine = Engine(SqliteTable(Path(":memory:")), lambda: NOW_MS, UNHURRIED)
        self.pools = EnginePools(self.engine)
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        message = PoolConfigured("blue", PoolSettings(**settings))
        self.engine.execute_command(addresses.pool("blue"), message)

    def job(self, number: int, **fields: Any) -> None:
        body = encode_job(JobRow(NOW_MS, **fields))
        key = Key(jobs_partition("blue"), job_sort_key(number))
        self.engine.table.commit((Put(key, 1, body, Expect.ABSENT),))

    def ask(self, trial_id: int, slots: int, group: int, *excluded: str) -> None:
        ticket = f"{NOW_MS:014d}.{NOW_MS:014d}.{trial_id:012d}"
        message = SlotsRequested(trial_id, 1, slots, ticket, group, excluded)
        self.engine.post_message(addresses.pool("blue"), message, sender=f"trial#{trial_id}")

    def enrol(self, name: str, slots: int) -> None:
        devices = tuple((slot, "cpu", "", "") for slot in range(slots))
        message = AgentEnrolled(name, "blue", devices)
        self.engine.execute_command(addresses.agent(name), message)

    def enrol_device(self, name: str, device: str) -> None:
        message = AgentEnrolled(name, "blue", ((0, "cuda", "u", device),))
        self.engine.execute_command(addresses.agent(name), message)

    def enrol_without_pool(self, name: str) -> None:
        """Enrol an agent in a request that has no time left to advance the pool."""
        busy = EngineTiming(monotonic_seconds=map(float, itertools.count(step=10)).__next__)
        message = AgentEnrolled(name, "blue", ((0, "cpu", "", ""),))
        engine = Engine(self.engine.table, lambda: NOW_MS, busy)
        engine.execute_command(addresses.agent(name), message)

    @property
    def demand(self) -> Demand:
        return self.pools.pool_snapshot("blue").demand


def test_pending_requests_are_demand_up_to_the_job_limit() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.job(1, max_slots=5)
    cluster.job(2, single_agent=True)
    cluster.enrol("a", 2)
    for trial_id, slots, group in ((1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 4, 2), (5, 0, 2)):
        cluster.ask(trial_id, slots, group)
    # Trials 1 and 5 (zero-slot) have started on the agent, so job 1 may get 5 - 2 slots.
    assert cluster.demand == Demand((JobDemand({2: 2}, 3), JobDemand({4: 1}, None, True)))


def test_requests_with_the_same_exclusions_are_a_separate_demand() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol("a", 1)
    cluster.ask(1, 4, 1)
    for trial_id, slots, excluded in ((2, 2, "ba"), (3, 2, "ab"), (4, 1, "a"), (5, 0, "a")):
        cluster.ask(trial_id, slots, 1, *excluded)
    assert cluster.demand == Demand(
        (
            JobDemand({2: 2}, excluded_agents=("a", "b")),
            JobDemand({1: 1}, excluded_agents=("a",)),
            JobDemand({4: 1}),
        ),
        zero_slot_requests=1,
    )


def test_overdue_requests_are_listed_in_order() -> None:
    cluster = Cluster(provider=LOCAL, reserve_after_ms=60_000)
    cluster.job(1)
    cluster.job(2, single_agent=True)
    cluster.job(3, label="other")
    for trial_id, slots, group in ((1, 8, 1), (2, 6, 2), (3, 4, 3), (4, 1, 4)):
        cluster.ask(trial_id, slots, group)
    assert not cluster.demand.overdue
    cluster.engine.clock = lambda: NOW_MS + 60_000
    cluster.ask(5, 12, 5)
    assert cluster.demand.overdue == (OverdueSize(8), OverdueSize(6, single_agent=True))


def test_zero_slot_requests_are_counted() -> None:
    cluster = Cluster(provider=LOCAL, aux_per_agent=7)
    cluster.ask(1, 0, 1)
    cluster.ask(2, 0, 2)
    assert cluster.demand == Demand(zero_slot_requests=2, aux_per_agent=7)


def test_labelled_requests_are_no_demand() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.job(1, label="lab")
    cluster.ask(1, 2, 1)
    cluster.ask(2, 0, 1)
    assert not cluster.demand.has_pending


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("draining", "the pool is draining: nothing starts in it"),
        ("over_budget", "the pool's budget is used up"),
    ],
)
def test_draining_and_over_budget_set_the_hold_reason(field: str, why: str) -> None:
    cluster = Cluster(provider=LOCAL, **{field: True})
    cluster.ask(1, 2, 1)
    assert cluster.demand == Demand((JobDemand({2: 1}),), hold_reason=why)


@pytest.mark.parametrize("field", ["draining", "over_budget"])
def test_pool_without_new_work_has_no_minimum_of_instances(field: str) -> None:
    provider = json.dumps({"type": "local", "min_instances": 1, "max_instances": 2})
    settings = Cluster(provider=provider).pools.pool_snapshot("blue").settings
    assert settings is not None
    assert settings.min_instances == 1
    settings = Cluster(provider=provider, **{field: True}).pools.pool_snapshot("blue").settings
    assert settings is not None
    assert (settings.min_instances, settings.max_instances) == (0, 2)


def quiet_cluster(period: QuietPeriod) -> Cluster:
    provider = json.dumps({"type": "local", "min_instances": 1, "max_instances": 2})
    cluster = Cluster(provider=provider, quiet_periods=(period,), reserve_after_ms=0)
    cluster.job(1)
    cluster.ask(1, 2, 1)
    return cluster


def test_quiet_hours_launch_nothing_and_have_no_minimum_of_instances() -> None:
    cluster = quiet_cluster(QuietPeriod(NOW_MS, NOW_MS + 3_600_000))
    snapshot = cluster.pools.pool_snapshot("blue")
    assert snapshot.settings is not None
    assert snapshot.settings.min_instances == 0
    # 1,000,000 ms are 00:16:40.
    why = "the pool has quiet hours until 1970-01-01 01:16 UTC"
    assert snapshot.demand == Demand((JobDemand({2: 1}),), hold_reason=why)
    cluster.engine.clock = lambda: NOW_MS + 3_600_000
    snapshot = cluster.pools.pool_snapshot("blue")
    assert snapshot.settings is not None
    assert (snapshot.settings.min_instances, snapshot.demand.hold_reason) == (1, "")


def test_quiet_hours_launch_instances_for_urgent_jobs_only() -> None:
    cluster = quiet_cluster(QuietPeriod(NOW_MS, NOW_MS + 1, urgent_priority=5))
    cluster.job(2, priority=5)
    cluster.ask(2, 1, 2)
    cluster.ask(3, 0, 1)
    assert cluster.demand == Demand((JobDemand({1: 1}),))


def test_snapshot_has_idle_busy_and_drained_agents() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol("a", 4)
    cluster.enrol("b", 2)
    cluster.ask(1, 3, 1)
    cluster.pools.drain_agent("b")
    snapshot = cluster.pools.pool_snapshot("blue")
    assert snapshot.agents == {
        "a": ConnectedAgent(False, True, (3,), 1),
        "b": ConnectedAgent(True, False, is_closed=True),
    }
    assert snapshot.leases.keys() == {"a", "b"}


def test_agent_is_joining_until_the_pool_processes_its_message() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol_without_pool("a")
    snapshot = cluster.pools.pool_snapshot("blue")
    assert (list(snapshot.agents), list(snapshot.joining)) == ([], ["a"])
    cluster.engine.advance_until_idle((addresses.pool("blue"),))
    snapshot = cluster.pools.pool_snapshot("blue")
    assert (list(snapshot.agents), list(snapshot.joining)) == (["a"], [])
    cluster.pools.end_agent("blue", "a")
    snapshot = cluster.pools.pool_snapshot("blue")
    assert (list(snapshot.agents), list(snapshot.joining)) == ([], [])


def test_joining_agent_prevents_a_second_launch() -> None:
    cluster = Cluster(provider=json.dumps({"type": "local", "max_instances": 2, "slots": 1}))
    offering = Offering("small", "small", "a", Market.ON_DEMAND, 1)
    now_ms = NOW_MS
    cloud = FakeCloud(lambda: now_ms, Random(1), (offering,))
    reconciler = Reconciler(
        cluster.engine.table, cluster.pools, lambda settings: cloud, "c", lambda: now_ms, Random(2)
    )
    cluster.ask(1, 1, 1)
    reconciler.reconcile("blue")
    (machine,) = cloud.machines
    cluster.enrol_without_pool(machine)
    now_ms += PASS_MS
    reconciler.reconcile("blue")
    assert list(cloud.machines) == [machine]
    cluster.engine.advance_until_idle((addresses.pool("blue"),))
    assert cluster.pools.pool_snapshot("blue").agents[machine].work == (1,)


def test_zero_slot_allocation_is_work() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol("a", 4)
    cluster.ask(1, 0, 1)
    assert cluster.pools.pool_snapshot("blue").agents == {"a": ConnectedAgent(False, True, (0,), 4)}


def test_disabled_slot_does_not_close_its_agent() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol("a", 2)
    cluster.engine.execute_command(addresses.agent("a"), AgentDisableRequested(slot=0))
    assert cluster.pools.pool_snapshot("blue").agents == {"a": ConnectedAgent(True, True, (), 1)}


def test_faulty_and_excluded_agents_are_not_closed() -> None:
    cluster = Cluster(provider=LOCAL)
    for name in "ab":
        cluster.enrol(name, 2)
    faults = FaultsReported(1, ((None, "the disk is full"),))
    cluster.engine.execute_command(addresses.agent("a"), faults)
    excluded = AgentExcluded("the link is bad", NOW_MS + 1)
    cluster.engine.post_message(addresses.agent("b"), excluded, sender="test")
    assert cluster.pools.pool_snapshot("blue").agents == dict.fromkeys(
        "ab", ConnectedAgent(True, takes_work=False)
    )
    # A drain closes an excluded agent.
    cluster.pools.drain_agent("b")
    assert cluster.pools.pool_snapshot("blue").agents["b"].is_closed


def test_lists_only_pools_with_a_provider() -> None:
    cluster = Cluster()
    assert cluster.pools.pool_names() == []
    assert cluster.pools.pool_snapshot("blue").settings is None
    cluster.configure(provider=LOCAL)
    assert cluster.pools.pool_names() == ["blue"]
    assert cluster.pools.pool_snapshot("blue").settings == ProvisionerSettings(
        "local", max_instances=2
    )


def test_removed_pool_has_an_empty_snapshot() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.engine.execute_command(addresses.pool("blue"), PoolRemoved())
    assert cluster.pools.pool_names() == []
    snapshot = cluster.pools.pool_snapshot("blue")
    assert (snapshot.settings, snapshot.demand, dict(snapshot.agents)) == (None, Demand(), {})


def test_invalid_provider_raises_settings_invalid() -> None:
    cluster = Cluster(provider="{}")
    with pytest.raises(SettingsInvalid):
        cluster.pools.pool_snapshot("blue")


def test_end_agent_marks_the_lease_as_lost() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol("a", 2)
    cluster.pools.end_agent("blue", "a")
    assert cluster.pools.pool_snapshot("blue").agents == {}
    assert read_leases(cluster.engine.table, "blue")["a"].lost


def test_repeated_calls_and_unknown_agents_are_harmless() -> None:
    cluster = Cluster(provider=LOCAL)
    cluster.enrol("a", 2)
    for _ in range(2):
        cluster.pools.end_agent("blue", "a")
        cluster.pools.end_agent("blue", "never-seen")
        cluster.pools.drain_agent("a")
        cluster.pools.drain_agent("never-seen")
    assert cluster.pools.pool_snapshot("blue").agents == {}


def test_supply_report_is_posted_once_per_change() -> None:
    cluster = Cluster(provider=LOCAL)

    def report(closed: str, until_ms: int) -> tuple[int, str, int]:
        cluster.pools.report_supply("blue", closed, until_ms)
        cluster.engine.advance_until_idle((addresses.pool("blue"),))
        revision = cluster.engine.table.get(Key(addresses.pool("blue"), HEAD))
        state = cluster.engine.read_state(addresses.pool("blue"))
        assert revision is not None
        return revision.revision, state.no_supply_reason, state.no_supply_until_ms

    first, *quiet = report("", 0)
    assert quiet == ["", 0]
    assert report("none", 5) == (first + 1, "none", 5)
    assert report("none", 5) == (first + 1, "none", 5)
    assert report("none", 9) == (first + 2, "none", 9)
    assert report("", 0) == (first + 3, "", 0)
    assert report("", 0) == (first + 3, "", 0)
    # Reports to an unknown pool are ignored.
    cluster.pools.report_supply("green", "none", 5)
    assert cluster.engine.read_state(addresses.pool("green")) is None


def test_job_that_needs_a_device_gets_an_instance_with_the_device() -> None:
    cluster = Cluster(provider=LOCAL)
    small = Offering("small", "small", "a", Market.ON_DEMAND, 1, 1.0)
    big = Offering("big", "big", "a", Market.ON_DEMAND, 1, 9.0)
    devices = {
        "small": (AgentDevice("cuda", "Tesla T4", 16384),),
        "big": (AgentDevice("cuda", "NVIDIA H100 80GB HBM3", 81920),),
    }
    cloud = FakeCloud(lambda: now_ms, Random(1), (small, big), devices=devices)
    now_ms = NOW_MS
    reconciler = Reconciler(
        cluster.engine.table, cluster.pools, lambda settings: cloud, "c", lambda: now_ms, Random(2)
    )
    cluster.job(1, slot_type="H100")
    cluster.enrol_device("mine", "Tesla T4")
    cluster.ask(1, 1, 1)
    assert cluster.demand.jobs[0].excluded_agents == ("mine",)
    reconciler.reconcile("blue")
    (machine,) = cloud.machines.values()
    assert machine.offering == big
    cluster.enrol_device(machine.id, "NVIDIA H100 80GB HBM3")
    agents = cluster.pools.pool_snapshot("blue").agents
    assert (agents[machine.id].work, agents["mine"].work) == ((1,), ())
