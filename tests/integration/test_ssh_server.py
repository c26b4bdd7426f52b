"""OpenSSH's client and the SSH server of an allocation, over both ends of a tunnel and a relay."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pty
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bench.tunnel_ends import LocalPorts
from detcloud.agent.runtime import ContainerRuntime
from detcloud.agent.tunnel_services import MODULES
from detcloud.shared.tunnel.tunnel_end import TrialPorts
from tests.conformance.container_runtime import begin
from tests.conftest import miss, require_installed
from tests.emulators.docker_engine import DockerEngine
from tests.integration.docker_node import USER, container_spec, docker_runtime
from tests.integration.ssh_proxy import HOST_NAME
from tests.integration.trial_node import TrialNode, report_lines
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until
from tests.unit.relay.test_relay_tunnel_ends import end_process, start_relay
from tests.unit.relay.tunnel_ends import HOST, Ends

require_installed("asyncssh")
if shutil.which("ssh") is None:
    miss("ssh", "OpenSSH's client is missing")

ROOT = Path(__file__).parents[2]
# The variables of the allocation. The server passes them to each session.
VARIABLE = "DETCLOUD_TEST_VARIABLE"


class AllocationServers(LocalPorts):
    """An agent that starts a server for each connection, as `ProcessRuntime.spawn` does."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.cwd = cwd
        self.environment = {
            **os.environ,
            "HOME": str(home),
            VARIABLE: "a b",
            "PYTHONPATH": str(ROOT / "harness"),
        }

    def connect(self, port: int) -> socket.socket:
        served, program = socket.socketpair()
        with program:
            command = [sys.executable, "-P", "-m", "detcloud.launch.ssh.serve"]
            process = subprocess.Popen(
                command,
                stdin=program.fileno(),
                stdout=program.fileno(),
                env=self.environment,
                cwd=self.cwd,
                start_new_session=True,
            )
        self.processes.append(process)
        return served

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PROCESS_SECONDS_MAX)
            assert process.returncode is not None, "a server outlived its connection"


@dataclass
class Machine:
    """A machine with an SSH client, connected with an allocation."""

    folder: Path
    """The folder of keys and settings."""
    cwd: Path
    """The working directory of the allocation."""
    port: int
    config: Path

    def run(self, *words: str, program: str = "ssh", code: int = 0, typed: str = "") -> str:
        """Run a program of OpenSSH, which must end with the exit code. Return stdout."""
        done = subprocess.run(
            [program, "-F", str(self.config), *words],
            input=typed,
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
        )
        assert done.returncode == code, done
        return done.stdout


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[AllocationServers]:
    for name in ("home", "cwd"):
        (tmp_path / name).mkdir(mode=0o700)
    found = AllocationServers(tmp_path / "home", tmp_path / "cwd")
    yield found
    found.close()


@pytest.fixture
def relay() -> Iterator[list[Any]]:
    """A relay's process and port. A test may replace the process."""
    place: list[Any] = list(start_relay())
    yield place
    place[0].terminate()
    end_process(place[0])


@pytest.fixture
def machine(tmp_path: Path, servers: AllocationServers, relay: list[Any]) -> Iterator[Machine]:
    with connect_machine(tmp_path, servers, relay) as found:
        yield found


@contextlib.contextmanager
def connect_machine(tmp_path: Path, servers: TrialPorts, relay: list[Any]) -> Iterator[Machine]:
    """Connect a machine with the servers that `servers` starts."""
    with Ends(lambda: f"http://{HOST}:{relay[1]}", 22, ports=servers) as ends:
        key, known = tmp_path / "key", tmp_path / "known_hosts"
        make_key(key)
        port = ends.listener.getsockname()[1]
        proxy = f"{sys.executable} -P -m tests.integration.ssh_proxy {port} {key}.pub {known}"
        config = tmp_path / "config"
        config.write_text(
            f"Host {HOST_NAME}\n  ProxyCommand env PYTHONPATH={ROOT}:{ROOT / 'harness'} {proxy}\n"
            f"  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
            f"  StrictHostKeyChecking yes\n  User anybody\n  ControlPath {tmp_path}/control\n"
        )
        yield Machine(tmp_path, tmp_path / "cwd", port, config)


def make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=PROCESS_SECONDS_MAX)


class Terminal:
    """An SSH client in a terminal of this test."""

    def __init__(self, machine: Machine, *words: str, rows: int, columns: int) -> None:
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.shown = ""
        self.process = subprocess.Popen(
            ["ssh", "-F", str(machine.config), "-tt", HOST_NAME, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(PROCESS_SECONDS_MAX)
        os.close(self.master)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read the terminal until it shows the text."""
        os.set_blocking(self.master, False)

        def is_shown() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                self.shown += os.read(self.master, 4_096).decode(errors="replace")
            return text in self.shown

        wait_until(is_shown, ANSWER_SECONDS_MAX, f"{text!r} on the terminal")


def test_command_has_input_variables_and_an_exit_code(machine: Machine) -> None:
    data = random.Random(1).randbytes(100_000).hex()
    script = f"pwd; echo ${VARIABLE}; cat; echo failed >&2; exit 3"
    output = machine.run(HOST_NAME, script, code=3, typed=data)
    assert output == f"{machine.cwd}\na b\n{data}"


def test_terminal_survives_a_killed_relay_and_changes_its_size(
    machine: Machine, relay: list[Any]
) -> None:
    with Terminal(machine, "sh", rows=30, columns=90) as terminal:
        terminal.type("PS1=; stty -echo; stty size\r")
        terminal.wait_for("30 90\r\n")
        relay[0].kill()
        end_process(relay[0])
        terminal.type("echo $((6 * 7)) typed while no relay runs\r")
        relay[0] = start_relay(relay[1])[0]
        terminal.wait_for("42 typed while no relay runs\r\n")
        terminal.resize(40, 120)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.type("sleep 0.1; stty size\r")
        terminal.wait_for("40 120\r\n")
        terminal.type("exit 7\r")
        assert terminal.process.wait(PROCESS_SECONDS_MAX) == 7


def test_another_key_is_refused(machine: Machine) -> None:
    make_key(machine.folder / "stranger")
    # The first line still names the owner's key.
    text = machine.config.read_text().replace("IdentityFile", "#IdentityFile")
    machine.config.write_text(text)
    stranger = machine.folder / "stranger"
    assert machine.run("-i", str(stranger), HOST_NAME, "true", code=255) == ""


def test_another_host_key_is_refused(machine: Machine) -> None:
    known = machine.folder / "known_hosts"
    frozen = machine.folder / "frozen"
    machine.run(HOST_NAME, "true")
    make_key(machine.folder / "stranger")
    foreign = (machine.folder / "stranger.pub").read_text()
    frozen.write_text(f"{HOST_NAME} {foreign}")
    text = machine.config.read_text().replace(f"UserKnownHostsFile {known}", "")
    machine.config.write_text(text)
    machine.run("-o", f"UserKnownHostsFile={frozen}", HOST_NAME, "true", code=255)


class ContainerServers(LocalPorts):
    """An agent that starts the servers in the container of an allocation."""

    def __init__(self, runtime: ContainerRuntime, directory: Path) -> None:
        self.runtime, self.directory = runtime, directory

    def connect(self, port: int) -> socket.socket:
        return self.runtime.spawn(self.directory, MODULES["ssh"])


@pytest.mark.nightly
def test_container_needs_no_server_and_no_entry_for_its_user(
    tmp_path: Path, engine: DockerEngine, relay: list[Any]
) -> None:
    specs = [importlib.util.find_spec(name) for name in ("asyncssh", "cryptography")]
    places = dict.fromkeys(str(Path(spec.origin or "").parents[1]) for spec in specs if spec)
    mounts = [
        {"host_path": place, "container_path": place, "read_only": True}
        for place in places
        if not place.startswith(sys.prefix)
    ]
    variables = ["COLOUR=blue", f"PYTHONPATH={':'.join(places)}"]
    runtime = docker_runtime(engine, tmp_path)
    spec = container_spec(bind_mounts=mounts, environment={"environment_variables": variables})
    node = TrialNode(tmp_path, runtime=runtime, spec=spec)
    trial = begin(node, 'report("ready")\ntime.sleep(600)\n')
    node.watch(trial, lambda: report_lines(trial))
    servers = ContainerServers(runtime, trial.directory.agent)
    with connect_machine(tmp_path, servers, relay) as machine:
        seen = machine.run(HOST_NAME, "id -u; pwd; echo $COLOUR; cat", typed="typed")
        assert seen == f"{USER}\n{trial.directory.code}\nblue\ntyped"
        with Terminal(machine, "sh", rows=30, columns=90) as terminal:
            terminal.type("stty size; exit 5\r")
            terminal.wait_for("30 90\r\n")
            assert terminal.process.wait(PROCESS_SECONDS_MAX) == 5
        data = machine.folder / "data"
        data.write_bytes(random.Random(3).randbytes(2_000_000))
        machine.run("-q", str(data), f"{HOST_NAME}:copy", program="scp")
        assert (trial.directory.code / "copy").read_bytes() == data.read_bytes()
        assert (trial.directory.code / "copy").stat().st_uid == USER
    trial.kill(0)
    node.watch(trial)


@pytest.mark.nightly
def test_files_are_copied_in_all_ways(machine: Machine) -> None:
    data = random.Random(2).randbytes(3_000_000)
    tree = machine.folder / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "data").write_bytes(data)
    for options in ((), ("-O",)):
        machine.run("-q", *options, "-r", str(tree), f"{HOST_NAME}:copy", program="scp")
        assert (machine.cwd / "copy" / "a" / "data").read_bytes() == data
        back = machine.folder / "back"
        source = f"{HOST_NAME}:copy/a/data"
        machine.run("-q", *options, source, str(back), program="scp")
        assert back.read_bytes() == data
        shutil.rmtree(machine.cwd / "copy")
        machine.run("-q", *options, f"{HOST_NAME}:nothing", str(back), program="scp", code=1)
    commands = f"mkdir d\ncd d\nput {tree}/a/data x\nrename x y\nchmod 600 y\nls\n"
    machine.run("-b", "-", HOST_NAME, program="sftp", typed=commands)
    assert (machine.cwd / "d" / "y").read_bytes() == data
    if shutil.which("rsync"):
        shell = f"ssh -F {machine.config}"
        command = ["rsync", "-a", "-e", shell, f"{tree}/", f"{HOST_NAME}:tree/"]
        subprocess.run(command, check=True, timeout=PROCESS_SECONDS_MAX)
        assert (machine.cwd / "tree" / "a" / "data").read_bytes() == data


@pytest.mark.nightly
def test_master_carries_many_sessions_and_ports(machine: Machine) -> None:
    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello\n")

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Hello)
    Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_server((HOST, 0)) as free:
        local = free.getsockname()[1]
    forward = f"{local}:{HOST}:{server.server_port}"
    # OpenSSH's master goes into the background, and would keep pipes open.
    command = ["ssh", "-F", str(machine.config), "-f", "-N", "-M", "-L", forward, HOST_NAME]
    null = subprocess.DEVNULL
    subprocess.run(command, check=True, timeout=PROCESS_SECONDS_MAX, stdout=null, stderr=null)
    try:
        with socket.create_connection((HOST, local)) as connection:
            connection.settimeout(ANSWER_SECONDS_MAX)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            received = b""
            while part := connection.recv(4_096):
                received += part
        assert received.endswith(b"hello\n")
        shells = [
            subprocess.Popen(
                ["ssh", "-F", str(machine.config), HOST_NAME, "read x; echo $x"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(10)
        ]
        # All sessions are open before the first one ends.
        answers = [shell.communicate(f"{number}\n")[0] for number, shell in enumerate(shells)]
        assert answers == [f"{number}\n" for number in range(10)]
        remote = f"0:{HOST}:{server.server_port}"
        port = machine.run("-O", "forward", "-R", remote, HOST_NAME).strip()
        fetch = f"import urllib.request as u; print(u.urlopen('http://{HOST}:{port}').read())"
        assert "hello" in machine.run(HOST_NAME, f'{sys.executable} -c "{fetch}"')
    finally:
        machine.run("-O", "exit", HOST_NAME)
        server.shutdown()
        server.server_close()


@pytest.mark.nightly
def test_programs_end_with_their_client_unless_they_ignore_it(machine: Machine) -> None:
    kept, ended = machine.folder / "kept", machine.folder / "ended"
    loop = "while sleep 0.05; do date +%s%N > {}; done"
    machine.run(
        HOST_NAME, f"nohup sh -c '{loop.format(kept)}' > log 2>&1 & echo $! > {machine.folder}/pid"
    )
    command = ["ssh", "-F", str(machine.config), HOST_NAME, loop.format(ended)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as client:
        wait_until(ended.exists, ANSWER_SECONDS_MAX)
        client.kill()

    def has_ended() -> bool:
        before, other = ended.read_bytes(), kept.read_bytes()
        wait_until(lambda: kept.read_bytes() != other, ANSWER_SECONDS_MAX)
        return ended.read_bytes() == before

    wait_until(has_ended, ANSWER_SECONDS_MAX)
    os.kill(int((machine.folder / "pid").read_text()), signal.SIGKILL)
