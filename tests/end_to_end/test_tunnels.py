"""`detcloud tunnel` on one machine: real programs, the server's relay, and kills."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import pytest

from detcloud.cli.framework.exit_codes import INTERRUPTED
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
# A package that stands for JupyterLab: it answers requests with the token.
JUPYTERLAB = """
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path.endswith(os.environ["JUPYTER_TOKEN"]) else 403)
        self.end_headers()
        self.wfile.write(b"the lab")

[port] = [int(word.partition("=")[2]) for word in sys.argv if "ServerApp.port=" in word]
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Background:
    """A command of detcloud in the background."""

    def __init__(self, laptop: Laptop, *words: object) -> None:
        self.process = laptop.spawn(*words)
        self.lines: list[str] = []

    def __enter__(self) -> Self:
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


class OpenTunnel(Background):
    """A `detcloud tunnel` in the background."""

    def __init__(self, laptop: Laptop, *words: object) -> None:
        super().__init__(laptop, "tunnel", *words)
        self.port = 0

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


@pytest.fixture
def remote_user(laptop: Laptop, tmp_path: Path) -> Laptop:
    """A user of the laptop's cluster on another machine, who knows the address and a token only."""
    laptop.run("up")
    token = (laptop.home / "token").read_text().strip()
    url = laptop.record()["url"]
    return Laptop(tmp_path / "elsewhere", DETCLOUD_URL=url, DETCLOUD_TOKEN=token)


def test_notebook_and_shell_on_another_machine_open_through_tunnels(
    laptop: Laptop, remote_user: Laptop, tmp_path: Path
) -> None:
    folder = tmp_path / "context"
    (folder / "jupyterlab").mkdir(parents=True)
    (folder / "jupyterlab" / "__init__.py").touch()
    (folder / "jupyterlab" / "__main__.py").write_text(JUPYTERLAB)
    words = "--no-browser", "--config", "resources.slots=0", "--context", folder
    with Background(remote_user, "notebook", "start", *words) as started:
        read_lab(started)
        started.process.send_signal(signal.SIGINT)
        started.read_until("notebook 1 continues; open it with `detcloud notebook open 1`")
        assert started.process.wait(PROCESS_SECONDS_MAX) == INTERRUPTED
    with Background(remote_user, "notebook", "open", "--no-browser", 1) as opened:
        read_lab(opened)
        remote_user.run("notebook", "kill", 1)
        opened.read_until("notebook 1 (was|is) canceled")
        assert opened.process.wait(PROCESS_SECONDS_MAX) == 1
    settings = "--detach", "--config", "resources.slots=0"
    shell = remote_user.run("shell", "start", *settings).stdout.strip()
    done = remote_user.run("shell", "open", shell, "sh", "-c", "echo $((6 * 7)); exit 7", code=7)
    assert done.stdout == "42\n"
    remote_user.run("shell", "kill", shell)
    # The last five minutes begin at the start. A shell on its user's machine has no tunnel.
    limited = "--config", "resources.slots=0", "--config", "max_duration=4m"
    for user in (laptop, remote_user):
        with Background(user, "shell", "start", *limited, "sleep", "1000") as terminal:
            terminal.read_until(r"^tunnel: this run ends in \d min, because .* max_duration")
            laptop.run("shell", "kill", int(shell) + 1 + (user is remote_user))
            assert terminal.process.wait(PROCESS_SECONDS_MAX) == 1


def read_lab(notebook: Background) -> None:
    """Read the page at the address that a command has printed."""
    url = notebook.read_until(r"^http://127\.0\.0\.1:\d+/lab\?token=\S+").group(0)
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.read() == b"the lab"


@pytest.mark.nightly
def test_real_jupyterlab_starts_kernels_through_a_tunnel(remote_user: Laptop) -> None:
    """JupyterLab and its packages are installed from the package index."""
    settings = "--config", "resources.slots=0", "--config", "environment.pip=[jupyterlab]"
    with Background(remote_user, "notebook", "start", "--no-browser", *settings) as started:
        url = started.read_until(r"^http://127\.0\.0\.1:\d+/lab\?token=\S+").group(0)
        base, _, token = url.partition("/lab?token=")
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as page:
            assert b"JupyterLab" in page.read()
        headers = {"Authorization": f"token {token}"}
        start = urllib.request.Request(f"{base}/api/kernels", b"{}", headers)
        with urllib.request.urlopen(start, timeout=ANSWER_SECONDS_MAX) as answer:
            assert answer.status == 201
        status = urllib.request.Request(f"{base}/api/status", headers=headers)
        with urllib.request.urlopen(status, timeout=ANSWER_SECONDS_MAX) as answer:
            assert json.load(answer)["kernels"] == 1
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{base}/api/status", timeout=ANSWER_SECONDS_MAX)
    remote_user.run("notebook", "kill", 1)
