"""Logs of boots that failed: fetched once, bounded, masked, and kept with the instances' rows."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from control_plane.fleet.records import InstanceRow, InstanceState
from detcloud.shared.boot_log import clean_boot_log
from provisioner.clouds.provider import CloudError, CloudInstance, CloudProvider

log = logging.getLogger(__name__)

# Of a batch that fails alike the first few tell what the others would.
FETCHES_MAX = 2

_ENDS = frozenset({InstanceState.TERMINATING, InstanceState.ENDED})


class BootLogs:
    """The boot logs that one pass may still fetch."""

    def __init__(self) -> None:
        self._left = FETCHES_MAX

    def add_logs(
        self,
        cloud: CloudProvider,
        changed: Iterable[InstanceRow],
        before: Mapping[str, InstanceRow],
        listed: Mapping[str, CloudInstance],
    ) -> tuple[InstanceRow, ...]:
        """Return the changed rows, with the logs of those that begin to end before their agent
        enrolled: what the instance reported itself, or else what its cloud has.
        """
        return tuple(
            replace(row, boot_log=self._boot_log(cloud, row, listed))
            if _has_failed(row) and before[row.id].state not in _ENDS
            else row
            for row in changed
        )

    def _boot_log(
        self, cloud: CloudProvider, row: InstanceRow, listed: Mapping[str, CloudInstance]
    ) -> str:
        if row.id in listed and (report := listed[row.id].boot_report):
            return clean_boot_log(report)
        if self._left <= 0:
            return ""
        self._left -= 1
        try:
            return clean_boot_log(cloud.boot_log(row.id))
        except CloudError as error:
            log.info("the boot log of instance %s cannot be read: %s", row.id, error)
            return ""


def _has_failed(row: InstanceRow) -> bool:
    """Whether an instance ends whose agent never came, and nobody wanted that."""
    return row.state in _ENDS and row.connected_ms is None and row.notice_ms is None
