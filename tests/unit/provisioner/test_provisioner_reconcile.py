"""Passes over a pool with the fake cloud. tests/simulation has the tests with crashes."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceState,
    IntentRow,
    Market,
    Offering,
)
from control_plane.fleet.rows import read_fleet, read_instances, read_intents, read_past_instances
from control_plane.state.table import Delete, Expect, Key, Put, Unavailable, Write
from provisioner.clouds.fake.provider import FakeRules
from provisioner.clouds.provider import CloudProvider, ConfigurationError, ThrottlingError
from provisioner.ledger import Ledger
from provisioner.model import PassResult, ProvisionerSettings
from provisioner.orphan_cleanup import OrphanCleaner
from provisioner.pools import PoolsFailed
from provisioner.reconcile import PASS_MS, Reconciler
from provisioner.settings import SettingsInvalid
from simulator.faults.table_faults import InterleavingTable
from simulator.stepped.scripted_pool import Work
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_fleet import BEGAN_MS, ON_DEMAND, SPOT, SPOT_B, FakeCloudFleet

CALM = FakeRules()


def _make_fleet(
    *sold: Offering, rules: FakeRules = CALM, work: int = 0, **settings: Any
) -> FakeCloudFleet:
    given: dict[str, Any] = {"kind": "fake", "max_instances": 3, "idle_ms_max": 60_000} | settings
    simulation = FakeCloudFleet(ProvisionerSettings(**given), rules, sold or (ON_DEMAND,))
    simulation.pool.work = [Work(4, 10_000_000) for _ in range(work)]
    return simulation


def _fleet(simulation: FakeCloudFleet) -> FleetRow:
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    return fleet


def _states(simulation: FakeCloudFleet) -> list[InstanceState]:
    return [row.state for row in read_instances(simulation.table, POOL)]


def test_pool_without_work_costs_no_writes() -> None:
    simulation = _make_fleet()
    simulation.run(60)
    assert read_fleet(simulation.table, POOL) is None
    assert simulation.watched.calls == 0


def test_pool_scales_from_zero_and_back() -> None:
    simulation = _make_fleet(work=2)
    simulation.step()
    assert _states(simulation) == [InstanceState.STARTING] * 2
    simulation.run(10)
    assert _states(simulation) == [InstanceState.RUNNING] * 2
    simulation.pool.work.clear()
    # Idle for 60 s, drained, observed without work, terminated, missing from the list.
    simulation.run(90)
    assert _states(simulation) == []
    past, more = read_past_instances(simulation.table, POOL)
    assert [row.reason for row in past] == ["it was idle for 60 s"] * 2
    assert not more
    assert not simulation.cloud.live_machines()


def test_agent_enabled_after_a_failed_termination_finishes_its_work() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(10)
    (row,) = read_instances(simulation.table, POOL)
    simulation.pool.work.clear()

    def refuse(ids: object) -> None:
        raise ThrottlingError("too many requests")

    simulation.watched.on_terminate = refuse
    simulation.run_until(lambda: _states(simulation) == [InstanceState.TERMINATING], 120)
    simulation.watched.on_terminate = lambda ids: None
    simulation.pool.draining.discard(row.id)
    simulation.pool.work = [Work(4, 30_000)]
    simulation.pool.place_work()
    simulation.run(20)
    assert row.id in simulation.pool.draining
    assert row.id in [machine.id for machine in simulation.cloud.live_machines()]
    simulation.run_until(simulation.is_empty, 120)
    assert not simulation.cloud.live_machines()


def test_notice_drains_the_agent() -> None:
    simulation = _make_fleet(SPOT, work=1)
    simulation.run(20)
    (row,) = read_instances(simulation.table, POOL)
    simulation.cloud.interrupt(row.id, 120_000)
    simulation.run(10)
    assert row.id in simulation.pool.draining


def test_empty_pool_is_not_written() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(60)
    simulation.pool.work.clear()
    simulation.run_until(simulation.is_empty, 120)
    simulation.run(10)
    before = _fleet(simulation)
    simulation.run(60)
    assert _fleet(simulation) == before


def test_skips_a_pass_within_five_seconds() -> None:
    simulation = _make_fleet(work=1)
    simulation.step()
    calls = simulation.watched.calls
    simulation.now_ms += 4_999
    simulation.reconciler.reconcile(POOL)
    assert simulation.watched.calls == calls
    simulation.now_ms += 1
    simulation.reconciler.reconcile(POOL)
    assert simulation.watched.calls == calls + 1


def test_skips_a_pass_under_a_foreign_lease() -> None:
    simulation = _make_fleet(work=1)
    assert Ledger(simulation.table, POOL).acquire_lease(BEGAN_MS + 1_000)
    simulation.step()
    assert simulation.watched.calls == 0
    # The lease lasts 30 s; a longer pass finds that another pass has committed.
    simulation.run(40)
    assert _states(simulation) == [InstanceState.RUNNING]


def test_early_pass_returns_the_remaining_delay() -> None:
    simulation = _make_fleet(work=1)
    assert simulation.reconciler.reconcile(POOL).retry_after_ms == 0
    simulation.now_ms += 1_900
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=3_100)
    simulation.now_ms += 3_100
    assert simulation.reconciler.reconcile(POOL).retry_after_ms == 0


def test_pass_under_a_lease_returns_the_delay_until_its_end() -> None:
    simulation = _make_fleet(work=1)
    assert Ledger(simulation.table, POOL).acquire_lease(simulation.now_ms)
    simulation.now_ms += 1_900
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=3_100)
    # The other pass may be slow or crashed, so the end of the lease counts.
    simulation.now_ms += 3_100
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=25_000)
    simulation.now_ms += 25_000
    assert simulation.reconciler.reconcile(POOL).retry_after_ms == 0
    assert _states(simulation) == [InstanceState.STARTING]


def test_lost_race_returns_the_pass_period() -> None:
    simulation = _make_fleet(work=1)

    def leases() -> None:
        assert Ledger(simulation.table, POOL).acquire_lease(simulation.now_ms)

    simulation.boot(
        InterleavingTable(simulation.table, leases), lambda settings: simulation.watched
    )
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=PASS_MS)


def test_pool_without_work_returns_no_delay() -> None:
    assert _make_fleet().reconciler.reconcile(POOL) == PassResult()


def test_tries_the_next_offering_in_the_same_pass() -> None:
    simulation = _make_fleet(SPOT, SPOT_B, ON_DEMAND, work=1)
    simulation.cloud.capacity = {SPOT.name: 0, SPOT_B.name: 0}
    simulation.step()
    (row,) = read_instances(simulation.table, POOL)
    assert row.offering == ON_DEMAND
    health = _fleet(simulation).health
    assert {name: offering_health.kind for name, offering_health in health.items()} == {
        SPOT.name: ErrorKind.CAPACITY,
        SPOT_B.name: ErrorKind.CAPACITY,
        ON_DEMAND.name: None,
    }


def test_reports_missing_supply_once_no_instance_is_starting() -> None:
    simulation = _make_fleet(work=2, rules=FakeRules(boot_ms=(60_000, 60_000)))
    simulation.cloud.capacity = {ON_DEMAND.name: 1}
    # The cloud launches one of two instances, and the next pass requests the second.
    simulation.run(10)
    assert _states(simulation) == [InstanceState.STARTING]
    assert _fleet(simulation).health[ON_DEMAND.name].kind is ErrorKind.CAPACITY
    assert simulation.pool.supply == ("", 0)
    simulation.run_until(lambda: simulation.pool.supply != ("", 0), 120)
    assert _states(simulation) == [InstanceState.RUNNING]
    closed, until_ms = simulation.pool.supply
    assert closed.startswith(f"no offering has capacity or quota; {ON_DEMAND.name}: ")
    assert until_ms == _fleet(simulation).health[ON_DEMAND.name].retry_ms
    simulation.cloud.capacity = {}
    simulation.run_until(lambda: _states(simulation) == [InstanceState.RUNNING] * 2, 1_200)
    assert simulation.pool.supply == ("", 0)
    # The fleet row lists the pool's offerings with prices.
    assert _fleet(simulation).offered == (ON_DEMAND,)


def test_rest_of_a_partial_launch_goes_to_another_offering() -> None:
    simulation = _make_fleet(SPOT, ON_DEMAND, work=3)
    simulation.cloud.capacity = {SPOT.name: 1}
    simulation.run(10)
    offerings = sorted(row.offering.name for row in read_instances(simulation.table, POOL))
    assert offerings == [ON_DEMAND.name, ON_DEMAND.name, SPOT.name]


def test_quota_error_is_reported_and_retried_after_a_raise() -> None:
    simulation = _make_fleet(work=1, launch_error_limit=3)
    simulation.cloud.quota = {Market.ON_DEMAND: 0}
    # At least 1, 2, 4, 8 and 15 minutes lie between two attempts, then 15 to 30: eight hours are
    # enough for more than ten of them.
    simulation.run(8 * 3_600)
    fleet = _fleet(simulation)
    health = fleet.health[ON_DEMAND.name]
    assert (health.errors > 10, health.given_up) == (True, False)
    assert fleet.waits.startswith(
        f"no instance can be launched: {ON_DEMAND.name}: quota: the quota of 0 on_demand "
        "slots is used "
        "up (tried again in "
    )
    simulation.cloud.quota = {}
    simulation.run(30 * 60 + 30)
    assert _states(simulation) == [InstanceState.RUNNING]
    assert _fleet(simulation).waits == ""


def test_given_up_offering_reopens_after_one_boot() -> None:
    simulation = _make_fleet(work=3, launch_error_limit=1, starting_ms_max=60_000)
    simulation.cloud.rules = replace(CALM, never_boots_share=1.0)
    # Three instances that never enrol count as one error, which is the limit.
    simulation.run(15 * 60)
    assert _fleet(simulation).health[ON_DEMAND.name].given_up
    simulation.run(3 * 3_600)
    # Half an hour to an hour between two probes: at most six in three hours.
    assert 3 + 3 <= len(simulation.cloud.machines) <= 3 + 6
    simulation.cloud.rules = CALM
    simulation.run_until(lambda: _states(simulation).count(InstanceState.RUNNING) == 3, 3_700)


def test_failed_cloud_list_changes_no_instance() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(10)
    simulation.cloud.rules = FakeRules(throttled_share=1.0)
    simulation.pool.work.append(Work(4, 10_000_000))
    simulation.run(60)
    assert _fleet(simulation).trouble == "throttled: too many requests"
    assert _states(simulation) == [InstanceState.RUNNING]
    simulation.cloud.rules = CALM
    simulation.run(10)
    assert _fleet(simulation).trouble == ""
    assert len(_states(simulation)) == 2


def test_repeats_an_unanswered_launch_with_the_same_token() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
    simulation.step()
    (intent,) = read_intents(simulation.table, POOL)
    assert len(simulation.cloud.machines) == 1
    simulation.cloud.rules = CALM
    simulation.step()
    assert read_intents(simulation.table, POOL) == []
    assert [row.intent for row in read_instances(simulation.table, POOL)] == [intent.id]
    assert len(simulation.cloud.machines) == 1


def test_throttled_repetition_keeps_the_intent_open() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
    simulation.step()
    simulation.cloud.rules = CALM
    launch = simulation.cloud.launch

    def throttle_launch(request: IntentRow) -> Any:
        raise ThrottlingError("too many launches")

    simulation.cloud.launch = throttle_launch  # type: ignore[method-assign]
    simulation.run(20)
    assert len(read_intents(simulation.table, POOL)) == 1
    simulation.cloud.launch = launch  # type: ignore[method-assign]
    simulation.step()
    assert len(read_instances(simulation.table, POOL)) == len(simulation.cloud.machines) == 1


def test_old_intent_is_closed_with_listed_instances() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
    # After more than 10 minutes, the list contains the machine.
    simulation.run(615)
    assert read_intents(simulation.table, POOL) == []
    assert len(read_instances(simulation.table, POOL)) == len(simulation.cloud.machines) == 1


def test_old_intent_without_instances_is_closed_with_an_error() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(lost_request_share=1.0))
    simulation.run(615)
    simulation.cloud.rules = CALM
    assert _fleet(simulation).health[ON_DEMAND.name].kind is ErrorKind.UNKNOWN
    simulation.run(30)
    assert len(read_instances(simulation.table, POOL)) == len(simulation.cloud.machines) == 1


def test_configuration_error_is_recorded() -> None:
    simulation = _make_fleet(work=1)
    simulation.cloud.failing = ConfigurationError("there is no image ami-1")
    simulation.step()
    health = _fleet(simulation).health[ON_DEMAND.name]
    assert (health.kind, health.message) == (ErrorKind.CONFIGURATION, "there is no image ami-1")


def test_agent_that_enrols_before_the_commit_keeps_its_instance() -> None:
    never = FakeRules(boot_ms=(10**9, 10**9))
    simulation = _make_fleet(work=1, rules=never, starting_ms_max=60_000, max_instances=1)

    def is_ending(writes: Any) -> bool:
        return any(b"TERMINATING" in write.body for write in writes if isinstance(write, Put))

    def enrols() -> None:
        (machine,) = simulation.cloud.machines.values()
        machine.boots_ms = simulation.now_ms
        simulation.pool.enrol(machine.id)

    table = InterleavingTable(simulation.table, enrols, is_ending)
    simulation.boot(table, lambda settings: simulation.watched)
    # The starting period of a minute and ten minutes of silence have passed.
    simulation.run(11 * 60 + 10)
    assert table.acted
    simulation.run(60)
    assert _states(simulation) == [InstanceState.RUNNING]
    assert len(simulation.cloud.machines) == 1


def test_new_provider_waits_for_the_end_of_former_instances() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(10)
    assert simulation.pool.settings is not None
    simulation.pool.settings = replace(simulation.pool.settings, section='{"region": "eu-2"}')
    simulation.run(10)
    # The instance finishes its work.
    assert _states(simulation) == [InstanceState.DRAINING]
    simulation.pool.work.clear()
    simulation.run_until(simulation.is_empty, 60)
    simulation.pool.work.append(Work(4, 10_000))
    simulation.run(10)
    assert '"eu-2' in _fleet(simulation).provider.replace("\\", "")
    assert _states(simulation) == [InstanceState.RUNNING]


def test_removed_pool_loses_instances_and_fleet_row() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(10)
    simulation.pool.settings = None
    simulation.pool.work.clear()
    simulation.run_until(simulation.is_empty, 60)
    simulation.run(10)
    assert read_fleet(simulation.table, POOL) is None


class TestOrphanCleanup:
    def test_orphan_is_terminated_after_the_grace_period(self) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        simulation.watched.on_terminate = lambda ids: None
        (row,) = read_instances(simulation.table, POOL)
        simulation.table.commit((Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),))
        simulation.run(200)
        assert not simulation.cloud.machines[row.id].is_billed(simulation.now_ms)
        # The replacement continues to run.
        assert _states(simulation) == [InstanceState.RUNNING]

    def test_orphan_with_a_future_launch_time_is_terminated(self) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        simulation.watched.on_terminate = lambda ids: None
        (row,) = read_instances(simulation.table, POOL)
        simulation.table.commit((Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),))
        # The clock was a day ahead at the launch.
        launched_ms = simulation.now_ms + 24 * 3_600_000
        simulation.cloud.machines[row.id] = replace(
            simulation.cloud.machines[row.id], launched_ms=launched_ms
        )
        assert simulation.orphan_cleaner.terminate_orphans() == [row.id]

    def test_orphan_of_a_removed_pool_is_terminated(self) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        simulation.watched.on_terminate = lambda ids: None
        (row,) = read_instances(simulation.table, POOL)
        deletions: list[Write] = [
            Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),
            Delete(Key("fleets", POOL), Expect.PRESENT),
        ]
        simulation.table.commit(deletions)
        simulation.pool.settings = None
        simulation.run(200)
        assert not simulation.cloud.live_machines()

    def test_instance_of_an_open_intent_is_no_orphan(self) -> None:
        simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
        simulation.run(300)
        assert (
            len(read_intents(simulation.table, POOL))
            == len(list(simulation.cloud.live_machines()))
            == 1
        )

    @pytest.mark.parametrize("cluster", ["another"])
    def test_instances_of_another_cluster_are_no_orphans(self, cluster: str) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        (intent,) = [instance.intent for instance in read_instances(simulation.table, POOL)]
        simulation.cloud.launch(IntentRow(intent, cluster, POOL, ON_DEMAND, 1, "t", 0))
        simulation.run(300)
        assert len(list(simulation.cloud.live_machines())) == 2

    def test_removed_cloud_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)

        def refuse(_settings: ProvisionerSettings) -> CloudProvider:
            raise ConfigurationError("this cluster has no provider fake")

        cleaner = OrphanCleaner(simulation.table, refuse, "c", lambda: simulation.now_ms)
        assert [cleaner.terminate_orphans() for _ in range(3)] == [[]] * 3
        assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
            "this cluster has no provider fake"
        ]


def test_failed_pool_is_named_and_other_pools_run() -> None:
    reconciled: list[str] = []

    class RefusingReconciler(Reconciler):
        def __init__(self) -> None:
            pass

        def pools_to_reconcile(self) -> list[str]:
            return ["bad", "hot", "good"]

        def reconcile(self, pool: str) -> PassResult:
            reconciled.append(pool)
            if pool == "hot":
                raise Unavailable("throttled")
            if pool == "bad":
                raise SettingsInvalid("provider: must be a map")
            return PassResult(retry_after_ms=3_000)

    # Invalid settings are logged only; PoolsFailed does not name the pool.
    with pytest.raises(PoolsFailed, match=r"^pools that failed: hot$"):
        RefusingReconciler().reconcile_pools()
    assert reconciled == ["bad", "hot", "good"]


def test_reconcile_pools_returns_the_longest_delay() -> None:
    waits = {"a": 2_000, "b": 4_000, "c": 0}

    class EarlyReconciler(Reconciler):
        def __init__(self) -> None:
            pass

        def pools_to_reconcile(self) -> list[str]:
            return list(waits)

        def reconcile(self, pool: str) -> PassResult:
            return PassResult(retry_after_ms=waits[pool])

    assert EarlyReconciler().reconcile_pools() == 4_000
