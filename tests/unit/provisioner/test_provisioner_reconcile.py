"""Passes over one pool with the fake cloud; what crashes leave is in tests/simulation."""

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
from control_plane.state.faults import InterleavingTable
from control_plane.state.table import Delete, Expect, Key, Put, Unavailable, Write
from provisioner.clouds.fake.provider import FakeRules
from provisioner.clouds.provider import ConfigurationError, ThrottlingError
from provisioner.ledger import Ledger
from provisioner.model import PassResult, ProvisionerSettings
from provisioner.pools import PoolsFailed
from provisioner.reconcile import PASS_MS, Reconciler
from provisioner.settings import SettingsInvalid
from tests.simulation.fleet import BEGAN_MS, ON_DEMAND, POOL, SPOT, SPOT_B, SimulatedFleet, Work

CALM = FakeRules()


def _make_fleet(
    *sold: Offering, rules: FakeRules = CALM, work: int = 0, **settings: Any
) -> SimulatedFleet:
    given: dict[str, Any] = {"kind": "fake", "max_instances": 3, "idle_ms_max": 60_000} | settings
    simulation = SimulatedFleet(ProvisionerSettings(**given), rules, sold or (ON_DEMAND,))
    simulation.pool.work = [Work(4, 10_000_000) for _ in range(work)]
    return simulation


def _fleet(simulation: SimulatedFleet) -> FleetRow:
    fleet = read_fleet(simulation.table, POOL)
    assert fleet is not None
    return fleet


def _states(simulation: SimulatedFleet) -> list[InstanceState]:
    return [row.state for row in read_instances(simulation.table, POOL)]


def test_a_pool_that_wants_nothing_costs_no_writes() -> None:
    simulation = _make_fleet()
    simulation.run(60)
    assert read_fleet(simulation.table, POOL) is None
    assert simulation.watched.calls == 0


def test_a_pool_goes_from_nothing_to_its_work_and_back() -> None:
    simulation = _make_fleet(work=2)
    simulation.step()
    assert _states(simulation) == [InstanceState.STARTING] * 2
    simulation.run(10)
    assert _states(simulation) == [InstanceState.RUNNING] * 2
    simulation.pool.work.clear()
    # Idle for 60 s, drained, seen to have no work, ended, seen to be gone.
    simulation.run(90)
    assert _states(simulation) == []
    past, more = read_past_instances(simulation.table, POOL)
    assert [row.reason for row in past] == ["it was idle for 60 s"] * 2
    assert not more
    assert not simulation.cloud.live_machines()


def test_nothing_new_starts_where_notice_was_given() -> None:
    simulation = _make_fleet(SPOT, work=1)
    simulation.run(20)
    (row,) = read_instances(simulation.table, POOL)
    simulation.cloud.interrupt(row.id, 120_000)
    simulation.run(10)
    assert row.id in simulation.pool.draining


def test_a_pool_at_rest_is_not_written() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(60)
    simulation.pool.work.clear()
    simulation.run_until(simulation.is_empty, 120)
    simulation.run(10)
    before = _fleet(simulation)
    simulation.run(60)
    assert _fleet(simulation) == before


def test_passes_come_at_most_every_five_seconds() -> None:
    simulation = _make_fleet(work=1)
    simulation.step()
    calls = simulation.watched.calls
    simulation.now_ms += 4_999
    simulation.reconciler.reconcile(POOL)
    assert simulation.watched.calls == calls
    simulation.now_ms += 1
    simulation.reconciler.reconcile(POOL)
    assert simulation.watched.calls == calls + 1


def test_one_who_holds_the_lease_is_left_alone() -> None:
    simulation = _make_fleet(work=1)
    assert Ledger(simulation.table, POOL).acquire_lease(BEGAN_MS + 1_000)
    simulation.step()
    assert simulation.watched.calls == 0
    # It holds for 30 s; whoever slept longer finds that somebody else went on.
    simulation.run(40)
    assert _states(simulation) == [InstanceState.RUNNING]


def test_a_look_that_is_too_early_says_when_to_look_again() -> None:
    simulation = _make_fleet(work=1)
    assert simulation.reconciler.reconcile(POOL).retry_after_ms == 0
    simulation.now_ms += 1_900
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=3_100)
    simulation.now_ms += 3_100
    assert simulation.reconciler.reconcile(POOL).retry_after_ms == 0


def test_a_look_during_a_pass_says_when_that_is_over_and_five_seconds_old() -> None:
    simulation = _make_fleet(work=1)
    assert Ledger(simulation.table, POOL).acquire_lease(simulation.now_ms)
    simulation.now_ms += 1_900
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=3_100)
    # It takes longer than others, or came to no end: then its lease ends.
    simulation.now_ms += 3_100
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=25_000)
    simulation.now_ms += 25_000
    assert simulation.reconciler.reconcile(POOL).retry_after_ms == 0
    assert _states(simulation) == [InstanceState.STARTING]


def test_a_look_that_another_was_faster_than_is_to_come_again() -> None:
    simulation = _make_fleet(work=1)

    def leases() -> None:
        assert Ledger(simulation.table, POOL).acquire_lease(simulation.now_ms)

    simulation.boot(
        InterleavingTable(simulation.table, leases), lambda settings: simulation.watched
    )
    assert simulation.reconciler.reconcile(POOL) == PassResult(retry_after_ms=PASS_MS)


def test_there_is_no_need_to_look_again_where_nothing_is_wanted() -> None:
    assert _make_fleet().reconciler.reconcile(POOL) == PassResult()


def test_a_full_zone_costs_no_pass() -> None:
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


def test_a_pool_hears_that_nothing_is_left_once_nothing_is_on_its_way() -> None:
    simulation = _make_fleet(work=2, rules=FakeRules(boot_ms=(60_000, 60_000)))
    simulation.cloud.capacity = {ON_DEMAND.name: 1}
    # One of two comes, and the next pass asks for the other.
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
    # What it would launch is listed with its price.
    assert _fleet(simulation).offered == (ON_DEMAND,)


def test_what_comes_of_a_part_of_a_launch_is_asked_for_elsewhere() -> None:
    simulation = _make_fleet(SPOT, ON_DEMAND, work=3)
    simulation.cloud.capacity = {SPOT.name: 1}
    simulation.run(10)
    offerings = sorted(row.offering.name for row in read_instances(simulation.table, POOL))
    assert offerings == [ON_DEMAND.name, ON_DEMAND.name, SPOT.name]


def test_a_quota_is_told_and_an_instance_comes_soon_after_it_is_raised() -> None:
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


def test_what_was_given_up_opens_with_one_instance_once_it_boots() -> None:
    simulation = _make_fleet(work=3, launch_error_limit=1, starting_ms_max=60_000)
    simulation.cloud.rules = replace(CALM, never_boots_share=1.0)
    # Three that never enrol: one error, which is the limit.
    simulation.run(15 * 60)
    assert _fleet(simulation).health[ON_DEMAND.name].given_up
    simulation.run(3 * 3_600)
    # Half an hour to an hour between two: at most six in three hours.
    assert 3 + 3 <= len(simulation.cloud.machines) <= 3 + 6
    simulation.cloud.rules = CALM
    simulation.run_until(lambda: _states(simulation).count(InstanceState.RUNNING) == 3, 3_700)


def test_a_cloud_that_cannot_be_asked_ends_and_begins_nothing() -> None:
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


def test_a_launch_that_happened_without_an_answer_is_asked_for_again() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
    simulation.step()
    (intent,) = read_intents(simulation.table, POOL)
    assert len(simulation.cloud.machines) == 1
    simulation.cloud.rules = CALM
    simulation.step()
    assert read_intents(simulation.table, POOL) == []
    assert [row.intent for row in read_instances(simulation.table, POOL)] == [intent.id]
    assert len(simulation.cloud.machines) == 1


def test_a_throttled_repetition_says_nothing_about_the_launch() -> None:
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


def test_a_launch_that_is_never_answered_is_settled_by_the_list() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
    # More than 10 minutes; the machine has been listed since.
    simulation.run(615)
    assert read_intents(simulation.table, POOL) == []
    assert len(read_instances(simulation.table, POOL)) == len(simulation.cloud.machines) == 1


def test_a_launch_that_never_happened_is_settled_too() -> None:
    simulation = _make_fleet(work=1, rules=FakeRules(lost_request_share=1.0))
    simulation.run(615)
    simulation.cloud.rules = CALM
    assert _fleet(simulation).health[ON_DEMAND.name].kind is ErrorKind.UNKNOWN
    simulation.run(30)
    assert len(read_instances(simulation.table, POOL)) == len(simulation.cloud.machines) == 1


def test_an_unusable_request_is_told() -> None:
    simulation = _make_fleet(work=1)
    simulation.cloud.failing = ConfigurationError("there is no image ami-1")
    simulation.step()
    health = _fleet(simulation).health[ON_DEMAND.name]
    assert (health.kind, health.message) == (ErrorKind.CONFIGURATION, "there is no image ami-1")


def test_an_agent_that_enrols_in_the_last_moment_keeps_its_machine() -> None:
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
    # Starting for a minute, away for ten: then it would be ended.
    simulation.run(11 * 60 + 10)
    assert table.acted
    simulation.run(60)
    assert _states(simulation) == [InstanceState.RUNNING]
    assert len(simulation.cloud.machines) == 1


def test_another_provider_waits_until_the_former_ones_instances_have_gone() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(10)
    assert simulation.pool.settings is not None
    simulation.pool.settings = replace(simulation.pool.settings, section='{"region": "eu-2"}')
    simulation.run(10)
    # It has work, which it may finish.
    assert _states(simulation) == [InstanceState.DRAINING]
    simulation.pool.work.clear()
    simulation.run_until(simulation.is_empty, 60)
    simulation.pool.work.append(Work(4, 10_000))
    simulation.run(10)
    assert '"eu-2' in _fleet(simulation).provider.replace("\\", "")
    assert _states(simulation) == [InstanceState.RUNNING]


def test_a_removed_pool_is_cleared_and_forgotten() -> None:
    simulation = _make_fleet(work=1)
    simulation.run(10)
    simulation.pool.settings = None
    simulation.pool.work.clear()
    simulation.run_until(simulation.is_empty, 60)
    simulation.run(10)
    assert read_fleet(simulation.table, POOL) is None


class TestSweep:
    def test_what_nobody_claims_ends_after_the_grace(self) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        simulation.watched.on_terminate = lambda ids: None
        (row,) = read_instances(simulation.table, POOL)
        simulation.table.commit((Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),))
        simulation.run(200)
        assert not simulation.cloud.machines[row.id].is_billed(simulation.now_ms)
        # And what took its place goes on.
        assert _states(simulation) == [InstanceState.RUNNING]

    def test_an_orphan_of_a_time_in_the_future_ends_too(self) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        simulation.watched.on_terminate = lambda ids: None
        (row,) = read_instances(simulation.table, POOL)
        simulation.table.commit((Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),))
        # The clock was a day ahead when it was launched.
        launched_ms = simulation.now_ms + 24 * 3_600_000
        simulation.cloud.machines[row.id] = replace(
            simulation.cloud.machines[row.id], launched_ms=launched_ms
        )
        assert simulation.orphan_cleaner.terminate_orphans() == [row.id]

    def test_it_works_when_the_pool_is_gone(self) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        simulation.watched.on_terminate = lambda ids: None
        (row,) = read_instances(simulation.table, POOL)
        gone: list[Write] = [
            Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),
            Delete(Key("fleets", POOL), Expect.PRESENT),
        ]
        simulation.table.commit(gone)
        simulation.pool.settings = None
        simulation.run(200)
        assert not simulation.cloud.live_machines()

    def test_what_is_launched_for_is_nobodys_orphan(self) -> None:
        simulation = _make_fleet(work=1, rules=FakeRules(timeout_share=1.0))
        simulation.run(300)
        assert (
            len(read_intents(simulation.table, POOL))
            == len(list(simulation.cloud.live_machines()))
            == 1
        )

    @pytest.mark.parametrize("cluster", ["another"])
    def test_another_clusters_instances_are_its_own(self, cluster: str) -> None:
        simulation = _make_fleet(work=1)
        simulation.run(10)
        (intent,) = [instance.intent for instance in read_instances(simulation.table, POOL)]
        simulation.cloud.launch(IntentRow(intent, cluster, POOL, ON_DEMAND, 1, "t", 0))
        simulation.run(300)
        assert len(list(simulation.cloud.live_machines())) == 2


def test_a_pool_that_the_table_refuses_holds_up_no_other_and_is_named() -> None:
    seen: list[str] = []

    class RefusingReconciler(Reconciler):
        def __init__(self) -> None:
            pass

        def pools_to_reconcile(self) -> list[str]:
            return ["bad", "hot", "good"]

        def reconcile(self, pool: str) -> PassResult:
            seen.append(pool)
            if pool == "hot":
                raise Unavailable("throttled")
            if pool == "bad":
                raise SettingsInvalid("provider: must be a map")
            return PassResult(retry_after_ms=3_000)

    # Settings that cannot be used are their owner's to mend.
    with pytest.raises(PoolsFailed, match=r"^pools that failed: hot$"):
        RefusingReconciler().reconcile_pools()
    assert seen == ["bad", "hot", "good"]


def test_whoever_provisions_hears_when_all_pools_can_be_looked_at_again() -> None:
    waits = {"a": 2_000, "b": 4_000, "c": 0}

    class EarlyReconciler(Reconciler):
        def __init__(self) -> None:
            pass

        def pools_to_reconcile(self) -> list[str]:
            return list(waits)

        def reconcile(self, pool: str) -> PassResult:
            return PassResult(retry_after_ms=waits[pool])

    assert EarlyReconciler().reconcile_pools() == 4_000
