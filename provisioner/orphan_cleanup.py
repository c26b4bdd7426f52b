"""Garbage collection of orphaned instances: those that the cloud lists and no row accounts for.

An instance is accounted for by its row, or by the launch that it is tagged with while that is under
way. The cloud's list is read first, then the launches, then the rows: a launch that is closed in
between has written its rows by then. No pool is needed: the locations where instances were ever
launched have rows of their own.
"""

import logging
from collections.abc import Callable, Iterable

from control_plane.fleet.rows import CLOUDS, read_instances, read_intents, read_rows
from control_plane.state.table import StateTable
from provisioner.clouds.provider import INTENT_TAG, POOL_TAG, CloudError, CloudInstance
from provisioner.model import InstanceStatus
from provisioner.reconcile import TERMINATION_BATCH_MAX, CloudFactory
from provisioner.settings import SettingsInvalid, decode_settings

log = logging.getLogger(__name__)

ORPHAN_CLEANUP_PERIOD_MS = 60_000
# The order of the reads does not need it: a margin for errors nobody thought of.
GRACE_MS = 90_000

_ENDED = frozenset({InstanceStatus.TERMINATING, InstanceStatus.TERMINATED})


class OrphanCleaner:
    """Terminates orphaned instances of the cluster, of present and former pools."""

    def __init__(
        self, table: StateTable, cloud_factory: CloudFactory, cluster: str, clock: Callable[[], int]
    ) -> None:
        self._table = table
        self._cloud_factory = cloud_factory
        self._cluster = cluster
        self._clock = clock

    def terminate_orphans(self) -> list[str]:
        """Run one pass, due each ORPHAN_CLEANUP_PERIOD_MS; return the ids of terminated instances.
        A location that does not answer waits for the next pass. Raises TableError.
        """
        ended: list[str] = []
        for row in list(read_rows(self._table, CLOUDS)):
            try:
                cloud = self._cloud_factory(decode_settings(row.body.decode()))
                ids = self._orphan_ids(cloud.list_instances(self._cluster))
                for first in range(0, len(ids), TERMINATION_BATCH_MAX):
                    cloud.terminate(ids[first : first + TERMINATION_BATCH_MAX])
            except (CloudError, SettingsInvalid) as error:
                log.warning("the orphan cleanup of %s was cut short: %s", row.key.sort, error)
                continue
            for name in ids:
                log.warning("terminated orphaned instance %s", name)
            ended += ids
        return ended

    def _orphan_ids(self, listed: Iterable[CloudInstance]) -> list[str]:
        now_ms = self._clock()
        live = (instance for instance in listed if instance.status not in _ENDED)
        # A clock may have been ahead when it was launched.
        old = [instance for instance in live if abs(now_ms - instance.launched_ms) >= GRACE_MS]
        pools = sorted({instance.tags.get(POOL_TAG, "") for instance in old} - {""})
        under_way = {
            (pool, intent.id) for pool in pools for intent in read_intents(self._table, pool)
        }
        known = {row.id for pool in pools for row in read_instances(self._table, pool)}
        return [
            instance.id
            for instance in old
            if instance.id not in known
            and (instance.tags.get(POOL_TAG, ""), instance.tags.get(INTENT_TAG, ""))
            not in under_way
        ]
