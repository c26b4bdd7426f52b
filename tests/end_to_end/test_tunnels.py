"""`detcloud tunnel` on one machine: real programs, the server's relay, and kills."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from detcloud.cli.framework.exit_codes import INTERRUPTED
from tests.conftest import miss
from tests.end_to_end.agents import agents_of
from tests.end_to_end.browser import start_chromium
from tests.end_to_end.jupyter_steps import run_cell
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tunnel_steps import (
    Background,
    OpenTunnel,
    echo,
    read_lab,
    start_echo,
    use_shell_and_notebook,
    write_jupyterlab,
)
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end


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
    folder = write_jupyterlab(tmp_path / "context")
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


@pytest.mark.nightly
def test_machine_that_accepts_no_connection_is_reached(laptop: Laptop, tmp_path: Path) -> None:
    """The agent is in a network namespace, and its firewall drops all connections to it."""
    laptop.run("up", "--slots", 1)
    # Only the other machine has a free slot.
    laptop.run("command", "run", "--detach", "sleep", "1000")
    wait_until(lambda: len(laptop.running()) == 1)
    with agents_of(laptop) as agents:
        if not agents.refuses_connections("node-1"):
            miss("iptables", "this machine makes no networks with a firewall")
        agents.start("node-1", 1)
        wait_until(lambda: "node-1" in agents.alive())
        token = (laptop.home / "token").read_text().strip()
        url = laptop.record()["url"]
        person = Laptop(tmp_path / "elsewhere", DETCLOUD_URL=url, DETCLOUD_TOKEN=token)
        use_shell_and_notebook(person, tmp_path)


@pytest.mark.nightly
def test_real_jupyterlab_runs_a_cell_through_a_tunnel(remote_user: Laptop) -> None:
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
        with start_chromium() as chromium:
            context = chromium.new_context()
            run_cell(context.new_page(), url, "print(6 * 7)", "text=42")
    remote_user.run("notebook", "kill", 1)
