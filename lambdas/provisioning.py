"""One pass of provisioning over all pools, for whoever calls it: a tick, or a thread."""

import logging
from collections.abc import Callable
from itertools import takewhile

from lambdas.pools import for_each_pool
from provisioner.reconcile import Reconciler
from provisioner.settings import SettingsInvalid
from provisioner.sweep import OrphanSweeper

log = logging.getLogger(__name__)


def reconcile_pools(reconciler: Reconciler, stopped: Callable[[], bool] = lambda: False) -> int:
    """Reconcile each pool that has, or may get, instances, until `stopped`. Returns in how many ms
    it is too early for none of them, 0 if it was for none. Raises PoolsFailed once all had their
    turn; settings that cannot be used are only logged.
    """
    waits_ms = [0]

    def reconcile(pool: str) -> None:
        try:
            looked = reconciler.reconcile(pool)
        except SettingsInvalid as error:
            log.warning("pool %s cannot be provisioned: %s", pool, error)
            return
        waits_ms.append(looked.retry_after_ms)
        for reason in looked.reasons:
            log.info("pool %s: %s", pool, reason)

    for_each_pool(takewhile(lambda _: not stopped(), reconciler.pools_to_reconcile()), reconcile)
    return max(waits_ms)


def end_orphans(sweeper: OrphanSweeper) -> int:
    """End the instances that no pool owns; returns how many there were."""
    ended = list(sweeper.terminate_orphans())
    for name in ended:
        log.warning("instance %s was nobody's and is ended", name)
    return len(ended)
