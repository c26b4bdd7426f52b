"""Tests of duties: takeovers, renewals and lost races."""

import json

from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Put
from local_cluster.duty import INSTANCES, SILENT_SECONDS, TICK, Duty, duty_key, read_holder_url

SILENT = SILENT_SECONDS[TICK]


class Servers:
    """Two servers with a common table, and a clock that the test advances."""

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.seconds = 1000.0
        self.first, self.second = self.server("a"), self.server("b")

    def server(self, holder: str, name: str = TICK) -> Duty:
        return Duty(self.table, name, holder, f"http://{holder}", lambda: self.seconds)

    def revision(self) -> int:
        row = self.table.get(duty_key(TICK))
        assert row is not None
        return row.revision


def test_first_server_holds_the_duty() -> None:
    servers = Servers()
    assert servers.first.is_held()
    assert not servers.second.is_held()
    assert read_holder_url(servers.table, TICK) == "http://a"


def test_renewed_duty_is_not_taken_over() -> None:
    servers = Servers()
    for _ in range(20):
        assert servers.first.is_held()
        assert not servers.second.is_held()
        servers.seconds += SILENT / 3


def test_silent_duty_is_taken_over() -> None:
    servers = Servers()
    assert servers.first.is_held()
    assert not servers.second.is_held()
    servers.seconds += SILENT - 0.1
    assert not servers.second.is_held()
    servers.seconds += 0.2
    assert servers.second.is_held()
    assert not servers.first.is_held()
    assert not servers.first.was_held


def test_server_that_has_just_started_waits() -> None:
    servers = Servers()
    assert servers.first.is_held()
    servers.seconds += 100 * SILENT
    assert not servers.second.is_held()
    assert servers.first.is_held()


def test_released_duty_is_taken_at_once() -> None:
    servers = Servers()
    assert servers.first.is_held()
    assert not servers.second.is_held()
    servers.second.release()
    assert not servers.second.is_held()
    servers.first.release()
    assert read_holder_url(servers.table, TICK) == ""
    assert servers.second.is_held()
    assert not servers.first.is_held()


def test_restarted_server_continues_its_duty() -> None:
    servers = Servers()
    assert servers.first.is_held()
    assert servers.server("a").is_held()


def test_recent_renewal_writes_nothing() -> None:
    servers = Servers()
    assert servers.first.is_held()
    before = servers.revision()
    servers.seconds += SILENT / 10
    assert servers.first.is_held()
    assert servers.revision() == before
    servers.seconds += SILENT / 2
    assert servers.first.is_held()
    assert servers.revision() == before + 1


def test_lost_race_leaves_the_duty_to_the_winner() -> None:
    servers = Servers()

    class RacingTable(MemoryTable):
        """A table in which another server commits before each commit."""

        def commit(self, writes: object) -> None:
            body = json.dumps({"holder": "c", "url": "http://c"}).encode()
            super().commit([Put(duty_key(TICK), 7, body, Expect.ANYTHING)])
            super().commit(writes)  # type: ignore[arg-type]

    servers.table = RacingTable()
    assert not servers.server("a").is_held()
    assert read_holder_url(servers.table, TICK) == "http://c"


def test_duties_are_independent() -> None:
    servers = Servers()
    assert servers.first.is_held()
    assert servers.server("b", INSTANCES).is_held()
