"""Termination of orphaned instances: instances of the cluster that no row accounts for.

An instance is accounted for by its own row, or by the open launch intent in its tags. The cloud's
list is read first, then the intents, then the instance rows. A launch that is closed in between has
therefore written its instance rows. The cleanup also covers removed pools: every location at which
instances were ever launched has a row of its own.
"""

import logging
from collections.abc import Callable, Iterable

from control_plane.fleet.rows import CLOUDS, read_instances, read_intents
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import StateTable
from provisioner.clouds.provider import (
    INTENT_TAG,
    POOL_TAG,
    CloudError,
    CloudFactory,
    CloudInstance,
    ConfigurationError,
    terminate_in_batches,
)
from provisioner.model import InstanceStatus
from provisioner.settings import SettingsInvalid, decode_settings

log = logging.getLogger(__name__)

ORPHAN_CLEANUP_PERIOD_MS = 60_000
# A safety margin for young instances beyond the protection by the order of the reads.
GRACE_MS = 90_000

_ENDED = frozenset({InstanceStatus.TERMINATING, InstanceStatus.TERMINATED})


class OrphanCleaner:
    """The periodic cleanup of the cluster's orphaned instances, in present and former pools."""

    def __init__(
        self, table: StateTable, cloud_factory: CloudFactory, cluster: str, clock: Callable[[], int]
    ) -> None:
        self._table = table
        self._cloud_factory = cloud_factory
        self._cluster = cluster
        self._clock = clock
        self._unusable: set[str] = set()
        """The locations without a usable cloud, which were logged."""

    def terminate_orphans(self) -> list[str]:
        """Ask the clouds to end the orphaned instances at all locations; return the instances' ids.

        An orphan has neither a row nor the stored record of an open launch, and is older than
        GRACE_MS. Log each id. Log and skip a location whose cloud request fails or whose settings
        are unusable; instances that were ended there before the error are left out of the result.
        A location whose cloud was removed from the cluster is logged once. The state table is only
        read. Return [] without orphans. The caller repeats this every ORPHAN_CLEANUP_PERIOD_MS: an
        instance that still lives is then requested again.

        Raises:
            TableError: the state table fails. The orphans of earlier locations have been requested.
        """
        ended: list[str] = []
        for row in list(read_rows(self._table, CLOUDS)):
            try:
                cloud = self._cloud_factory(decode_settings(row.body.decode()))
                ids = self._orphan_ids(cloud.list_instances(self._cluster))
                terminate_in_batches(cloud, ids)
            except (ConfigurationError, SettingsInvalid) as error:
                if row.key.sort not in self._unusable:
                    log.warning("orphans of %s cannot be found: %s", row.key.sort, error)
                self._unusable.add(row.key.sort)
                continue
            except CloudError as error:
                log.warning("the orphan cleanup of %s was cut short: %s", row.key.sort, error)
                continue
            self._unusable.discard(row.key.sort)
            for name in ids:
                log.warning("terminated orphaned instance %s", name)
            ended += ids
        return ended

    def _orphan_ids(self, listed: Iterable[CloudInstance]) -> list[str]:
        """Return the ids of live instances without an instance row and without a stored intent.

        An intent is the stored record of a launch whose outcome is open. Rows and intents are read
        from the table for the pools in the instances' tags; an instance without a pool's tag has
        neither. Nothing is written. Skip instances in the states TERMINATING and TERMINATED, and
        instances launched less than GRACE_MS ago. A launch time GRACE_MS or further in the future
        comes from a wrong clock and counts as old. Raises TableError.
        """
        now_ms = self._clock()
        live = (instance for instance in listed if instance.status not in _ENDED)
        # A launch time far in the future comes from a clock that was ahead.
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
