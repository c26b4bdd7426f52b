"""`detcloud ssh` on one machine: OpenSSH's programs, the server's relay, and the end of a trial."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import miss, require_installed
from tests.end_to_end.laptop import DETCLOUD, Laptop
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
