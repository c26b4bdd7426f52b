"""Figures of tunnels: keystrokes and throughput beside OpenSSH, time to start, memory, price."""

import base64
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from bench.cluster import CLI, ClusterFailed, detcloud, embedded_cluster
from bench.figures import Row, Scale, at_least, at_most, progress, row_without_value
from bench.tunnel_ends import HOST
from bench.tunnel_use import tunnel_use
from detcloud.client.home import HOME_VARIABLE
from detcloud.shared.processes import pss_bytes
from detcloud.shared.tunnel.keys import make_key
from detcloud.shared.tunnel.tickets import Side

P50_MS_MAX, P99_MS_MAX = 2.0, 10.0
SHARE_MIN = 70.0
FIRST_BYTE_SECONDS_MAX = 2.0
RELAY_MB_MAX = 150.0
AGENT_KB_MAX = 200.0
WAIT_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02
_BLOCK = bytes(65_536)
_OPTIONS = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
# A program of a command: it sends each received byte back.
_ECHO = """
import socketserver

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)

socketserver.ThreadingTCPServer.daemon_threads = True
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
    print("port", server.server_address[1], flush=True)
    server.serve_forever()
"""


class SourceServer:
    """A server that sends `bytes_max` bytes to each client that sends a byte."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._listener = socket.create_server((HOST, 0), backlog=2_000)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with connection:
            if connection.recv(1):
                for _ in range(self._bytes_max // len(_BLOCK)):
                    connection.sendall(_BLOCK)


@dataclass(frozen=True)
class OpenTunnel:
    """A tunnel between processes of this machine."""

    relay: int
    """The process id of the relay."""
    agent: int
    """The process id of the agent's end."""
    ports: list[int]
    """The local port for each port of the tunnel."""


def tunnel(scale: Scale) -> Iterator[Row]:
    """Yield the figures of a tunnel. Keystrokes and throughput need OpenSSH's client and server."""
    source = SourceServer(scale.tunnel_bytes)
    # Memory is measured first: the freed memory of other measurements would hide that of streams.
    with _open_tunnel([source.port]) as opened:
        yield from _measure_memory(opened, scale.tunnel_streams)
    if _finds_ssh():
        with _run_sshd() as sshd, _open_tunnel([source.port, sshd.port]) as opened:
            yield from _measure_ssh(sshd, opened, source.port, scale)
    else:
        yield row_without_value("keystrokes and throughput of a tunnel", "OpenSSH is not installed")
    yield _measure_first_byte(scale.runs)
    yield from tunnel_use(scale)


@dataclass(frozen=True)
class _Sshd:
    """An OpenSSH server."""

    port: int
    key: Path
    """The file with the client's key."""

    def client(self, port: int, *words: str) -> list[str]:
        """Return the command of a client that connects to the server over `port`."""
        options = [part for option in _OPTIONS for part in ("-o", option)]
        return ["ssh", *options, "-i", str(self.key), "-p", str(port), *words, HOST]


def _finds_ssh() -> bool:
    return bool(shutil.which("ssh") and shutil.which("ssh-keygen") and _sshd_path())


def _sshd_path() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def _run_sshd() -> Iterator[_Sshd]:
    """Run an OpenSSH server for this user on a free port."""
    with TemporaryDirectory(prefix="detcloud-bench-") as name:
        folder, port = Path(name), _find_free_port()
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        lines = (
            f"ListenAddress {HOST}:{port}",
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {folder}/user.pub",
            f"PidFile {folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin prohibit-password",
        )
        (folder / "config").write_text("\n".join(lines) + "\n")
        command = [str(_sshd_path()), "-D", "-e", "-f", str(folder / "config")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for_port(port)
                yield _Sshd(port, folder / "user")
            finally:
                process.terminate()


@contextmanager
def _open_tunnel(ports: list[int]) -> Iterator[OpenTunnel]:
    """Run a relay and both ends of a tunnel, each in a process."""
    secret = base64.b64encode(secrets.token_bytes(32)).decode()
    relay = subprocess.Popen(
        [sys.executable, "-m", "relay"],
        env={
            **os.environ,
            "DETCLOUD_RELAY_SECRET": secret,
            "DETCLOUD_RELAY_HOST": HOST,
            "PORT": "0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    processes = [relay]
    try:
        assert relay.stdout is not None
        url = f"http://{HOST}:{relay.stdout.readline().rpartition(' ')[2].strip()}"
        keys = {side: make_key() for side in Side}
        for side, peer in ((Side.AGENT, Side.USER), (Side.USER, Side.AGENT)):
            place = {
                "side": side,
                "relay": url,
                "secret": secret,
                "ports": ports,
                "certificate": keys[side].certificate,
                "secret_pem": keys[side].secret_pem,
                "peer_certificate": keys[peer].certificate,
            }
            processes.append(_start_end(place))
        user = processes[-1]
        assert user.stdout is not None
        yield OpenTunnel(relay.pid, processes[1].pid, json.loads(user.stdout.readline()))
    finally:
        for process in processes:
            process.kill()
            with process:
                process.wait()


def _start_end(place: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.tunnel_ends"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(place) + "\n")
    process.stdin.flush()
    return process


def _measure_ssh(sshd: _Sshd, opened: OpenTunnel, source: int, scale: Scale) -> Iterator[Row]:
    """Yield the figures beside OpenSSH."""
    with progress("keystrokes"):
        plain = _measure_keystrokes(sshd.client(sshd.port), scale.tunnel_keystrokes)
        ours = _measure_keystrokes(sshd.client(opened.ports[1]), scale.tunnel_keystrokes)
    for number, target, name in ((50, P50_MS_MAX, "p50"), (99, P99_MS_MAX, "p99")):
        with_tunnel, without = _percentile(ours, number), _percentile(plain, number)
        beside = f"{with_tunnel:.2f} ms, plain SSH {without:.2f} ms"
        what = f"keystroke of SSH through a tunnel above plain SSH, {name}"
        yield at_most(what, with_tunnel - without, target, "ms", beside=beside)
    with progress("throughput"), _forward(sshd, source) as port:
        # The runs alternate, because the speed of a shared machine changes within seconds.
        rates = [
            (_measure_rate(opened.ports[0], scale), _measure_rate(port, scale))
            for _ in range(scale.runs)
        ]
    share = median(100 * ours_rate / peer_rate for ours_rate, peer_rate in rates)
    ours_median, peer_median = (median(column) for column in zip(*rates, strict=True))
    beside = f"{ours_median:.0f} MB/s, `ssh -L` {peer_median:.0f} MB/s"
    yield at_least("throughput of a stream, of `ssh -L`", share, SHARE_MIN, "%", beside=beside)


def _measure_keystrokes(client: list[str], count: int) -> list[float]:
    """Return the times in ms until typed bytes come back from a shell's `cat`."""
    command = [*client, "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        keyboard, screen = process.stdin.fileno(), process.stdout.fileno()
        times = []
        for number in range(count + 20):
            begin = time.perf_counter()
            os.write(keyboard, b"x")
            if not os.read(screen, 1):
                raise OSError("ssh has ended")
            if number >= 20:
                times.append((time.perf_counter() - begin) * 1_000)
            # A person types no faster, and the next key must not meet the former one.
            time.sleep(0.005)
        process.stdin.close()
    return times


@contextmanager
def _forward(sshd: _Sshd, remote: int) -> Iterator[int]:
    """Forward a free local port to `remote` with `ssh -L`, and yield the local port."""
    local = _find_free_port()
    words = ("-N", "-L", f"{HOST}:{local}:{HOST}:{remote}")
    with subprocess.Popen(sshd.client(sshd.port, *words)) as process:
        try:
            _wait_for_port(local)
            yield local
        finally:
            process.terminate()


def _measure_rate(port: int, scale: Scale) -> float:
    """Return the rate of a single stream in MB/s."""
    with socket.create_connection((HOST, port)) as connection:
        connection.settimeout(WAIT_SECONDS_MAX)
        begin, received = time.perf_counter(), 0
        connection.sendall(b"x")
        while part := connection.recv(262_144):
            received += len(part)
        seconds = time.perf_counter() - begin
    expected = scale.tunnel_bytes // len(_BLOCK) * len(_BLOCK)
    if received != expected:
        raise OSError(f"{received} bytes arrived; expected {expected}")
    return received / seconds / 1e6


def _measure_memory(opened: OpenTunnel, streams: int) -> Iterator[Row]:
    """Yield the memory of the relay and of the agent's end with idle streams."""
    # A first stream: the session exists, and both ends have imported all modules.
    with socket.create_connection((HOST, opened.ports[0])) as first:
        first.sendall(b"x")
        first.recv(1)
    before, descriptors = pss_bytes(opened.agent), _count_descriptors(opened.agent)
    with progress(f"{streams} idle streams"), ExitStack() as stack:
        for _ in range(streams):
            stack.enter_context(socket.create_connection((HOST, opened.ports[0])))
        # The agent's sockets exist once all streams are open.
        # The descriptor of the first stream is closed by now or soon.
        _wait_for_descriptors(opened.agent, descriptors - 1 + streams)
        relay, agent = pss_bytes(opened.relay), pss_bytes(opened.agent)
    if before is None or relay is None or agent is None:
        yield row_without_value("memory of a tunnel", "this system tells no process's memory")
        return
    what = f"memory of the relay with {streams:,} idle streams"
    yield at_most(what, relay / 1e6, RELAY_MB_MAX, "MB", beside="in a single tunnel")
    what = "memory of the agent's end for an idle stream"
    yield at_most(what, (agent - before) / 1e3 / streams, AGENT_KB_MAX, "kB")


def _measure_first_byte(runs: int) -> Row:
    """Measure the time from the start of `detcloud tunnel` to the first byte of the program."""
    what = "start of `detcloud tunnel` to the first byte"
    try:
        with embedded_cluster("--slots", "1") as folder:
            seconds = _first_bytes(folder, runs)
    except (ClusterFailed, OSError, subprocess.TimeoutExpired) as error:
        return row_without_value(what, error)
    slowest = f"slowest {max(seconds):.2f} s"
    return at_most(what, median(seconds), FIRST_BYTE_SECONDS_MAX, "s", beside=slowest)


def _first_bytes(folder: Path, runs: int) -> list[float]:
    context = folder / "context"
    context.mkdir()
    (context / "echo.py").write_text(_ECHO)
    words = ("command", "run", "--detach", "--context", str(context), "python", "echo.py")
    number = re.findall(r"\d+", detcloud(folder, *words))[0]
    deadline, port = time.monotonic() + WAIT_SECONDS_MAX, None
    while port is None:
        port = re.search(r"port (\d+)", detcloud(folder, "command", "logs", number))
        if time.monotonic() > deadline:
            raise ClusterFailed("the program of the command did not begin")
    return [_first_byte(folder, number, port.group(1)) for _ in range(runs)]


def _first_byte(folder: Path, number: str, port: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(
        [*CLI, "tunnel", number, f"0:{port}"],
        env={**os.environ, HOME_VARIABLE: str(folder / "home")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(rf"{HOST}:(\d+) leads", process.stderr.readline())
            if found is None:
                raise ClusterFailed("`detcloud tunnel` did not begin")
            with socket.create_connection((HOST, int(found.group(1)))) as connection:
                connection.settimeout(WAIT_SECONDS_MAX)
                connection.sendall(b"x")
                connection.recv(1)
            return time.perf_counter() - begin
        finally:
            process.terminate()


def _percentile(values: list[float], number: int) -> float:
    return quantiles(values, n=100)[number - 1]


def _find_free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
        return port


def _wait_for_port(port: int) -> None:
    """Wait until a program listens on the port. Raise ClusterFailed after WAIT_SECONDS_MAX."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise ClusterFailed(f"no program listens on port {port}") from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _count_descriptors(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def _wait_for_descriptors(process: int, count: int) -> None:
    """Wait until the process has `count` descriptors. Raise ClusterFailed if it never does."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while _count_descriptors(process) < count:
        if time.monotonic() > deadline:
            raise ClusterFailed(f"process {process} did not open {count} descriptors")
        time.sleep(_POLL_SECONDS)
