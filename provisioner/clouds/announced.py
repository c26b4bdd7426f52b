"""A provider whose instances carry what was announced about them, where its lists do not say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from control_plane.fleet.notices import Announcement
from control_plane.fleet.records import IntentRow, Offering
from provisioner.clouds.provider import CloudInstance, CloudProvider


class AnnouncedCloud:
    """`cloud`, with the announcements that `known` gives, asked for where there are instances."""

    def __init__(self, cloud: CloudProvider, known: Callable[[], Iterable[Announcement]]) -> None:
        self._cloud = cloud
        self._known = known

    def offerings(self) -> tuple[Offering, ...]:
        """See CloudProvider."""
        return self._cloud.offerings()

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """See CloudProvider."""
        return self._cloud.launch(request)

    def list(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """See CloudProvider."""
        found = self._cloud.list(cluster, pool)
        told = list(self._known()) if found else []
        ends = {it.instance: it.deadline_ms for it in told if it.deadline_ms is not None}
        advised = {it.instance for it in told if it.deadline_ms is None}
        return [
            replace(
                it,
                notice_ms=ends.get(it.id, it.notice_ms),
                rebalance=it.rebalance or it.id in advised,
            )
            for it in found
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """See CloudProvider."""
        self._cloud.terminate(ids)
