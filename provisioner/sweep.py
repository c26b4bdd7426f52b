"""Ends the instances that nobody claims.

An instance is claimed by its row, or by the launch that it is tagged with while that is under way.
The list comes first, then the launches, then the rows: a launch that is closed in between has
written its rows by then, so whatever is claimed by neither was launched for nobody. It needs no
pool: the places where instances were ever launched have rows of their own.
"""

import logging
from collections.abc import Callable, Iterable

from control_plane.fleet.rows import CLOUDS, instances, intents, read_all
from control_plane.state.table import StateTable
from provisioner.clouds.provider import INTENT_TAG, POOL_TAG, CloudError, CloudInstance
from provisioner.model import InstanceStatus
from provisioner.reconcile import TERMINATED_AT_ONCE_MAX, Clouds
from provisioner.settings import SettingsInvalid, read_settings

log = logging.getLogger(__name__)

SWEEP_MS = 60_000
# Not needed by the order of the readings: it is there for what we did not think of.
GRACE_MS = 90_000

_OVER = frozenset({InstanceStatus.TERMINATING, InstanceStatus.TERMINATED})


class Sweep:
    """Sweeps the instances of the cluster `cluster`, of all pools that are or were."""

    def __init__(
        self, table: StateTable, clouds: Clouds, cluster: str, clock: Callable[[], int]
    ) -> None:
        self._table = table
        self._clouds = clouds
        self._cluster = cluster
        self._clock = clock

    def sweep(self) -> list[str]:
        """One pass, of which one should come each SWEEP_MS; returns whose end was asked for. A
        place that does not answer waits for the next. Raises TableError.
        """
        ended: list[str] = []
        for row in list(read_all(self._table, CLOUDS)):
            try:
                cloud = self._clouds(read_settings(row.body.decode()))
                found = cloud.list(self._cluster)
                ids = self._orphans(found)
                for first in range(0, len(ids), TERMINATED_AT_ONCE_MAX):
                    cloud.terminate(ids[first : first + TERMINATED_AT_ONCE_MAX])
            except (CloudError, SettingsInvalid) as error:
                log.warning("the sweep of %s was cut short: %s", row.key.sort, error)
                continue
            ended += ids
        return ended

    def _orphans(self, found: Iterable[CloudInstance]) -> list[str]:
        now_ms = self._clock()
        old = [it for it in found if it.status not in _OVER and now_ms - it.launched_ms >= GRACE_MS]
        pools = sorted({it.tags.get(POOL_TAG, "") for it in old} - {""})
        under_way = {(pool, intent.id) for pool in pools for intent in intents(self._table, pool)}
        known = {row.id for pool in pools for row in instances(self._table, pool)}
        return [
            it.id
            for it in old
            if it.id not in known
            and (it.tags.get(POOL_TAG, ""), it.tags.get(INTENT_TAG, "")) not in under_way
        ]
