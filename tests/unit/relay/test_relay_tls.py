"""Relays with TLS and a pinned certificate, and a relay of another implementation."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.shared.tunnel.keys import SecureChannel, TunnelKey, make_key
from detcloud.shared.tunnel.relay_link import RelayUnavailable, dial_relay
from detcloud.shared.tunnel.tickets import Side
from tests.conftest import require
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.relay.relay_thread import RelayThread
from tests.unit.relay.tunnel_ends import (
    HOST,
    SECRET,
    EchoServer,
    Ends,
    make_ticket,
    receive_exactly,
)

KEY = make_key()
PIN = hashlib.sha256(base64.b64decode(KEY.certificate)).hexdigest()


def server_context(key: TunnelKey, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = folder / "relay.pem"
    certificate = ssl.DER_cert_to_PEM_cert(base64.b64decode(key.certificate))
    file.write_text(certificate + key.secret_pem)
    context.load_cert_chain(file)
    return context


@pytest.fixture
def tls_relay(tmp_path: Path) -> Iterator[RelayThread]:
    thread = RelayThread(SECRET, HOST, tls=server_context(KEY, tmp_path))
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


def test_bytes_pass_through_a_relay_with_the_pinned_certificate(
    tls_relay: RelayThread, echo: EchoServer
) -> None:
    ends = Ends(lambda: f"https://{HOST}:{tls_relay.port}", echo.port, pin=PIN)
    with ends, ends.connect() as program:
        data = bytes(range(256)) * 4_000
        sender = threading.Thread(target=program.sendall, args=(data,))
        sender.start()
        assert receive_exactly(program, len(data)) == data
        sender.join()


@pytest.mark.parametrize(
    ("scheme", "pin", "text"),
    [
        ("https", "0" * 64, "the cluster named 0000"),
        # Without a pin, an authority of this machine must have signed the certificate.
        ("https", "", "certificate"),
        ("http", PIN, "has a pin, but no certificate"),
    ],
    # Each worker makes its own certificate, and all workers must collect the same names.
    ids=["another-pin", "no-authority", "no-certificate"],
)
@pytest.mark.parametrize("side", list(Side))
def test_relay_with_another_certificate_gets_no_ticket(
    tls_relay: RelayThread, side: Side, scheme: str, pin: str, text: str
) -> None:
    ticket = make_ticket(side)
    channel = SecureChannel(KEY, KEY.certificate, is_agent=side is Side.AGENT)
    with pytest.raises(RelayUnavailable, match=text):
        dial_relay(f"{scheme}://{HOST}:{tls_relay.port}", pin, ticket, channel)
    # The ticket was not used: the relay with the expected certificate admits it.
    link = dial_relay(f"https://{HOST}:{tls_relay.port}", PIN, ticket, channel)
    link.close()


class StockRelay:
    """A relay that pairs the two first WebSockets, with the parser and framing of `aiohttp`."""

    def __init__(self) -> None:
        self.port = 0
        self.largest = 0
        self._ready = threading.Event()
        self._peers: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> StockRelay:
        self._thread.start()
        assert self._ready.wait(ANSWER_SECONDS_MAX)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        web = require("aiohttp.web")
        application = web.Application()
        application.router.add_get("/tunnel", self._copy)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _copy(self, request: Any) -> Any:
        own = require("aiohttp.web").WebSocketResponse()
        await own.prepare(request)
        self._peers.append(own)
        async for message in own:
            while len(self._peers) < 2:
                await asyncio.sleep(0.01)
            other = self._peers[1 - self._peers.index(own)]
            self.largest = max(self.largest, len(message.data))
            await other.send_bytes(message.data)
        return own


def test_relay_of_another_implementation_accepts_the_frames(echo: EchoServer) -> None:
    require("aiohttp")
    with StockRelay() as stock:
        ends = Ends(lambda: f"http://{HOST}:{stock.port}", echo.port)
        with ends, ends.connect() as program:
            data = bytes(range(256)) * 8_000
            sender = threading.Thread(target=program.sendall, args=(data,))
            sender.start()
            assert receive_exactly(program, len(data)) == data
            sender.join()
            wait_until(lambda: stock.largest > 65_536)
