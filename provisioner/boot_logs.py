"""Boot logs of instances without an enrolled agent, for storage in the instances' rows.

A log is read once, when the instance begins to end. Its length is bounded and secrets are masked.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from control_plane.fleet.records import InstanceRow, InstanceState
from detcloud.shared.boot_log import clean_boot_log
from provisioner.clouds.provider import CloudError, CloudInstance, CloudProvider

log = logging.getLogger(__name__)

# Instances of a batch usually share the reason of their failure, so a few logs suffice.
FETCHES_MAX = 2

_ENDS = frozenset({InstanceState.TERMINATING, InstanceState.ENDED})


class BootLogs:
    """A reader of boot logs that makes at most FETCHES_MAX cloud requests in a pass."""

    def __init__(self) -> None:
        self._fetches_left = FETCHES_MAX

    def add_logs(
        self,
        cloud: CloudProvider,
        changed: Iterable[InstanceRow],
        before: Mapping[str, InstanceRow],
        listed: Mapping[str, CloudInstance],
    ) -> tuple[InstanceRow, ...]:
        """Return the changed rows, with boot logs for instances that begin to end unenrolled.

        An instance begins to end if the row changes to TERMINATING or ENDED, without any connection
        of the agent so far. The log is the instance's own report, or else the cloud's console
        output, without secrets and of bounded length. The log is "" if no request is left, or if
        the cloud request fails, which is logged. Rows of other instances, also of instances with an
        interruption notice, stay as they are. The order stays, and nothing is stored.

        Args:
            cloud: the cloud, for at most FETCHES_MAX requests of this reader.
            changed: the changed rows.
            before: the rows before the change, by id, with each changed row that ends unenrolled.
            listed: the instances that the cloud lists, by id.
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
        """Return an instance's cleaned boot log, without secrets and of bounded length.

        Return the report of an instance in `listed` that sent a report. Otherwise request the log
        from the cloud, also for an instance that is not listed; this uses up one of FETCHES_MAX
        requests. Return "" if no request is left, or if the request fails, which is logged.
        """
        if row.id in listed and (report := listed[row.id].boot_report):
            return clean_boot_log(report)
        if self._fetches_left <= 0:
            return ""
        self._fetches_left -= 1
        try:
            return clean_boot_log(cloud.boot_log(row.id))
        except CloudError as error:
            log.info("the boot log of instance %s cannot be read: %s", row.id, error)
            return ""


def _has_failed(row: InstanceRow) -> bool:
    """Whether an instance ends or has ended without a connection and without a notice."""
    return row.state in _ENDS and row.connected_ms is None and row.notice_ms is None
