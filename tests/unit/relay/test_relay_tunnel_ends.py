"""Both ends of a tunnel over a real relay: streams, kills and resumption."""

from __future__ import annotations

import base64
import errno
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.tunnel_ends import LocalPorts
from detcloud.shared.tunnel.keys import make_key
from detcloud.shared.tunnel.multiplexer import ResetReason
from relay.__main__ import PORT_VARIABLE, SECRET_VARIABLE, VariableInvalid, read_variables
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until
from tests.unit.relay.relay_thread import RelayThread
from tests.unit.relay.tunnel_ends import (
    HOST,
    SECRET,
    EchoServer,
    Ends,
    receive_exactly,
)

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


class GreetingService(LocalPorts):
    """A service `greeting`, whose program greets and returns the bytes that it receives."""

    def serve(self, service: str) -> socket.socket | ResetReason:
        if service != "greeting":
            return ResetReason.UNKNOWN_SERVICE
        served, program = socket.socketpair()
        threading.Thread(target=self._greet, args=(program,), daemon=True).start()
        return served

    def _greet(self, program: socket.socket) -> None:
        with program:
            program.sendall(b"hello ")
            while data := program.recv(65_536):
                program.sendall(data)


def test_service_is_reached_from_the_process_without_a_port(relay: RelayThread) -> None:
    url = f"http://{HOST}:{relay.port}"
    with Ends(lambda: url, None, ports=GreetingService()) as ends:
        connection, carried = socket.socketpair()
        connection.settimeout(ANSWER_SECONDS_MAX)
        ends.user.open_service("greeting", carried)
        with connection:
            send_all(connection, b"world")
            assert receive_exactly(connection, 100) == b"hello world"
        wait_until(lambda: len(ends.user._sockets) == len(ends.agent._sockets) == 0)


def test_unknown_service_closes_the_socket_and_is_reported(relay: RelayThread) -> None:
    url = f"http://{HOST}:{relay.port}"
    with Ends(lambda: url, None, ports=GreetingService()) as ends:
        connection, carried = socket.socketpair()
        ends.user.open_service("newer", carried)
        with connection:
            connection.settimeout(ANSWER_SECONDS_MAX)
            assert has_ended(connection)
        wait_until(lambda: any("agent is older" in text for text in ends.reports))
    # A service that is opened after the end is closed, so that no program waits for ever.
    connection, carried = socket.socketpair()
    ends.user.open_service("greeting", carried)
    with connection:
        assert has_ended(connection)


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


def test_idle_tunnel_warns_and_closes(relay: RelayThread, echo: EchoServer) -> None:
    url = f"http://{HOST}:{relay.port}"
    with Ends(lambda: url, echo.port, idle_seconds=2.0) as ends, ends.connect() as program:
        program.sendall(b"x")
        assert receive_exactly(program, 1) == b"x"
        wait_until(lambda: "user" in ends.reasons)
        # Half of the time is left at the warning.
        assert "the tunnel closes in 1 s unless it is used" in ends.reports[-1]
        assert ends.reasons["user"] == "no byte has passed for 2 s"
        wait_until(lambda: ends.reasons.get("agent") == ends.reasons["user"])
        assert has_ended(program)


class FullListener(socket.socket):
    """A listener of a process that has no descriptor left for the first three attempts."""

    failures = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_connection_waits_for_a_free_descriptor(relay: RelayThread, echo: EchoServer) -> None:
    url = f"http://{HOST}:{relay.port}"
    with Ends(lambda: url, echo.port, listener=FullListener) as ends, ends.connect() as program:
        program.sendall(b"x")
        assert receive_exactly(program, 1) == b"x"
        assert any("Too many open files" in text for text in ends.reports)


class FullPorts(LocalPorts):
    """The ports of a trial on a machine whose agent has no descriptor left."""

    def connect(self, port: int) -> socket.socket | ResetReason:
        raise OSError(errno.EMFILE, "Too many open files")


def test_agent_without_descriptors_refuses_connections(relay: RelayThread) -> None:
    url = f"http://{HOST}:{relay.port}"
    with Ends(lambda: url, 80, ports=FullPorts()) as ends, ends.connect() as program:
        assert has_ended(program)
        wait_until(lambda: any("has too many connections" in text for text in ends.reports))
        assert "agent" not in ends.reasons


def test_session_over_http_survives_a_killed_relay() -> None:
    server = ThreadingHTTPServer((HOST, 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    process, port = start_relay()
    with server, Ends(lambda: f"http://{HOST}:{port}", server.server_port) as ends:
        client = HTTPConnection(HOST, ends.listener.getsockname()[1], timeout=ANSWER_SECONDS_MAX)
        first = answer_over(client)
        for _ in range(2):
            process.kill()
            end_process(process)
            process, _ = start_relay(port)
            # The server names the client's port, so that another connection would be noticed.
            assert answer_over(client) == first
        client.close()
        server.shutdown()
    process.terminate()
    end_process(process)


class Pages(BaseHTTPRequestHandler):
    """Answers each request with the port of the client's connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def answer_over(client: HTTPConnection) -> bytes:
    """Return the answer to a request over the client's present connection."""
    client.request("GET", "/")
    return client.getresponse().read()


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
