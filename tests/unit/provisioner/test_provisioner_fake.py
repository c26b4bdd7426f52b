"""Faults of the fake cloud, which follow configured rules."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from control_plane.fleet.records import IntentRow, Market
from provisioner.clouds.fake.provider import FakeCloud, FakeRules
from provisioner.clouds.provider import (
    CloudInstance,
    ConfigurationError,
    NoCapacity,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
)
from provisioner.model import InstanceStatus
from tests.unit.provisioner.fleet_table import BIG, SMALL, SPOT

BEGAN_MS = 1_000


@dataclass
class Sky:
    """A fake cloud with a virtual clock."""

    rules: FakeRules = field(default_factory=FakeRules)
    seed: int = 1
    now_ms: int = BEGAN_MS

    def __post_init__(self) -> None:
        sold = (SMALL, SPOT)
        self.cloud = FakeCloud(lambda: self.now_ms, Random(self.seed), sold, self.rules)

    def launch(self, name: str = "one", count: int = 1, spot: bool = False) -> list[str]:
        offering = SPOT if spot else SMALL
        request = IntentRow(name, "c", "p", offering, count, name, 0)
        return [instance.id for instance in self.cloud.launch(request)]

    def listed_instances(self) -> dict[str, CloudInstance]:
        return {instance.id: instance for instance in self.cloud.list_instances("c")}


def test_capacity_is_per_offering() -> None:
    sky = Sky()
    sky.cloud.capacity = {SPOT.name: 1}
    assert len(sky.launch("one", 3, spot=True)) == 1
    with pytest.raises(NoCapacity, match="no small is left in a"):
        sky.launch("two", spot=True)
    assert len(sky.launch("three", 3)) == 3


def test_capacity_of_an_ended_machine_is_free_again() -> None:
    sky = Sky()
    sky.cloud.capacity = {SMALL.name: 1}
    (name,) = sky.launch()
    sky.cloud.shut_down(name)
    assert sky.launch("two")


def test_quota_counts_slots_in_a_market() -> None:
    sky = Sky()
    # 10 slots allow two instances with 4.
    sky.cloud.quota = {Market.ON_DEMAND: 10}
    assert len(sky.launch("one", 5)) == 2
    with pytest.raises(QuotaExceeded, match="the quota of 10 on_demand slots is used up"):
        sky.launch("two")


def test_unknown_offering_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        Sky().cloud.launch(IntentRow("one", "c", "p", BIG, 1, "one", 0))


def test_failed_launch_is_not_stored() -> None:
    sky = Sky()
    sky.cloud.capacity = {SMALL.name: 0}
    with pytest.raises(NoCapacity):
        sky.launch()
    sky.cloud.capacity = {}
    assert sky.launch()


def test_timeout_executes_the_launch() -> None:
    sky = Sky(FakeRules(timeout_share=1.0))
    with pytest.raises(OutcomeUnknown):
        sky.launch()
    sky.cloud.rules = FakeRules()
    assert sky.launch() == list(sky.cloud.machines)


def test_lost_request_is_not_executed() -> None:
    sky = Sky(FakeRules(lost_request_share=1.0))
    with pytest.raises(OutcomeUnknown):
        sky.launch()
    assert not sky.cloud.machines


def test_throttled_call_has_no_effect() -> None:
    sky = Sky()
    (name,) = sky.launch()
    sky.cloud.rules = FakeRules(throttled_share=1.0)
    for call in (sky.launch, sky.listed_instances, lambda: sky.cloud.terminate([name])):
        with pytest.raises(ThrottlingError):
            call()
    assert sky.cloud.machines[name].is_billed(sky.now_ms)


def test_partial_launch_returns_fewer_machines() -> None:
    sky = Sky(FakeRules(partial_share=1.0))
    assert 1 <= len(sky.launch("one", 4)) < 4
    assert len(sky.launch("two", 1)) == 1


def test_invisible_machine_is_not_listed_or_terminated() -> None:
    sky = Sky(FakeRules(visible_ms=(40_000, 40_000)))
    (name,) = sky.launch()
    sky.now_ms += 39_999
    assert sky.listed_instances() == {}
    sky.cloud.terminate([name])
    assert sky.cloud.machines[name].is_billed(sky.now_ms)
    sky.now_ms += 1
    assert list(sky.listed_instances()) == [name]


def test_stale_list_shows_older_statuses() -> None:
    sky = Sky(FakeRules(stale_ms=30_000))
    (name,) = sky.launch()
    sky.now_ms += 60_000
    sky.cloud.shut_down(name)
    sky.now_ms += 15_000
    statuses = {sky.listed_instances()[name].status for _ in range(50)}
    assert statuses == {InstanceStatus.RUNNING, InstanceStatus.TERMINATED}


def test_machines_boot_late_or_never() -> None:
    rules = FakeRules(running_ms=(10_000, 10_000), boot_ms=(20_000, 20_000))
    for boot_rules, up_after_ms in (
        (rules, 30_000),
        (replace(rules, late_boot_share=1.0), 930_000),
        (replace(rules, never_boots_share=1.0), None),
    ):
        sky = Sky(boot_rules)
        (name,) = sky.launch()
        machine = sky.cloud.machines[name]
        assert machine.status(BEGAN_MS + 9_999) is InstanceStatus.STARTING
        assert machine.status(BEGAN_MS + 10_000) is InstanceStatus.RUNNING
        expected = None if up_after_ms is None else BEGAN_MS + up_after_ms
        assert machine.boots_ms == expected
        assert not machine.is_agent_up(BEGAN_MS + 29_999)


def test_machine_vanishes() -> None:
    sky = Sky(FakeRules(vanishes_share=1.0, vanish_ms=(5_000, 5_000)))
    (name,) = sky.launch()
    sky.now_ms += 5_000
    assert sky.listed_instances()[name].status is InstanceStatus.TERMINATED


def test_spot_machine_ends_after_recommendation_and_notice() -> None:
    sky = Sky(FakeRules(interrupted_ms=(600_000, 600_000), rebalance_ms=60_000))
    (name,) = sky.launch(spot=True)
    (kept,) = sky.launch("two")
    # The machine ends at 600 s. The notice is at 480 s and the recommendation at 420 s.
    signals = []
    for seconds in (419, 420, 479, 480, 599, 600):
        sky.now_ms = BEGAN_MS + seconds * 1000
        instance = sky.listed_instances()[name]
        signals.append(
            (instance.rebalance, instance.notice_ms, instance.status is InstanceStatus.TERMINATED)
        )
    end_ms = BEGAN_MS + 600_000
    assert signals == [
        (False, None, False),
        (True, None, False),
        (True, None, False),
        (True, end_ms, False),
        (True, end_ms, False),
        (True, end_ms, True),
    ]
    assert sky.listed_instances()[kept].status is InstanceStatus.RUNNING


def test_spot_machine_ends_without_notice() -> None:
    sky = Sky(FakeRules(interrupted_ms=(600_000, 600_000), unannounced_share=1.0))
    (name,) = sky.launch(spot=True)
    sky.now_ms += 599_999
    assert sky.listed_instances()[name].notice_ms is None
    sky.now_ms += 1
    assert sky.listed_instances()[name].status is InstanceStatus.TERMINATED


def test_interrupts_and_recommends_on_request() -> None:
    sky = Sky()
    first, second = sky.launch("one", 2)
    sky.cloud.interrupt(first, 30_000)
    sky.cloud.recommend_rebalance(second)
    assert sky.listed_instances()[first].notice_ms == BEGAN_MS + 30_000
    assert sky.listed_instances()[second].rebalance
    sky.cloud.interrupt(second, None)
    assert sky.listed_instances()[second].status is InstanceStatus.TERMINATED


def test_live_machines_are_billed() -> None:
    sky = Sky(FakeRules(ending_ms=(60_000, 60_000)))
    (name,) = sky.launch()
    sky.launch("two", spot=True)
    sky.now_ms += 29 * 60_000
    sky.cloud.terminate([name])
    # $4 an hour for 30 minutes, including the time of ending, and $1 for an hour.
    sky.now_ms += 31 * 60_000
    assert sky.cloud.total_cost() == pytest.approx(4 * 0.5 + 1)
    assert [machine.offering for machine in sky.cloud.live_machines()] == [SPOT]


def test_seed_determines_the_machines() -> None:
    rules = FakeRules(visible_ms=(0, 40_000), boot_ms=(0, 90_000), vanishes_share=0.5)
    fates = []
    for seed in (1, 1, 2):
        sky = Sky(rules, seed)
        sky.launch("one", 20)
        fates.append(list(sky.cloud.machines.values()))
    assert fates[0] == fates[1] != fates[2]
