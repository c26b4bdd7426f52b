"""The check of the alarms: stored rows, notifications, crashes and concurrent checks."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from control_plane.actors.event_routes import ROUTES, EventType, Route, Trigger, encode_routes
from control_plane.actors.events import decode_event
from control_plane.actors.job_row import POOLS
from control_plane.alarms.notifications import AlarmNotification, LogNotifier, NotificationFailed
from control_plane.alarms.records import AlarmRow, CostHistory
from control_plane.alarms.rows import (
    ALARMS,
    COST_HISTORY,
    alarm_key,
    decode_alarm,
    decode_history,
    encode_alarm,
    encode_history,
)
from control_plane.alarms.transitions import CLAIM_MS
from control_plane.alarms.watch import AlarmWatch, ChecksFailed
from control_plane.config.alarms import Alarms
from control_plane.engine.engine import Engine
from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceRow,
    InstanceState,
    Market,
    Offering,
    OfferingHealth,
)
from control_plane.fleet.rows import FLEETS, encode_row, instance_key
from control_plane.state.memory import MemoryTable
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Key, Put
from tests.engine_timing import UNHURRIED

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
START = 100 * DAY
GPU = Offering("gpu", "g5.xlarge", "a", Market.SPOT, 1, price_per_hour=30.0)


@dataclass
class Recorder:
    """A notifier that records notifications, after `before`."""

    sent: list[AlarmNotification] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def notify(self, notification: AlarmNotification) -> None:
        self.before()
        self.sent.append(notification)

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(one.alarm, one.change) for one in self.sent]


class ObservedCluster:
    """A table with a check of its alarms."""

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.now_ms = START
        self.recorder = Recorder()
        self.engine = Engine(self.table, lambda: self.now_ms, UNHURRIED)
        self.watch = AlarmWatch(
            self.engine, self.recorder, "detcloud-vision", cluster_url="https://api.example.com"
        )

    def check(self, late_ms: int | None = 0, settings: Alarms | None = None) -> None:
        self.watch.check(settings or Alarms(), late_ms)

    def pass_time(self, ms: int = 5 * MINUTE) -> None:
        self.now_ms += ms

    def rows(self) -> list[AlarmRow]:
        return [decode_alarm(row.body) for row in read_rows(self.table, ALARMS)]

    def put(self, key: Key, body: bytes) -> None:
        row = self.table.get(key)
        revision = 0 if row is None else row.revision
        self.table.commit((Put(key, revision + 1, body, Expect.ANYTHING),))

    def put_boots(self, errors: int) -> None:
        health = {"gpu": OfferingHealth(errors=errors, kind=ErrorKind.BOOT, message="no driver")}
        self.put(Key(FLEETS, "gpus"), encode_row(FleetRow("gpus", health=health)))

    def put_machine(self, launched_ms: int) -> None:
        row = InstanceRow("i-1", "gpus", GPU, InstanceState.RUNNING, launched_ms, "n-1")
        self.put(instance_key(row), encode_row(row))


@pytest.fixture
def cluster() -> ObservedCluster:
    return ObservedCluster()


def test_alarm_notifies_once_when_raised_and_once_when_cleared(cluster: ObservedCluster) -> None:
    cluster.put_boots(2)
    for _ in range(3):
        cluster.check()
        cluster.pass_time()
    [notification] = cluster.recorder.sent
    assert notification == AlarmNotification(
        cluster="detcloud-vision",
        alarm="failed-boots",
        pool="gpus",
        change="raised",
        text="the last 2 machines of offering gpu failed to boot; no driver",
        raised_ms=START,
        runbook="https://api.example.com/ui/#/alarms/failed-boots",
    )
    cluster.put_boots(0)
    for _ in range(3):
        cluster.check()
        cluster.pass_time()
    assert cluster.recorder.changes == [("failed-boots", "raised"), ("failed-boots", "cleared")]
    assert cluster.rows() == []


def test_raised_alarm_has_the_latest_value(cluster: ObservedCluster) -> None:
    cluster.put_boots(0)
    cluster.put_machine(START - 15 * DAY)
    cluster.check()
    cluster.pass_time(6 * HOUR)
    cluster.check()
    [row] = cluster.rows()
    # The machine was launched 15 days before the first check, and the second check is 6 h later.
    assert (row.value, row.raised_ms) == ("15 d 6 h", START)
    assert row.text == "machine i-1 was launched 15 d 6 h ago"
    assert cluster.recorder.changes == [("machine-age", "raised")]


def test_alarm_that_is_turned_off_is_cleared(cluster: ObservedCluster) -> None:
    cluster.put_boots(2)
    cluster.check()
    cluster.check(settings=Alarms(off=("failed-boots",)))
    assert cluster.recorder.changes == [("failed-boots", "raised"), ("failed-boots", "cleared")]


def test_killed_check_sends_its_notification_again_later(cluster: ObservedCluster) -> None:
    def kill() -> None:
        raise KeyboardInterrupt

    cluster.put_boots(2)
    cluster.recorder.before = kill
    with pytest.raises(KeyboardInterrupt):
        cluster.check()
    cluster.recorder.before = lambda: None
    cluster.pass_time(CLAIM_MS - 1)
    cluster.check()
    assert cluster.recorder.sent == []
    cluster.pass_time(1)
    cluster.check()
    cluster.check()
    assert cluster.recorder.changes == [("failed-boots", "raised")]


def test_of_concurrent_checks_only_one_notifies(cluster: ObservedCluster) -> None:
    other = AlarmWatch(cluster.engine, cluster.recorder, "detcloud-vision")

    def check_meanwhile() -> None:
        cluster.recorder.before = lambda: None
        other.check(Alarms(), 0)

    cluster.put_boots(2)
    cluster.recorder.before = check_meanwhile
    cluster.check()
    cluster.check()
    assert cluster.recorder.changes == [("failed-boots", "raised")]


def test_refused_notification_fails_the_check_and_is_repeated(cluster: ObservedCluster) -> None:
    def refuse() -> None:
        raise NotificationFailed("the topic is gone")

    cluster.put_boots(2)
    cluster.recorder.before = refuse
    with pytest.raises(ChecksFailed, match="failed-boots"):
        cluster.check()
    cluster.recorder.before = lambda: None
    cluster.pass_time()
    cluster.check()
    assert cluster.recorder.changes == [("failed-boots", "raised")]


def test_damaged_row_stops_only_its_alarm(
    cluster: ObservedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put_boots(2)
    cluster.put(COST_HISTORY, b"not JSON")
    with pytest.raises(ChecksFailed, match=r"^failed: hourly-cost$"):
        cluster.check()
    assert cluster.recorder.changes == [("failed-boots", "raised")]
    assert "alarm hourly-cost could not be checked" in caplog.text


def test_lag_is_raised_after_two_checks_and_kept_while_unknown(cluster: ObservedCluster) -> None:
    cluster.check(late_ms=40_000)
    assert cluster.recorder.sent == []
    cluster.pass_time()
    cluster.check(late_ms=45_000)
    cluster.pass_time()
    cluster.check(late_ms=None)
    cluster.pass_time()
    assert cluster.recorder.changes == [("lag", "raised")]
    cluster.check(late_ms=0)
    assert cluster.recorder.changes == [("lag", "raised"), ("lag", "cleared")]


def test_old_machine_and_its_costs_raise_alarms(cluster: ObservedCluster) -> None:
    cluster.put_boots(0)
    hour = START // (60 * MINUTE)
    cluster.put(COST_HISTORY, encode_history(CostHistory(hour - 100, {hour - 50: 14_000_000})))
    cluster.put_machine(START - 14 * DAY - 1)
    cluster.check()
    assert cluster.recorder.changes == [("hourly-cost", "raised"), ("machine-age", "raised")]
    stored = cluster.table.get(COST_HISTORY)
    assert stored is not None
    # 30 dollars an hour
    assert decode_history(stored.body).peaks[hour] == 30_000_000


def test_idle_cluster_writes_nothing_after_its_first_check(cluster: ObservedCluster) -> None:
    cluster.check()
    cluster.pass_time()
    commits: list[object] = []
    cluster.table.commit = commits.append  # type: ignore[method-assign,assignment]
    for _ in range(3):
        cluster.check()
        cluster.pass_time(DAY)
    assert commits == []


def test_alarm_of_a_newer_version_stays(cluster: ObservedCluster) -> None:
    row = AlarmRow("moon-phase", "", "full", 1, raised_ms=1, is_notified=True)
    cluster.put(alarm_key("moon-phase", ""), encode_alarm(row))
    cluster.check()
    assert cluster.rows() == [row]


def test_log_notifier_warns_of_raised_alarms(caplog: pytest.LogCaptureFixture) -> None:
    notification = AlarmNotification("c", "lag", "", "raised", "slow", 1, "docs/runbook/lag.md")
    LogNotifier().notify(notification)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "alarm lag raised: slow (docs/runbook/lag.md)"


def test_subjects_are_short_printable_ascii() -> None:
    notification = AlarmNotification("c" * 60, "queue-wait", "p" * 63, "raised", "x", 1, "r")
    assert len(notification.subject) == 100
    odd = AlarmNotification("c", "lag", "p\u00e4\n", "cleared", "x", 1, "r")
    assert odd.subject == "c: alarm lag cleared in pool p??"
    assert "no longer true: x" in odd.body


def test_queue_partition_is_read_once_for_each_pool(cluster: ObservedCluster) -> None:
    # A pool without a state has no waiting jobs.
    cluster.put(Key(POOLS, "gpus"), b"{}")
    cluster.check()
    assert cluster.recorder.sent == []


def test_webhooks_announce_raised_and_cleared_alarms(cluster: ObservedCluster) -> None:
    route = Route(1, "alarms", (Trigger(EventType.ALARM),))
    cluster.put(Key(*ROUTES), encode_routes([route]))
    for errors in (2, 2, 0, 0, 2):
        cluster.put_boots(errors)
        cluster.check()
        cluster.pass_time()
    rows = cluster.table.query("events#alarm#failed-boots#gpus", " ", "\x7f").rows
    found = [decode_event(row.body) for row in rows]
    assert [event.condition["state"] for event in found] == ["raised", "cleared", "raised"]
    assert found[0].title == "alarm failed-boots in pool gpus is raised"
    assert found[0].data["alarm"]["value"] == "2 failed boots in a row"


def test_no_event_is_written_without_webhooks(cluster: ObservedCluster) -> None:
    cluster.put_boots(2)
    cluster.check()
    assert cluster.table.query("events#alarm#failed-boots#gpus", " ", "\x7f").rows == ()
