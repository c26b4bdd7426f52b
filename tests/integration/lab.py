"""A lab: `detcloud server`, commands of its users, and an agent, all as processes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from detcloud.client import Client
from tests.integration.embedded_cluster import environment
from tests.patience import PROCESS_SECONDS_MAX, wait_until


class Lab:
    """A server without an agent of its own, and an agent that pins the server's certificate.

    Args:
        folder: a folder for all files, which is also the home of commands.
        url: the address by which others call the server. "" for the server's own address.
        options: more options of `detcloud server run`.
        listen: the IP address to listen at.
    """

    def __init__(
        self, folder: Path, url: str = "", options: Sequence[str] = (), listen: str = "0.0.0.0"
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = url or f"https://127.0.0.1:{self.port}"
        self._listen = listen
        self._options = options
        self.environment = environment() | {"HOME": str(folder)}
        for name in ("DETCLOUD_URL", "DETCLOUD_TOKEN", "DETCLOUD_HOME", "DETCLOUD_PIN"):
            self.environment.pop(name, None)
        self.server: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    def command_line(self, *words: str) -> str:
        """Run a `detcloud` command, and return the standard output."""
        command = [sys.executable, "-m", "detcloud.cli.main", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        words = ["server", "run", "--data", str(self.folder / "data"), "--no-agent"]
        words += ["--listen", f"{self._listen}:{self.port}", "--url", self.url, *self._options]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "detcloud.cli.main", *words],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        data = ("--data", str(self.folder / "data"))
        wait_until(lambda: self._succeeds("server", "status", *data), what="a ready server")

    def _succeeds(self, *words: str) -> bool:
        command = [sys.executable, "-m", "detcloud.cli.main", *words]
        return not subprocess.run(
            command, env=self.environment, capture_output=True, check=False
        ).returncode

    def end_server(self, number: signal.Signals) -> int:
        assert self.server is not None
        self.server.send_signal(number)
        return self.server.wait(PROCESS_SECONDS_MAX)

    def sign_in(self) -> str:
        """Sign in with a code of the server's machine, and return the pin."""
        text = self.command_line("server", "code", "--data", str(self.folder / "data"))
        found = re.search(r"detcloud login (\S+) --pin (\S+) --code (\S+)", text)
        assert found is not None
        self.command_line("login", found[1], "--pin", found[2], "--code", found[3])
        return found[2]

    def start_agent(self, pin: str) -> None:
        token = self.folder / "join.token"
        token.write_text(self.command_line("token", "create", "--join", "default"))
        options = ["--url", self.url, "--pin", pin, "--token-file", str(token), "--name", "box"]
        options += ["--pool", "default", "--work-dir", str(self.folder / "box"), "--slots", "1"]
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "detcloud.agent", *options],
            env=self.environment,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> None:
        for process in (self.agent, self.server):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(PROCESS_SECONDS_MAX)

    def client(self, pin: str) -> Client:
        """Return a client of the administrator."""
        token = (self.folder / "data/token").read_text().strip()
        return Client(self.url, token, pin=pin)


def free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as probe:
        return int(probe.getsockname()[1])
