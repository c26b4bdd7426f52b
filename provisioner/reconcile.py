"""Reconciliation: passes that launch and end instances until a pool has the wanted number.

A pass lists the cloud's instances, resumes open launches, reads the pool's state and plans. It
commits each planned action before the cloud request, and the result after it. Each commit requires
the fleet's revision of the pass. A pass may stop at any point: the next pass repeats open launches
with their tokens, and terminations until the cloud lists the instance as ended.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from random import Random

from control_plane.actors.agent.actor import leases_partition
from control_plane.fleet.notices import InstanceNotice
from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    Offering,
    OfferingHealth,
)
from control_plane.fleet.rows import CLOUDS, read_fleets
from control_plane.state.table import Check, Conflict, Expect, Key, Put, StateTable
from provisioner import offerings
from provisioner.boot_logs import BootLogs
from provisioner.clouds.provider import (
    INTENT_TAG,
    CloudError,
    CloudInstance,
    CloudProvider,
    LaunchUnderWay,
    NoCapacity,
    OutcomeUnknown,
    ThrottlingError,
)
from provisioner.ledger import LEASE_MS, Ledger
from provisioner.model import (
    MINUTE_MS,
    FleetSnapshot,
    InstanceStatus,
    Launch,
    ObservedInstance,
    PassResult,
    ProvisionerSettings,
    ScalePlan,
)
from provisioner.pools import Pools, PoolSnapshot, for_each_pool
from provisioner.scale_decider import plan_scaling
from provisioner.settings import SettingsInvalid, decode_settings, encode_settings

log = logging.getLogger(__name__)

PASS_MS = 5_000
# Ticks run at least once a minute; a longer gap between passes is an outage of the provisioner.
GAP_MS = 150_000
# Plans in a pass: after a failed launch, the next offering is tried without a wait of PASS_MS.
ATTEMPTS_MAX = 4
# A launch is repeated for this time, which is much shorter than the validity of the token.
INTENT_MS_MAX = 10 * MINUTE_MS
TERMINATION_BATCH_MAX = 100

_ENDING = frozenset(
    {InstanceStatus.STOPPING, InstanceStatus.TERMINATING, InstanceStatus.TERMINATED}
)
_LEAVING = frozenset({InstanceState.DRAINING, InstanceState.TERMINATING})
# Errors of a repeated launch that leave open whether an earlier attempt succeeded.
_INCONCLUSIVE_KINDS = frozenset({ErrorKind.THROTTLED, ErrorKind.AUTH, ErrorKind.UNKNOWN})

CloudFactory = Callable[[ProvisionerSettings], CloudProvider]
"""Returns the cloud provider for a pool's settings. Raises CloudError."""


class Reconciler:
    """The reconciliation of a cluster's pools with the clouds.

    `random` draws the jitter of back-offs. `notices` reads the notices from agents and cloud
    events; it is called only if the cloud lists instances of the pool.
    """

    def __init__(
        self,
        table: StateTable,
        pools: Pools,
        cloud_factory: CloudFactory,
        cluster: str,
        clock: Callable[[], int],
        random: Random,
        notices: Callable[[], Iterable[InstanceNotice]] = lambda: (),
    ) -> None:
        self._table = table
        self._pools = pools
        self._cloud_factory = cloud_factory
        self._cluster = cluster
        self._clock = clock
        self._random = random
        self._notices = notices

    def reconcile_pools(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Reconcile all pools until `stopped` returns True; return the longest `retry_after_ms`.

        Pools with unusable settings are logged and skipped. Raises PoolsFailed at the end if any
        other pool failed.
        """
        waits_ms = [0]

        def reconcile(pool: str) -> None:
            try:
                result = self.reconcile(pool)
            except SettingsInvalid as error:
                log.warning("pool %s cannot be provisioned: %s", pool, error)
                return
            waits_ms.append(result.retry_after_ms)
            for reason in result.reasons:
                log.info("pool %s: %s", pool, reason)

        for_each_pool(takewhile(lambda _: not stopped(), self.pools_to_reconcile()), reconcile)
        return max(waits_ms)

    def pools_to_reconcile(self) -> list[str]:
        """Return the names of pools with a provider or with a fleet row from before, sorted."""
        fleets = (fleet.pool for fleet in read_fleets(self._table))
        return sorted({*self._pools.pool_names(), *fleets})

    def reconcile(self, pool: str) -> PassResult:
        """Run a pass, unless another pass ran within PASS_MS or has the lease, or no work exists.

        Delete the fleet row of a pool without provider and instances. A lost race ends the pass.
        Cloud errors are recorded in the fleet's row. Raises TableError and SettingsInvalid.
        """
        ledger = Ledger(self._table, pool)
        snapshot = self._pools.pool_snapshot(pool)
        settings = _effective_settings(snapshot.settings, ledger)
        if settings is None:
            if ledger.is_empty:
                ledger.delete_fleet_row()
            return PassResult()
        if not _has_work(snapshot, settings, ledger):
            return PassResult()
        now_ms = self._clock()
        age_ms = now_ms - ledger.fleet.passed_ms
        if 0 <= age_ms < PASS_MS:
            return PassResult(retry_after_ms=PASS_MS - age_ms)
        try:
            if not ledger.acquire_lease(now_ms):
                return PassResult(retry_after_ms=_lease_wait_ms(ledger.fleet, now_ms))
            current = _ReconcilePass(self, ledger, settings)
            return PassResult(current.run(), PASS_MS if current.has_launch_under_way else 0)
        except Conflict:
            log.info("pool %s: another pass committed first", pool)
            return PassResult(retry_after_ms=PASS_MS)


class _ReconcilePass:
    """A pass over a pool, under the fleet's lease."""

    def __init__(
        self, reconciler: Reconciler, ledger: Ledger, settings: ProvisionerSettings
    ) -> None:
        self._reconciler = reconciler
        self._ledger = ledger
        self._settings = settings
        self._started_ms = reconciler._clock()
        self._listed: Mapping[str, CloudInstance] = {}
        self._termination_requested: set[str] = set()
        self._reasons: list[str] = []
        self._trouble = ""
        self._offered: tuple[Offering, ...] = ()
        self._boot_logs = BootLogs()
        self.has_launch_under_way = False

    def run(self) -> tuple[str, ...]:
        """Run the whole pass; return the reasons. Raises Conflict if another pass took over."""
        self._record_pass_start()
        try:
            cloud = self._reconciler._cloud_factory(self._settings)
            instances = cloud.list_instances(self._reconciler._cluster, self._ledger.fleet.pool)
            notices = self._reconciler._notices() if instances else ()
            instances = instances_with_notices(instances, notices)
            self._listed = {instance.id: instance for instance in instances}
            offered = offerings.offerings_with_prices(self._settings.offerings, cloud.offerings())
        except CloudError as error:
            self._record_trouble(error)
        else:
            for intent in list(self._ledger.intents.values()):
                self._resume_launch(cloud, intent)
            self._carry_out_plans(cloud, offered)
            self._report_supply(offered)
            self._offered = offerings.cheapest_offerings(offered)
        self._record_pass_end()
        return tuple(self._reasons)

    def _record_pass_start(self) -> None:
        """Commit the end of a gap between passes, and changed settings, which end all back-offs."""
        fleet, now_ms = self._ledger.fleet, self._started_ms
        text = encode_settings(self._settings)
        resumed = fleet.passed_ms > 0 and abs(now_ms - fleet.passed_ms) > GAP_MS
        # A pass with a clock ahead may have written `resumed_ms` and then stopped.
        resumed = resumed or fleet.resumed_ms > now_ms
        after = replace(fleet, resumed_ms=now_ms) if resumed else fleet
        location_put = None
        if text != fleet.provider:
            after = replace(after, provider=text, health={})
            key = Key(CLOUDS, self._settings.location)
            location_put = Put(key, 1, text.encode(), Expect.ANYTHING)
        self._ledger.commit(after, location_put=location_put)

    def _record_pass_end(self) -> None:
        """Commit the time, trouble and offerings of the pass, and release the lease."""
        fleet = self._ledger.fleet
        self._ledger.commit(
            replace(
                fleet,
                passed_ms=self._started_ms,
                leased_until_ms=0,
                trouble=self._trouble,
                offered=self._offered or fleet.offered,
            )
        )

    def _carry_out_plans(self, cloud: CloudProvider, offered: tuple[Offering, ...]) -> None:
        """Plan, commit and act up to ATTEMPTS_MAX times, until a plan needs no successor."""
        for _ in range(ATTEMPTS_MAX):
            # The pool is read after the cloud's list, immediately before the commit.
            snapshot = self._reconciler._pools.pool_snapshot(self._ledger.fleet.pool)
            plan = plan_scaling(self._fleet_snapshot(snapshot, offered))
            intents = self._new_intents(plan.launches)
            number = self._ledger.fleet.launches + len(intents)
            self._ledger.commit(
                replace(plan.fleet, launches=number),
                changed_rows=self._boot_logs.add_logs(
                    cloud, plan.changed_rows, self._ledger.instances, self._listed
                ),
                new_intents=intents,
                checks=_disconnection_checks(self._ledger.fleet.pool, plan, snapshot),
            )
            self._reasons += plan.reasons
            drained = self._notify_agents(snapshot, plan)
            self._terminate_instances(cloud)
            failed = [self._attempt_launch(cloud, intent) for intent in intents]
            # Another plan tries other offerings, and terminates agents that were drained idle.
            if not (drained or any(failed)):
                return

    def _report_supply(self, offered: tuple[Offering, ...]) -> None:
        """Report the pool's supply gap to the pool; no gap while a launch is open or starting."""
        ledger = self._ledger
        starting = ledger.intents or any(
            row.state is InstanceState.STARTING for row in ledger.instances.values()
        )
        gap = offerings.supply_gap(
            self._settings, offered, ledger.fleet.health, self._reconciler._clock()
        )
        self._reconciler._pools.report_supply(ledger.fleet.pool, *(("", 0) if starting else gap))

    def _fleet_snapshot(
        self, snapshot: PoolSnapshot, offered: tuple[Offering, ...]
    ) -> FleetSnapshot:
        """Return the scale decider's input: the ledger, the cloud's list and the pool combined."""
        ledger = self._ledger
        observed = {}
        for name in ledger.instances:
            listed, agent = self._listed.get(name), snapshot.agents.get(name)
            has_enrolled = agent is not None or name in snapshot.leases
            is_joining = agent is None and name in snapshot.joining
            observed[name] = ObservedInstance(
                None, agent, has_enrolled=has_enrolled, is_joining=is_joining
            )
            if listed is not None:
                observed[name] = replace(
                    observed[name],
                    status=listed.status,
                    notice_ms=listed.notice_ms,
                    rebalance=listed.rebalance,
                    end=listed.end,
                    boot_report=listed.boot_report,
                )
        return FleetSnapshot(
            settings=self._settings,
            offerings=offered,
            demand=snapshot.demand,
            fleet=ledger.fleet,
            rows=tuple(ledger.instances.values()),
            observed=observed,
            pending=tuple((intent.offering, intent.count) for intent in ledger.intents.values()),
            now_ms=self._reconciler._clock(),
            random=self._reconciler._random.random,
            api_down=snapshot.api_down,
        )

    def _new_intents(self, launches: Sequence[Launch]) -> list[IntentRow]:
        """Build an intent per launch. The id joins time and launch number; the token is a hash."""
        fleet, now_ms = self._ledger.fleet, self._reconciler._clock()
        intents = []
        for number, launch in enumerate(launches, fleet.launches + 1):
            name = f"{now_ms:x}-{number}"
            token = f"{self._reconciler._cluster}/{fleet.pool}/{name}"
            intents.append(
                IntentRow(
                    id=name,
                    cluster=self._reconciler._cluster,
                    pool=fleet.pool,
                    offering=launch.offering,
                    count=launch.count,
                    token=hashlib.sha256(token.encode()).hexdigest()[:40],
                    created_ms=now_ms,
                    section=self._settings.section,
                    together=launch.together,
                    zone=launch.zone,
                )
            )
        return intents

    def _resume_launch(self, cloud: CloudProvider, intent: IntentRow) -> None:
        """Repeat an open launch. After INTENT_MS_MAX, close the intent with listed instances."""
        if self._started_ms - intent.created_ms <= INTENT_MS_MAX:
            self._attempt_launch(cloud, intent, again=True)
            return
        listed = self._listed.values()
        launched = [instance for instance in listed if instance.tags.get(INTENT_TAG) == intent.id]
        minutes = INTENT_MS_MAX // MINUTE_MS
        error = OutcomeUnknown(f"a launch got no response for {minutes} min")
        self._close_intent(intent, launched, None if launched else error)

    def _attempt_launch(
        self, cloud: CloudProvider, intent: IntentRow, *, again: bool = False
    ) -> bool:
        """Request an intent's launch. Return True after a failure if another offering may succeed.

        Close the intent unless its outcome is unknown. `again`: an earlier pass may have requested
        the launch.
        """
        try:
            launched = cloud.launch(intent)
        except CloudError as error:
            if isinstance(error, OutcomeUnknown) or (again and error.kind in _INCONCLUSIVE_KINDS):
                # The next pass repeats the request with the intent's token.
                if isinstance(error, LaunchUnderWay):
                    self.has_launch_under_way = True
                    self._reasons.append(f"{intent.offering.name} is in progress: {error}")
                else:
                    self._record_trouble(error)
                return False
            self._close_intent(intent, (), error)
            return not isinstance(error, ThrottlingError)
        shortage = None if launched else NoCapacity("the cloud launched no instance")
        self._close_intent(intent, launched, shortage)
        return not launched

    def _close_intent(
        self, intent: IntentRow, launched: Sequence[CloudInstance], error: CloudError | None
    ) -> None:
        """Commit launched instances and the offering's health, delete the intent, note an error."""
        fleet = self._ledger.fleet
        health = fleet.health.get(intent.offering.name, offerings.FRESH)
        after = (
            self._health_after_error(health, error)
            if error
            else offerings.health_after_launch(health, self._reconciler._clock())
        )
        if error is not None:
            self._reasons.append(f"no {intent.offering.name}: {error} ({error.kind})")
        started = [_starting_row(intent, instance) for instance in launched]
        self._ledger.commit(
            replace(fleet, health={**fleet.health, intent.offering.name: after}),
            changed_rows=started,
            closed_intent=intent,
        )

    def _health_after_error(self, health: OfferingHealth, error: CloudError) -> OfferingHealth:
        """Return an offering's health after a launch failed with `error` just now."""
        failure = offerings.Failure(ErrorKind(error.kind), str(error), self._reconciler._clock())
        limit = self._settings.launch_error_limit
        return offerings.health_after_failure(
            health, failure, limit, self._reconciler._random.random
        )

    def _notify_agents(self, snapshot: PoolSnapshot, plan: ScalePlan) -> bool:
        """Drain leaving agents, report ended agents; return whether an idle agent was drained."""
        pools, pool = self._reconciler._pools, self._ledger.fleet.pool
        drained = False
        for row in self._ledger.instances.values():
            agent = snapshot.agents.get(row.id)
            # An agent may still enrol during the termination for not enrolling. After a
            # notice, preempted work would start on the machine again without a drain.
            leaves = row.state in _LEAVING or row.notice_ms is not None
            # A drained agent also gets the notice, which the machine may not have received.
            if leaves and agent is not None and (agent.takes_work or row.notice_ms is not None):
                pools.drain_agent(row.id, row.notice_ms)
                drained = drained or (agent.takes_work and agent.idle)
        for row in plan.changed_rows:
            listed = self._listed.get(row.id)
            is_gone = listed is not None and listed.status is InstanceStatus.TERMINATED
            if row.state is InstanceState.ENDED and is_gone:
                pools.end_agent(pool, row.id)
        return drained

    def _terminate_instances(self, cloud: CloudProvider) -> None:
        """Request the end of TERMINATING instances that the cloud does not list as ending."""
        ids = [
            row.id
            for row in self._ledger.instances.values()
            if row.state is InstanceState.TERMINATING
            and row.id not in self._termination_requested
            and (row.id not in self._listed or self._listed[row.id].status not in _ENDING)
        ]
        self._termination_requested.update(ids)
        try:
            for first in range(0, len(ids), TERMINATION_BATCH_MAX):
                cloud.terminate(ids[first : first + TERMINATION_BATCH_MAX])
        except CloudError as error:
            self._record_trouble(error)

    def _record_trouble(self, error: CloudError) -> None:
        """Keep a cloud error for the fleet's row and the reasons of the pass."""
        self._trouble = f"{error.kind}: {error}"
        self._reasons.append(f"the cloud request failed: {error}")


def instances_with_notices(
    instances: Sequence[CloudInstance], notices: Iterable[InstanceNotice]
) -> list[CloudInstance]:
    """Return the instances, adding the notices for the instance or the instance's reservation."""
    notices = list(notices)
    reports = {item.instance: item.boot_report for item in notices if item.boot_report}
    ends = {item.instance: item.deadline_ms for item in notices if item.deadline_ms is not None}
    advised = {
        item.instance for item in notices if item.deadline_ms is None and not item.boot_report
    }
    return [
        replace(
            instance,
            notice_ms=ends.get(instance.id, ends.get(instance.reservation, instance.notice_ms)),
            rebalance=instance.rebalance or instance.id in advised,
            boot_report=reports.get(instance.id, instance.boot_report),
        )
        for instance in instances
    ]


def _effective_settings(
    settings: ProvisionerSettings | None, ledger: Ledger
) -> ProvisionerSettings | None:
    """Return the settings for the pass. Return None for a pool without a provider.

    After the provider was removed or moved, return the former settings with a maximum of 0
    instances until the former instances have ended.
    """
    text = ledger.fleet.provider
    if not text or ledger.is_empty:
        return settings
    try:
        former = decode_settings(text)
    except SettingsInvalid:
        return settings
    if settings is not None and settings.location == former.location:
        return settings
    return replace(former, min_instances=0, max_instances=0)


def _has_work(snapshot: PoolSnapshot, settings: ProvisionerSettings, ledger: Ledger) -> bool:
    """Whether a pass could change anything. A pool that is scaled to zero costs no writes."""
    fleet = ledger.fleet
    wants = snapshot.demand.has_pending or settings.min_instances > 0
    return not ledger.is_empty or wants or bool(fleet.waits or fleet.trouble)


def _lease_wait_ms(fleet: FleetRow, now_ms: int) -> int:
    """Return the time until the next attempt while another pass holds the lease.

    It is PASS_MS after the start of that pass, or the end of its lease if that time is over.
    """
    left_ms = fleet.leased_until_ms - now_ms
    next_ms = left_ms - LEASE_MS + PASS_MS
    return next_ms if next_ms > 0 else left_ms


def _disconnection_checks(pool: str, plan: ScalePlan, snapshot: PoolSnapshot) -> list[Check]:
    """Return conditions that the plan's disconnected agents have not connected since `snapshot`."""
    return [
        Check(Key(leases_partition(pool), name), snapshot.leases.get(name, Expect.ABSENT))
        for name in plan.disconnected
    ]


def _starting_row(intent: IntentRow, instance: CloudInstance) -> InstanceRow:
    """Return the row of a launched instance, with the intent's time as the launch time."""
    return InstanceRow(
        id=instance.id,
        pool=intent.pool,
        offering=intent.offering,
        state=InstanceState.STARTING,
        launched_ms=intent.created_ms,
        intent=intent.id,
        zone=instance.zone,
    )
