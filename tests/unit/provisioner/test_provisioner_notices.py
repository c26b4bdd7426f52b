"""Notices about instances show in the cloud's list."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from control_plane.fleet.notices import InstanceNotice
from control_plane.fleet.records import IntentRow, Offering
from provisioner.clouds.notices import CloudWithNotices
from provisioner.clouds.provider import CloudInstance
from provisioner.model import InstanceStatus


@dataclass
class FixedList:
    """A cloud with these instances, and of these alone."""

    instances: list[CloudInstance] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def offerings(self) -> tuple[Offering, ...]:
        return ()

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        return ()

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        return self.instances

    def terminate(self, ids: Sequence[str]) -> None:
        self.ended += ids


def instance(name: str, notice_ms: int | None = None) -> CloudInstance:
    return CloudInstance(name, InstanceStatus.RUNNING, 1_000, {}, notice_ms)


def test_an_announced_end_and_advice_show_where_the_cloud_says_nothing() -> None:
    cloud = FixedList([instance("i-1"), instance("i-2"), instance("i-3", 7_000)])
    told = [InstanceNotice("i-1", 9_000), InstanceNotice("i-2"), InstanceNotice("i-9", 5_000)]
    found = CloudWithNotices(cloud, lambda: told).list_instances("c1")
    assert [(it.id, it.notice_ms, it.rebalance) for it in found] == [
        ("i-1", 9_000, False),
        ("i-2", None, True),
        ("i-3", 7_000, False),
    ]


def test_nobody_is_asked_about_a_cloud_without_instances() -> None:
    def fail_if_read() -> list[InstanceNotice]:
        raise AssertionError("there is nothing to ask about")

    assert CloudWithNotices(FixedList(), fail_if_read).list_instances("c1") == []
