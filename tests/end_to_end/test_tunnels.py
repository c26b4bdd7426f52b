"""`detcloud tunnel` on one machine: real programs, the server's relay, and kills."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

ECHO = """
import socketserver
import sys

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            self.wfile.write(line)

socketserver.ThreadingTCPServer.daemon_threads = True
with socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[1])), Echo) as server:
    print("listens", flush=True)
    server.serve_forever()
"""


class OpenTunnel:
    """A `detcloud tunnel` in the background."""

    def __init__(self, laptop: Laptop, *words: object) -> None:
        self.process = laptop.spawn("tunnel", *words)
        self.lines: list[str] = []
        self.port = 0

    def __enter__(self) -> OpenTunnel:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PROCESS_SECONDS_MAX)
        finally:
            # Popen's own exit waits without a limit.
            self.process.kill()
            self.process.communicate()

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return the first match of the pattern in a line of the command's output."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in {self.lines}")

    def connect(self) -> socket.socket:
        if not self.port:
            self.port = int(self.read_until(r"127\.0\.0\.1:(\d+) leads to").group(1))
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(ANSWER_SECONDS_MAX)
        return connection


def echo(connection: socket.socket, line: bytes) -> bytes:
    connection.sendall(line)
    received = b""
    while not received.endswith(b"\n") and (part := connection.recv(100)):
        received += part
    return received


def start_echo(laptop: Laptop, folder: Path) -> tuple[int, int]:
    """Run an echo server as a command that names its port; return the command's id and the port."""
    (folder / "echo.py").write_text(ECHO)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ports = f"environment.proxy_ports=[{{proxy_port: {port}}}]"
    words = "command", "run", "--detach", "--config", ports, "--context", str(folder)
    run = laptop.run(*words, "python", "echo.py", port)
    number = int(re.findall(r"\d+", run.stdout)[0])
    wait_until(lambda: "listens" in laptop.run("command", "logs", number).stdout)
    return number, port


def test_tunnel_reaches_the_command_after_restarts_and_nothing_else(
    laptop: Laptop, tmp_path: Path
) -> None:
    laptop.run("up", "--slots", 2)
    folder = tmp_path / "context"
    folder.mkdir()
    command, port = start_echo(laptop, folder)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        foreign = stranger.getsockname()[1]
        with OpenTunnel(laptop, command, f"0:{foreign}") as refused, refused.connect() as program:
            with pytest.raises(ConnectionResetError):
                program.recv(1)
            refused.read_until("belongs to another trial or program")
    described = laptop.run("command", "describe", command).stdout
    assert f"{port} (open with `detcloud tunnel {command}`)" in described
    # The command's port is taken on this machine, so that another port leads there.
    with OpenTunnel(laptop, command) as tunnel, tunnel.connect() as program:
        assert echo(program, b"first\n") == b"first\n"
        # A new server ends the former agent, and with it the present connections.
        os.kill(laptop.record()["pid"], signal.SIGKILL)
        laptop.run("up", "--slots", 2)
        tunnel.read_until("agent of the trial was restarted.*new connections are possible")
        with tunnel.connect() as again:
            assert echo(again, b"second\n") == b"second\n"
        with OpenTunnel(laptop, command, f"0:{port}") as other, other.connect() as second:
            assert echo(second, b"third\n") == b"third\n"
            other.process.terminate()
            assert other.process.wait(PROCESS_SECONDS_MAX) == 128 + signal.SIGTERM
        laptop.run("command", "kill", command)
        tunnel.read_until("the tunnel was closed|has ended")
        assert tunnel.process.wait(PROCESS_SECONDS_MAX) == 1


def test_impossible_tunnels_are_refused_with_a_remedy(laptop: Laptop) -> None:
    laptop.run("up")
    assert "9000:8888" in laptop.run("tunnel", 1, "x:8888", code=2).stderr
    assert "no experiment 7" in laptop.run("tunnel", 7, 8888, code=3).stderr
    assert "no trial 7" in laptop.run("tunnel", "--trial", 7, "0:8888", code=3).stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = laptop.run("tunnel", "--trial", 7, port, code=1).stderr
        assert f"port {port} of this machine is not available" in refused
        assert f"0:{port}" in refused
