"""Ends of a tunnel that wait for a relay that starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from detcloud.shared.tunnel import tunnel_end
from detcloud.shared.tunnel.keys import SecureChannel, make_key
from detcloud.shared.tunnel.relay_link import RelayLink, RelayStarting, dial_with_ticket
from tests.patience import wait_until
from tests.unit.relay.relay_thread import RelayThread
from tests.unit.relay.tunnel_ends import HOST, SECRET, EchoServer, Ends, receive_exactly

STARTING = {"relay_state": "starting", "relay_url": "", "relay_pin": "", "ticket": ""}


class WaitingEnds(Ends):
    """Ends whose cluster answers `starting` until `is_ready`."""

    is_ready = False

    def dial_user(self) -> RelayLink:
        return super().dial_user() if self.is_ready else self._wait()

    def dial_agent(self) -> RelayLink:
        return super().dial_agent() if self.is_ready else self._wait()

    def _wait(self) -> RelayLink:
        key = make_key()
        channel = SecureChannel(key, key.certificate, is_agent=False)
        return dial_with_ticket(STARTING, channel)


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def relay() -> Iterator[RelayThread]:
    thread = RelayThread(SECRET, HOST)
    thread.start()
    yield thread
    thread.stop()


def test_ends_wait_with_a_line_until_the_relay_runs(
    echo: EchoServer, relay: RelayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_end, "_STARTING_PAUSE_SECONDS", 0.02)
    ends = WaitingEnds(lambda: f"http://{HOST}:{relay.port}", echo.port)
    with ends:
        wait_until(lambda: bool(ends.reports))
        with ends.connect() as program:
            program.sendall(b"hello")
            ends.is_ready = True
            assert receive_exactly(program, 5) == b"hello"
        # The line is not repeated each second.
        assert ends.reports == [str(RelayStarting())]


def test_ends_give_up_a_relay_that_does_not_start(
    echo: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_end, "_STARTING_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(tunnel_end, "STARTING_SECONDS_MAX", 0.1)
    with WaitingEnds(lambda: "", echo.port) as ends:
        wait_until(lambda: len(ends.reasons) == 2)
    assert set(ends.reasons.values()) == {"the relay did not start within 0.1 s"}
