"""`detcloud ssh` on one machine: OpenSSH's programs, the server's relay, and the end of a trial."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import miss, require_installed
from tests.emulators.server import free_port
from tests.end_to_end.laptop import DETCLOUD, DIGITS, Laptop
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

require_installed("asyncssh")
if shutil.which("ssh") is None:
    miss("ssh", "OpenSSH's client is missing")


def start_command(laptop: Laptop, *words: str) -> int:
    """Run a program as a command; return the id once the program runs."""
    run = laptop.run("command", "run", "--detach", *words).stdout
    number = int(re.findall(r"\d+", run)[0])
    wait_until(lambda: any(one.allocation.startswith(f"{number}.") for one in laptop.running()))
    return number


def ssh_config(laptop: Laptop) -> tuple[str, str]:
    """Return the option of OpenSSH's programs that names the settings for trials."""
    laptop.run("ssh", "config")
    return "-F", str(laptop.home / "ssh" / "config")


@contextlib.contextmanager
def background(laptop: Laptop, *command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env=laptop.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ssh_runs_programs_of_the_trial_until_the_trial_ends(laptop: Laptop) -> None:
    laptop.run("up")
    command = start_command(laptop, "sleep", "1000")
    shown = laptop.run("ssh", command, "pwd; echo trial $DET_TRIAL_ID; exit 4", code=4)
    assert shown.stdout == f"{laptop.home}/agent/allocations/{command}.1/code\ntrial {command}\n"
    assert shown.stderr == ""
    words = "ssh", str(command), "echo begun; sleep 1000"
    with background(laptop, *DETCLOUD, *words) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "begun\n"
        laptop.run("command", "kill", command)
        rest = session.stdout.read()
        assert "detcloud: the tunnel was closed: the allocation ended" in rest
        assert session.wait(PROCESS_SECONDS_MAX) == 255
    refused = laptop.run("ssh", command, "true", code=1).stderr
    assert f"no trial of {command} runs now" in refused
    assert "no trial 77" in laptop.run("ssh", "proxy", "detcloud-trial-77", code=3).stderr


@pytest.mark.nightly
def test_openssh_reaches_trials_by_host_names(laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("up", "--slots", 1)
    command = start_command(laptop, "sleep", "1000")
    host, config = f"detcloud-{command}", ssh_config(laptop)
    data = tmp_path / "data"
    data.write_bytes(bytes(range(256)) * 10_000)
    laptop.shell(["scp", "-q", *config, str(data), f"{host}:copied"]).check_returncode()
    code = laptop.home / "agent" / "allocations" / f"{command}.1" / "code"
    assert (code / "copied").read_bytes() == data.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = free.getsockname()[1]
    serve = "exec python3 -u -m http.server --bind 127.0.0.1 0"
    with background(laptop, "ssh", *config, "-tt", host, serve) as server:
        assert server.stdout is not None
        found = re.search(r"port (\d+)", server.stdout.readline())
        assert found is not None
        port = int(found.group(1))
        forward = f"{local}:127.0.0.1:{port}"
        with background(laptop, "ssh", *config, "-N", "-L", forward, host):

            def fetch() -> bytes:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", local), ANSWER_SECONDS_MAX) as page,
                ):
                    page.sendall(b"GET /copied HTTP/1.0\r\n\r\n")
                    parts = []
                    while part := page.recv(65_536):
                        parts.append(part)
                    return b"".join(parts)
                return b""

            assert wait_until(fetch).endswith(data.read_bytes())
    # As many clients as an editor and its helpers open at once; each has a tunnel of its own.
    clients = [
        subprocess.Popen(
            ["ssh", *config, f"detcloud-trial-{command}", "read x; echo $x"],
            env=laptop.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    answers = [client.communicate(f"{number}\n")[0] for number, client in enumerate(clients)]
    assert answers == [f"{number}\n" for number in range(20)]


@pytest.mark.nightly
def test_openssh_serves_an_editor_over_a_single_connection(laptop: Laptop, tmp_path: Path) -> None:
    """VS Code's server is not here. Its client uses a shared connection, SFTP and `-D`."""
    laptop.run("up", "--slots", 1)
    command = start_command(laptop, "sleep", "1000")
    host, config = f"detcloud-{command}", ssh_config(laptop)
    # Sockets have short paths.
    with tempfile.TemporaryDirectory() as folder, ssh_agent(laptop, Path(folder)) as agent:
        control = ("-A", "-o", f"ControlPath={folder}/control")
        local = free_port()
        master = ("-o", "ControlMaster=yes", "-N", "-D", f"127.0.0.1:{local}")
        with background(agent, "ssh", *config, *control, *master, host):
            wait_until(lambda: Path(folder, "control").exists())
            for number in range(10):
                done = agent.shell(["ssh", *config, *control, host, f"echo {number}; pwd"])
                assert done.stdout.startswith(f"{number}\n"), done
            batch = tmp_path / "batch"
            batch.write_text(
                f"put {DIGITS}/model_def.py\nmkdir kept\nrename model_def.py kept/m.py\n"
            )
            agent.shell(
                ["sftp", "-q", *config, *control, "-b", str(batch), host]
            ).check_returncode()
            listed = agent.shell(["ssh", *config, *control, host, "ls kept; ssh-add -l"])
            assert listed.stdout.startswith("m.py\n"), listed
            assert "the-users-own-key" in listed.stdout
            serve = "cd kept && exec python3 -u -m http.server --bind 127.0.0.1 0"
            with background(agent, "ssh", *config, *control, "-tt", host, serve) as server:
                assert server.stdout is not None
                found = re.search(r"port (\d+)", server.stdout.readline())
                assert found is not None
                page = fetch_over_socks(local, int(found.group(1)), "/m.py")
            assert page.endswith((DIGITS / "model_def.py").read_bytes())


@contextlib.contextmanager
def ssh_agent(laptop: Laptop, folder: Path) -> Iterator[Laptop]:
    """Yield the user with an agent of OpenSSH that has a key."""
    variables = {**laptop.environment, "SSH_AUTH_SOCK": f"{folder}/agent"}
    own = Laptop(laptop.home, **variables)
    with background(own, "ssh-agent", "-D", "-a", f"{folder}/agent"):
        wait_until(lambda: Path(folder, "agent").exists())
        key = folder / "key"
        words = ["-q", "-t", "ed25519", "-N", "", "-C", "the-users-own-key", "-f", str(key)]
        own.shell(["ssh-keygen", *words]).check_returncode()
        own.shell(["ssh-add", "-q", str(key)]).check_returncode()
        yield own


def fetch_over_socks(proxy: int, port: int, path: str) -> bytes:
    """Return the answer of a server of the trial's machine through a SOCKS 5 proxy."""
    with socket.create_connection(("127.0.0.1", proxy), ANSWER_SECONDS_MAX) as connection:
        connection.sendall(b"\x05\x01\x00")
        assert connection.recv(2) == b"\x05\x00"
        connection.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2, "big"))
        assert connection.recv(10)[:2] == b"\x05\x00"
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
        return b"".join(parts)
