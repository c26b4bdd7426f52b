"""Reconciliation of a cluster's pools with the clouds: when passes run, and in which order."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from random import Random

from control_plane.fleet.notices import InstanceNotice
from control_plane.fleet.records import FleetRow
from control_plane.fleet.rows import read_fleets
from control_plane.state.table import Conflict, StateTable
from provisioner.clouds.provider import CloudFactory
from provisioner.ledger import LEASE_MS, Ledger
from provisioner.model import PassResult, ProvisionerSettings
from provisioner.pass_context import PassServices
from provisioner.pools import Pools, PoolSnapshot, for_each_pool
from provisioner.reconcile_pass import ReconcilePass
from provisioner.settings import SettingsInvalid, decode_settings

log = logging.getLogger(__name__)

PASS_MS = 5_000


class Reconciler:
    """The reconciliation of a cluster's pools with the clouds.

    `random` draws the jitter of back-offs. `notices` reads the notices from agents and cloud
    events. A pass calls `notices` only if the pool has instances, in the cloud's list or in stored
    rows.
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
        self._services = PassServices(pools, cloud_factory, cluster, clock, random, notices)

    def reconcile_pools(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Reconcile all pools until `stopped` returns True; return the longest `retry_after_ms`.

        The pools are reconciled in the order of their names. `stopped` is called before each pool;
        True leaves out the remaining pools. Log the decisions and errors of each pass. Log and skip
        pools with unusable settings. Return 0 if no reconciled pool waits for another pass.

        Raises:
            PoolsFailed: a pool failed with any other error, which is logged. The pools after the
                failed pool were reconciled too.
            TableError: the list of pools cannot be read. No pool was reconciled.
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
        """Return the sorted names of the pools with a provider or with a stored fleet row.

        A removed pool keeps a fleet row until its instances have ended. Raises TableError.
        """
        fleets = (fleet.pool for fleet in read_fleets(self._table))
        return sorted({*self._services.pools.pool_names(), *fleets})

    def reconcile(self, pool: str) -> PassResult:
        """Run a pass over a pool: launch, drain and terminate instances, and record the results.

        - The pool has no provider, instances and launches: delete the fleet row, and return an
          empty result.
        - The pool has no work (`_has_work`), or neither a provider nor readable former settings:
          return an empty result without a pass.
        - Another pass began within PASS_MS or has the lease: run no pass. `retry_after_ms` is the
          time until the next attempt.
        - The provider was removed or moved to another location: the pass drains and terminates the
          former instances with the former settings.
        - A lost race ends the pass: `retry_after_ms` is PASS_MS, without reasons.
        - A complete pass: its reasons, and PASS_MS if a launch is in progress, else 0.

        Cloud errors are recorded in the fleet's row and the reasons, and not raised.

        Raises:
            TableError: the state table fails, or another process changed the fleet row before its
                deletion; the next pass continues.
            SettingsInvalid: the pool's provider section is unusable.
        """
        ledger = Ledger(self._table, pool)
        snapshot = self._services.pools.pool_snapshot(pool)
        settings = _effective_settings(snapshot.settings, ledger)
        if settings is None:
            if ledger.is_empty:
                ledger.delete_fleet_row()
            return PassResult()
        if not _has_work(snapshot, settings, ledger):
            return PassResult()
        return self._run_pass(ledger, settings)

    def _run_pass(self, ledger: Ledger, settings: ProvisionerSettings) -> PassResult:
        """Run a pass over the pool of `ledger`, unless another pass is too recent or has the lease.

        - Another pass began within PASS_MS: run no pass; `retry_after_ms` is the rest of this time.
        - Another pass has the lease: run no pass; `retry_after_ms` is the time until the next
          attempt.
        - A lost race ends the pass: `retry_after_ms` is PASS_MS, without reasons.
        - A complete pass: its reasons, and PASS_MS if a launch is in progress, else 0.

        Raises:
            TableError: the state table fails.
            SettingsInvalid: the pool's settings became unusable.
        """
        pool, now_ms = ledger.fleet.pool, self._services.clock()
        age_ms = now_ms - ledger.fleet.passed_ms
        if 0 <= age_ms < PASS_MS:
            return PassResult(retry_after_ms=PASS_MS - age_ms)
        try:
            if not ledger.acquire_lease(now_ms):
                return PassResult(retry_after_ms=_lease_wait_ms(ledger.fleet, now_ms))
            current = ReconcilePass(self._services, ledger, settings)
            current.run()
            wait_ms = PASS_MS if current.record.has_launch_under_way else 0
            return PassResult(tuple(current.record.reasons), wait_ms)
        except Conflict:
            log.info("pool %s: another pass committed first", pool)
            return PassResult(retry_after_ms=PASS_MS)


def _effective_settings(
    settings: ProvisionerSettings | None, ledger: Ledger
) -> ProvisionerSettings | None:
    """Return the settings for the pass: the present or the former settings. Nothing is written.

    The former settings are stored in the fleet's row. The first case that applies decides:

    - The fleet has no instances and launches, or the former settings are missing or unreadable:
      return `settings`, which is None for a pool without a provider.
    - The provider is at its former location (cloud, project and region): return `settings`.
    - The provider was removed or moved: return the former settings with a minimum and a maximum of
      0 instances.
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
    """Whether instances, launches, pending work or a minimum exist, so that a pass has work.

    Also True while the fleet's row shows a reason for waiting or a cloud error, so that a pass
    clears the text. A pool that is scaled to zero costs no writes.
    """
    fleet = ledger.fleet
    wants = snapshot.demand.has_pending or settings.min_instances > 0
    return not ledger.is_empty or wants or bool(fleet.waits or fleet.trouble)


def _lease_wait_ms(fleet: FleetRow, now_ms: int) -> int:
    """Return the time until the next attempt while another pass holds the lease.

    The next attempt is PASS_MS after the start of that pass. If the pass started more than PASS_MS
    ago, the next attempt is at the end of the lease.
    """
    left_ms = fleet.leased_until_ms - now_ms
    next_ms = left_ms - LEASE_MS + PASS_MS
    return next_ms if next_ms > 0 else left_ms
