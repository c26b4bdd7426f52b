"""Steps of tests and users with tunnels: open ports, shells, SSH and notebooks of a cluster."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Self

from detcloud.cli.framework.exit_codes import INTERRUPTED
from tests.end_to_end.laptop import Laptop
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until

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


def write_jupyterlab(folder: Path) -> Path:
    """Write a package that stands for JupyterLab into a new folder, and return the folder."""
    package = folder / "jupyterlab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(JUPYTERLAB)
    return folder


def read_lab(notebook: Background) -> None:
    """Read the page at the address that a command has printed."""
    url = notebook.read_until(r"^http://127\.0\.0\.1:\d+/lab\?token=\S+").group(0)
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.read() == b"the lab"


def use_shell_and_notebook(person: Laptop, folder: Path) -> None:
    """Use a shell, OpenSSH's programs, `detcloud dev` and a notebook on a machine of a deployed
    cluster.

    The notebook runs the package of `write_jupyterlab`.
    """
    shell = person.run("shell", "start", "--detach").stdout.strip()
    done = person.run("shell", "open", shell, "sh", "-c", "echo $((6 * 7)); exit 7", code=7)
    assert done.stdout == "42\n"
    if shutil.which("ssh") is not None:
        _copy_file(person, shell, folder)
    _work_in_folder(person, shell, folder / "work")
    context = write_jupyterlab(folder / "lab")
    words = "notebook", "start", "--no-browser", "--context", context
    with Background(person, *words) as started:
        number = started.read_until(r"^notebook (\d+) ").group(1)
        read_lab(started)
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(PROCESS_SECONDS_MAX) == INTERRUPTED
    with Background(person, "notebook", "open", "--no-browser", number) as opened:
        read_lab(opened)
        person.run("notebook", "kill", number)
        assert opened.process.wait(PROCESS_SECONDS_MAX) == 1


def _copy_file(person: Laptop, shell: str, folder: Path) -> None:
    """Copy a file into the folder of a shell with scp, and read the copy with ssh."""
    data = folder / "data"
    data.write_bytes(bytes(range(256)) * 1_000)
    person.run("ssh", "config")
    config = "-F", str(person.home / "ssh" / "config")
    host = f"detcloud-{shell}"
    person.shell(["scp", "-q", *config, str(data), f"{host}:copied"]).check_returncode()
    copied = person.shell(["ssh", *config, host, "wc -c < copied; sha256sum copied"])
    size, digest = copied.stdout.splitlines()
    assert int(size) == data.stat().st_size
    assert digest.split()[0] == hashlib.sha256(data.read_bytes()).hexdigest()


def _work_in_folder(person: Laptop, shell: str, folder: Path) -> None:
    """Keep a new folder the same as the folder of a shell, and end the shell."""
    folder.mkdir()
    (folder / "mine").write_text("from here\n")
    program = "cat mine; echo theirs > made"
    done = person.run("dev", "--attach", shell, folder, "--", "sh", "-c", program)
    assert done.stdout == "from here\n"
    assert (folder / "made").read_text() == "theirs\n"
    assert f"shell {shell} has ended" in done.stderr
