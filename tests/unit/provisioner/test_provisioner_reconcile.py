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
from tests.simulation.fleet import BEGAN_MS, ON_DEMAND, POOL, SPOT, SPOT_B, FleetWorld, Work

CALM = FakeRules()


def _world(*sold: Offering, rules: FakeRules = CALM, work: int = 0, **settings: Any) -> FleetWorld:
    given: dict[str, Any] = {"kind": "fake", "max_instances": 3, "idle_ms_max": 60_000} | settings
    world = FleetWorld(ProvisionerSettings(**given), rules, sold or (ON_DEMAND,))
    world.pool.work = [Work(4, 10_000_000) for _ in range(work)]
    return world


def _fleet(world: FleetWorld) -> FleetRow:
    fleet = read_fleet(world.table, POOL)
    assert fleet is not None
    return fleet


def _states(world: FleetWorld) -> list[InstanceState]:
    return [row.state for row in read_instances(world.table, POOL)]


def test_a_pool_that_wants_nothing_costs_no_writes() -> None:
    world = _world()
    world.run(60)
    assert read_fleet(world.table, POOL) is None
    assert world.watched.calls == 0


def test_a_pool_goes_from_nothing_to_its_work_and_back() -> None:
    world = _world(work=2)
    world.step()
    assert _states(world) == [InstanceState.STARTING] * 2
    world.run(10)
    assert _states(world) == [InstanceState.RUNNING] * 2
    world.pool.work.clear()
    # Idle for 60 s, drained, seen to have no work, ended, seen to be gone.
    world.run(90)
    assert _states(world) == []
    past, more = read_past_instances(world.table, POOL)
    assert [row.reason for row in past] == ["it was idle for 60 s"] * 2
    assert not more
    assert not world.cloud.live_machines()


def test_nothing_new_starts_where_notice_was_given() -> None:
    world = _world(SPOT, work=1)
    world.run(20)
    (row,) = read_instances(world.table, POOL)
    world.cloud.interrupt(row.id, 120_000)
    world.run(10)
    assert row.id in world.pool.draining


def test_a_pool_at_rest_is_not_written() -> None:
    world = _world(work=1)
    world.run(60)
    world.pool.work.clear()
    world.run_until(world.is_empty, 120)
    world.run(10)
    before = _fleet(world)
    world.run(60)
    assert _fleet(world) == before


def test_passes_come_at_most_every_five_seconds() -> None:
    world = _world(work=1)
    world.step()
    calls = world.watched.calls
    world.now_ms += 4_999
    world.reconciler.reconcile(POOL)
    assert world.watched.calls == calls
    world.now_ms += 1
    world.reconciler.reconcile(POOL)
    assert world.watched.calls == calls + 1


def test_one_who_holds_the_lease_is_left_alone() -> None:
    world = _world(work=1)
    assert Ledger(world.table, POOL).acquire_lease(BEGAN_MS + 1_000)
    world.step()
    assert world.watched.calls == 0
    # It holds for 30 s; whoever slept longer finds that somebody else went on.
    world.run(40)
    assert _states(world) == [InstanceState.RUNNING]


def test_a_look_that_is_too_early_says_when_to_look_again() -> None:
    world = _world(work=1)
    assert world.reconciler.reconcile(POOL).retry_after_ms == 0
    world.now_ms += 1_900
    assert world.reconciler.reconcile(POOL) == PassResult(retry_after_ms=3_100)
    world.now_ms += 3_100
    assert world.reconciler.reconcile(POOL).retry_after_ms == 0


def test_a_look_during_a_pass_says_when_that_is_over_and_five_seconds_old() -> None:
    world = _world(work=1)
    assert Ledger(world.table, POOL).acquire_lease(world.now_ms)
    world.now_ms += 1_900
    assert world.reconciler.reconcile(POOL) == PassResult(retry_after_ms=3_100)
    # It takes longer than others, or came to no end: then its lease ends.
    world.now_ms += 3_100
    assert world.reconciler.reconcile(POOL) == PassResult(retry_after_ms=25_000)
    world.now_ms += 25_000
    assert world.reconciler.reconcile(POOL).retry_after_ms == 0
    assert _states(world) == [InstanceState.STARTING]


def test_a_look_that_another_was_faster_than_is_to_come_again() -> None:
    world = _world(work=1)

    def leases() -> None:
        assert Ledger(world.table, POOL).acquire_lease(world.now_ms)

    world.boot(InterleavingTable(world.table, leases), lambda settings: world.watched)
    assert world.reconciler.reconcile(POOL) == PassResult(retry_after_ms=PASS_MS)


def test_there_is_no_need_to_look_again_where_nothing_is_wanted() -> None:
    assert _world().reconciler.reconcile(POOL) == PassResult()


def test_a_full_zone_costs_no_pass() -> None:
    world = _world(SPOT, SPOT_B, ON_DEMAND, work=1)
    world.cloud.capacity = {SPOT.name: 0, SPOT_B.name: 0}
    world.step()
    (row,) = read_instances(world.table, POOL)
    assert row.offering == ON_DEMAND
    health = _fleet(world).health
    assert {name: it.kind for name, it in health.items()} == {
        SPOT.name: ErrorKind.CAPACITY,
        SPOT_B.name: ErrorKind.CAPACITY,
        ON_DEMAND.name: None,
    }


def test_a_pool_hears_that_nothing_is_left_once_nothing_is_on_its_way() -> None:
    world = _world(work=2, rules=FakeRules(boot_ms=(60_000, 60_000)))
    world.cloud.capacity = {ON_DEMAND.name: 1}
    # One of two comes, and the next pass asks for the other.
    world.run(10)
    assert _states(world) == [InstanceState.STARTING]
    assert _fleet(world).health[ON_DEMAND.name].kind is ErrorKind.CAPACITY
    assert world.pool.supply == ("", 0)
    world.run_until(lambda: world.pool.supply != ("", 0), 120)
    assert _states(world) == [InstanceState.RUNNING]
    closed, until_ms = world.pool.supply
    assert closed.startswith(f"no offering has capacity or quota; {ON_DEMAND.name}: ")
    assert until_ms == _fleet(world).health[ON_DEMAND.name].retry_ms
    world.cloud.capacity = {}
    world.run_until(lambda: _states(world) == [InstanceState.RUNNING] * 2, 1_200)
    assert world.pool.supply == ("", 0)
    # What it would launch is listed with its price.
    assert _fleet(world).offered == (ON_DEMAND,)


def test_what_comes_of_a_part_of_a_launch_is_asked_for_elsewhere() -> None:
    world = _world(SPOT, ON_DEMAND, work=3)
    world.cloud.capacity = {SPOT.name: 1}
    world.run(10)
    offerings = sorted(row.offering.name for row in read_instances(world.table, POOL))
    assert offerings == [ON_DEMAND.name, ON_DEMAND.name, SPOT.name]


def test_a_quota_is_told_and_an_instance_comes_soon_after_it_is_raised() -> None:
    world = _world(work=1, launch_error_limit=3)
    world.cloud.quota = {Market.ON_DEMAND: 0}
    # At least 1, 2, 4, 8 and 15 minutes lie between two attempts, then 15 to 30: eight hours are
    # enough for more than ten of them.
    world.run(8 * 3_600)
    fleet = _fleet(world)
    health = fleet.health[ON_DEMAND.name]
    assert (health.errors > 10, health.given_up) == (True, False)
    assert fleet.waits.startswith(
        f"no instance can be launched: {ON_DEMAND.name}: quota: the quota of 0 on_demand "
        "slots is used "
        "up (tried again in "
    )
    world.cloud.quota = {}
    world.run(30 * 60 + 30)
    assert _states(world) == [InstanceState.RUNNING]
    assert _fleet(world).waits == ""


def test_what_was_given_up_opens_with_one_instance_once_it_boots() -> None:
    world = _world(work=3, launch_error_limit=1, starting_ms_max=60_000)
    world.cloud.rules = replace(CALM, never_boots_share=1.0)
    # Three that never enrol: one error, which is the limit.
    world.run(15 * 60)
    assert _fleet(world).health[ON_DEMAND.name].given_up
    world.run(3 * 3_600)
    # Half an hour to an hour between two: at most six in three hours.
    assert 3 + 3 <= len(world.cloud.machines) <= 3 + 6
    world.cloud.rules = CALM
    world.run_until(lambda: _states(world).count(InstanceState.RUNNING) == 3, 3_700)


def test_a_cloud_that_cannot_be_asked_ends_and_begins_nothing() -> None:
    world = _world(work=1)
    world.run(10)
    world.cloud.rules = FakeRules(throttled_share=1.0)
    world.pool.work.append(Work(4, 10_000_000))
    world.run(60)
    assert _fleet(world).trouble == "throttled: too many requests"
    assert _states(world) == [InstanceState.RUNNING]
    world.cloud.rules = CALM
    world.run(10)
    assert _fleet(world).trouble == ""
    assert len(_states(world)) == 2


def test_a_launch_that_happened_without_an_answer_is_asked_for_again() -> None:
    world = _world(work=1, rules=FakeRules(timeout_share=1.0))
    world.step()
    (intent,) = read_intents(world.table, POOL)
    assert len(world.cloud.machines) == 1
    world.cloud.rules = CALM
    world.step()
    assert read_intents(world.table, POOL) == []
    assert [row.intent for row in read_instances(world.table, POOL)] == [intent.id]
    assert len(world.cloud.machines) == 1


def test_a_throttled_repetition_says_nothing_about_the_launch() -> None:
    world = _world(work=1, rules=FakeRules(timeout_share=1.0))
    world.step()
    world.cloud.rules = CALM
    launch = world.cloud.launch

    def throttle_launch(request: IntentRow) -> Any:
        raise ThrottlingError("too many launches")

    world.cloud.launch = throttle_launch  # type: ignore[method-assign]
    world.run(20)
    assert len(read_intents(world.table, POOL)) == 1
    world.cloud.launch = launch  # type: ignore[method-assign]
    world.step()
    assert len(read_instances(world.table, POOL)) == len(world.cloud.machines) == 1


def test_a_launch_that_is_never_answered_is_settled_by_the_list() -> None:
    world = _world(work=1, rules=FakeRules(timeout_share=1.0))
    # More than 10 minutes; the machine has been listed since.
    world.run(615)
    assert read_intents(world.table, POOL) == []
    assert len(read_instances(world.table, POOL)) == len(world.cloud.machines) == 1


def test_a_launch_that_never_happened_is_settled_too() -> None:
    world = _world(work=1, rules=FakeRules(lost_request_share=1.0))
    world.run(615)
    world.cloud.rules = CALM
    assert _fleet(world).health[ON_DEMAND.name].kind is ErrorKind.UNKNOWN
    world.run(30)
    assert len(read_instances(world.table, POOL)) == len(world.cloud.machines) == 1


def test_an_unusable_request_is_told() -> None:
    world = _world(work=1)
    world.cloud.failing = ConfigurationError("there is no image ami-1")
    world.step()
    health = _fleet(world).health[ON_DEMAND.name]
    assert (health.kind, health.message) == (ErrorKind.CONFIGURATION, "there is no image ami-1")


def test_an_agent_that_enrols_in_the_last_moment_keeps_its_machine() -> None:
    never = FakeRules(boot_ms=(10**9, 10**9))
    world = _world(work=1, rules=never, starting_ms_max=60_000, max_instances=1)

    def is_ending(writes: Any) -> bool:
        return any(b"TERMINATING" in it.body for it in writes if isinstance(it, Put))

    def enrols() -> None:
        (machine,) = world.cloud.machines.values()
        machine.boots_ms = world.now_ms
        world.pool.enrol(machine.id)

    table = InterleavingTable(world.table, enrols, is_ending)
    world.boot(table, lambda settings: world.watched)
    # Starting for a minute, away for ten: then it would be ended.
    world.run(11 * 60 + 10)
    assert table.acted
    world.run(60)
    assert _states(world) == [InstanceState.RUNNING]
    assert len(world.cloud.machines) == 1


def test_another_provider_waits_until_the_former_ones_instances_have_gone() -> None:
    world = _world(work=1)
    world.run(10)
    assert world.pool.settings is not None
    world.pool.settings = replace(world.pool.settings, section='{"region": "eu-2"}')
    world.run(10)
    # It has work, which it may finish.
    assert _states(world) == [InstanceState.DRAINING]
    world.pool.work.clear()
    world.run_until(world.is_empty, 60)
    world.pool.work.append(Work(4, 10_000))
    world.run(10)
    assert '"eu-2' in _fleet(world).provider.replace("\\", "")
    assert _states(world) == [InstanceState.RUNNING]


def test_a_removed_pool_is_cleared_and_forgotten() -> None:
    world = _world(work=1)
    world.run(10)
    world.pool.settings = None
    world.pool.work.clear()
    world.run_until(world.is_empty, 60)
    world.run(10)
    assert read_fleet(world.table, POOL) is None


class TestSweep:
    def test_what_nobody_claims_ends_after_the_grace(self) -> None:
        world = _world(work=1)
        world.run(10)
        world.watched.on_terminate = lambda ids: None
        (row,) = read_instances(world.table, POOL)
        world.table.commit((Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),))
        world.run(200)
        assert not world.cloud.machines[row.id].is_billed(world.now_ms)
        # And what took its place goes on.
        assert _states(world) == [InstanceState.RUNNING]

    def test_an_orphan_of_a_time_in_the_future_ends_too(self) -> None:
        world = _world(work=1)
        world.run(10)
        world.watched.on_terminate = lambda ids: None
        (row,) = read_instances(world.table, POOL)
        world.table.commit((Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),))
        # The clock was a day ahead when it was launched.
        launched_ms = world.now_ms + 24 * 3_600_000
        world.cloud.machines[row.id] = replace(
            world.cloud.machines[row.id], launched_ms=launched_ms
        )
        assert world.orphan_cleaner.terminate_orphans() == [row.id]

    def test_it_works_when_the_pool_is_gone(self) -> None:
        world = _world(work=1)
        world.run(10)
        world.watched.on_terminate = lambda ids: None
        (row,) = read_instances(world.table, POOL)
        gone: list[Write] = [
            Delete(Key(f"instances#{POOL}", row.id), Expect.PRESENT),
            Delete(Key("fleets", POOL), Expect.PRESENT),
        ]
        world.table.commit(gone)
        world.pool.settings = None
        world.run(200)
        assert not world.cloud.live_machines()

    def test_what_is_launched_for_is_nobodys_orphan(self) -> None:
        world = _world(work=1, rules=FakeRules(timeout_share=1.0))
        world.run(300)
        assert len(read_intents(world.table, POOL)) == len(list(world.cloud.live_machines())) == 1

    @pytest.mark.parametrize("cluster", ["another"])
    def test_another_clusters_instances_are_its_own(self, cluster: str) -> None:
        world = _world(work=1)
        world.run(10)
        (intent,) = [it.intent for it in read_instances(world.table, POOL)]
        world.cloud.launch(IntentRow(intent, cluster, POOL, ON_DEMAND, 1, "t", 0))
        world.run(300)
        assert len(list(world.cloud.live_machines())) == 2


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
