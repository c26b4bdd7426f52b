"""Both ends of a tunnel over a real relay: streams, kills and resumption."""

from __future__ import annotations

import base64
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from detcloud.shared.tunnel.keys import make_key
from relay.__main__ import PORT_VARIABLE, SECRET_VARIABLE, VariableInvalid, read_variables
from relay.thread import RelayThread
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.relay.tunnel_ends import HOST, SECRET, EchoServer, Ends, receive_exactly

ENCODED = base64.b64encode(SECRET).decode()


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


def start_relay(port: int = 0) -> tuple[subprocess.Popen[str], int]:
    """Start a relay as a process, and return the process and its port."""
    environment = {
        **os.environ,
        SECRET_VARIABLE: ENCODED,
        PORT_VARIABLE: str(port),
        "DETCLOUD_RELAY_HOST": HOST,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "relay"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.rpartition(" ")[2])


def end_process(process: subprocess.Popen[str]) -> int:
    with process:
        return process.wait(PROCESS_SECONDS_MAX)


def test_bytes_pass_through_the_tunnel(relay: RelayThread, echo: EchoServer) -> None:
    with Ends(lambda: f"http://{HOST}:{relay.port}", echo.port) as ends, ends.connect() as program:
        data = random.Random(1).randbytes(3_000_000)
        writer = threading.Thread(target=send_all, args=(program, data))
        writer.start()
        assert receive_exactly(program, len(data) + 1) == data
        writer.join()
        wait_until(lambda: len(ends.user._sockets) == len(ends.agent._sockets) == 0)


def has_ended(program: socket.socket) -> bool:
    """Wait for the connection's end; return False if a byte arrives."""
    try:
        return program.recv(1) == b""
    except ConnectionError:
        return True


def send_all(program: socket.socket, data: bytes) -> None:
    """Send the data and the end of the data."""
    program.sendall(data)
    program.shutdown(socket.SHUT_WR)


def test_refused_port_closes_the_program_and_is_reported(relay: RelayThread) -> None:
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    with Ends(lambda: f"http://{HOST}:{relay.port}", port) as ends, ends.connect() as program:
        assert has_ended(program)
        wait_until(lambda: any("no program listens" in text for text in ends.reports))


def test_killed_relay_loses_no_byte(echo: EchoServer) -> None:
    process, port = start_relay()
    with Ends(lambda: f"http://{HOST}:{port}", echo.port) as ends, ends.connect() as program:
        data = random.Random(2).randbytes(8_000_000)
        writer = threading.Thread(target=program.sendall, args=(data,))
        writer.start()
        received = receive_exactly(program, 1_000_000)
        process.kill()
        end_process(process)
        process, _ = start_relay(port)
        received += receive_exactly(program, len(data) - len(received))
        writer.join()
        assert received == data
        assert any("resumed" in text for text in ends.reports)
    process.terminate()
    assert end_process(process) == 0


def test_ends_move_to_another_relay(echo: EchoServer) -> None:
    first, second = RelayThread(SECRET, HOST), RelayThread(SECRET, HOST)
    first.start()
    second.start()
    place = [first.port]
    with Ends(lambda: f"http://{HOST}:{place[0]}", echo.port) as ends, ends.connect() as program:
        program.sendall(b"first")
        assert receive_exactly(program, 5) == b"first"
        place[0] = second.port
        first.stop()
        program.sendall(b"second")
        assert receive_exactly(program, 6) == b"second"
    second.stop()


def test_stop_of_the_agent_ends_the_user_with_its_reason(
    relay: RelayThread, echo: EchoServer
) -> None:
    with Ends(lambda: f"http://{HOST}:{relay.port}", echo.port) as ends, ends.connect() as program:
        program.sendall(b"x")
        assert receive_exactly(program, 1) == b"x"
        ends.agent.notify("the machine ends in 120 s")
        wait_until(lambda: "the machine ends in 120 s" in ends.reports)
        ends.agent.stop("the allocation ended")
        wait_until(lambda: ends.reasons.get("user") == "the allocation ended")
        assert has_ended(program)


def test_impostor_of_the_agent_gets_no_byte(relay: RelayThread, echo: EchoServer) -> None:
    ends = Ends(lambda: f"http://{HOST}:{relay.port}", echo.port)
    ends.agent_key = make_key()
    with ends:
        # Two ends dial twice, so that the first attempt of both has failed.
        wait_until(lambda: len(ends.dials) >= 4)
        assert not ends.user.ready.is_set()
        assert not ends.agent.ready.is_set()


def test_many_streams_carry_bytes_at_once(relay: RelayThread, echo: EchoServer) -> None:
    with Ends(lambda: f"http://{HOST}:{relay.port}", echo.port) as ends:
        programs = [ends.connect() for _ in range(200)]
        for number, program in enumerate(programs):
            program.sendall(f"stream {number:04d}".encode())
        for number, program in enumerate(programs):
            assert receive_exactly(program, 11) == f"stream {number:04d}".encode()
        for program in programs:
            program.close()
        wait_until(lambda: len(ends.agent._sockets) == 0)


def test_stalled_program_delays_no_other_program(relay: RelayThread, echo: EchoServer) -> None:
    ends = Ends(lambda: f"http://{HOST}:{relay.port}", echo.port)
    with ends, ends.connect() as stalled, ends.connect() as program:
        stalled.settimeout(1)
        # The echo is not read, so that all buffers of this stream fill up.
        with pytest.raises(TimeoutError):
            stalled.sendall(bytes(256 << 20))
        program.sendall(b"key")
        assert receive_exactly(program, 3) == b"key"


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "has 0 bytes"),
        ({SECRET_VARIABLE: "?"}, "not base64"),
        (
            {SECRET_VARIABLE: base64.b64encode(SECRET).decode(), PORT_VARIABLE: "x"},
            "expected a port",
        ),
    ],
)
def test_invalid_variables_are_named(variables: dict[str, str], text: str) -> None:
    with pytest.raises(VariableInvalid, match=text) as refused:
        read_variables(variables)
    assert ENCODED not in str(refused.value)
