"""The tunnel to a notebook or shell: the address from the machine, and ends of the tunnel."""

from __future__ import annotations

import socket
import threading
from typing import Any, ClassVar, cast

import pytest

from detcloud.cli.commands import place_tunnels
from detcloud.cli.commands.place_tunnels import PlaceTunnel, print_notices
from detcloud.client import Client
from detcloud.shared.errors import DetcloudError
from tests.patience import wait_until

CLIENT = cast(Client, None)
PLACE = {"host": "node-1", "port": 8888, "file": "/home/shell.json"}


class FakeTunnel:
    """A tunnel whose machine answers `location` with `content`, or never if None."""

    content: bytes | None = b'{"port": 8888}'
    events: ClassVar[list[str]]

    def __init__(self, client: Client, trial_id: int, *arguments: Any, **options: Any) -> None:
        assert trial_id == 7
        self.report_notice = options.pop("report_notice", None)
        assert options == {"services": ("location",)}
        self._over = threading.Event()

    def open_service(self, service: str) -> socket.socket:
        connection, carried = socket.socketpair()
        if self.content is None:
            # The machine does not answer, so the tunnel ends, and with it the stream.
            self._over.set()
        else:
            carried.sendall(self.content)
        carried.close()
        return connection

    def run(self) -> str:
        if self.report_notice is not None:
            self.report_notice("this run ends in 5 min")
            self.events.append("notified")
        self._over.wait()
        return "the trial's machine did not answer"

    def stop(self) -> None:
        self.events.append("stopped")
        self._over.set()

    def close(self) -> None:
        self.events.append("closed")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeTunnel]:
    class Fresh(FakeTunnel):
        events: ClassVar[list[str]] = []

    monkeypatch.setattr(place_tunnels, "UserTunnel", Fresh)
    return Fresh


def test_address_comes_from_the_machine_and_the_tunnel_is_closed(fake: type[FakeTunnel]) -> None:
    with PlaceTunnel(CLIENT, 7, PLACE, 0) as tunnel:
        assert tunnel.read_location() == {"port": 8888}
        port = tunnel.local_port
        with socket.create_connection(("127.0.0.1", port)):
            pass
    assert fake.events == ["stopped", "closed"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("content", [b"[]", b"{" * 9_999, b"\xff"])
def test_machine_without_an_address_is_an_error(fake: type[FakeTunnel], content: bytes) -> None:
    fake.content = content
    with (
        PlaceTunnel(CLIENT, 7, PLACE, 0) as tunnel,
        pytest.raises(DetcloudError, match=r"the machine did not send the address$"),
    ):
        tunnel.read_location()
    assert fake.events == ["stopped", "closed"]


def test_silent_machine_ends_the_wait_with_the_reason(fake: type[FakeTunnel]) -> None:
    fake.content = None
    reason = "did not send the address: the trial's machine did not answer"
    with (
        PlaceTunnel(CLIENT, 7, PLACE, 0) as tunnel,
        pytest.raises(DetcloudError, match=reason),
    ):
        tunnel.read_location()


@pytest.mark.parametrize("port", [None, 0, 65_536, "8888", True])
def test_place_without_a_port_opens_nothing(fake: type[FakeTunnel], port: object) -> None:
    with pytest.raises(DetcloudError, match="the report of trial 7 has no port"):
        PlaceTunnel(CLIENT, 7, {**PLACE, "port": port}, 0)
    assert fake.events == []


def test_terminal_without_a_tunnel_shows_the_notices_of_the_machine(
    fake: type[FakeTunnel], capfd: pytest.CaptureFixture[str]
) -> None:
    with print_notices(CLIENT, 7):
        wait_until(lambda: "notified" in fake.events)
    assert fake.events == ["notified", "stopped", "closed"]
    assert capfd.readouterr().err == "tunnel: this run ends in 5 min\n"


def test_terminal_opens_without_notices_if_the_cluster_has_no_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise DetcloudError("this cluster has no relay")

    monkeypatch.setattr(place_tunnels, "UserTunnel", refuse)
    with print_notices(CLIENT, 7):
        pass
