"""A cloud provider whose lists include notices that were reported by agents or events."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from control_plane.fleet.notices import InstanceNotice
from control_plane.fleet.records import IntentRow, Offering
from provisioner.clouds.provider import CloudInstance, CloudProvider


class CloudWithNotices:
    """A cloud provider, with `notices` added to the instances that it lists; they are read only if
    there are instances.
    """

    def __init__(
        self, cloud: CloudProvider, notices: Callable[[], Iterable[InstanceNotice]]
    ) -> None:
        self._cloud = cloud
        self._notices = notices

    def offerings(self) -> tuple[Offering, ...]:
        """The offerings of the cloud."""
        return self._cloud.offerings()

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch instances."""
        return self._cloud.launch(request)

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List instances with their notices."""
        instances = self._cloud.list_instances(cluster, pool)
        notices = list(self._notices()) if instances else []
        ends = {it.instance: it.deadline_ms for it in notices if it.deadline_ms is not None}
        advised = {it.instance for it in notices if it.deadline_ms is None}
        return [
            replace(
                it,
                notice_ms=ends.get(it.id, it.notice_ms),
                rebalance=it.rebalance or it.id in advised,
            )
            for it in instances
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances."""
        self._cloud.terminate(ids)
