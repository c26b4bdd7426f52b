"""Commands on a real cluster, entered as by a user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.client.command import Command, read_command
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path_factory.mktemp("commands") / "home")
    one.start()
    yield one
    one.end()


def start(cluster: EmbeddedCluster, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    environment = cluster.environment() | {
        "DETCLOUD_URL": cluster.record()["url"],
        "DETCLOUD_TOKEN": (cluster.home / "token").read_text().strip(),
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "detcloud.cli.main", "command", *words],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cluster: EmbeddedCluster, *words: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """Run `detcloud command WORDS`; return the exit code, the output and the errors."""
    process = start(cluster, *words, cwd=cwd)
    out, err = process.communicate(timeout=PROCESS_SECONDS_MAX)
    return process.returncode, out, err


def has_ended(command: Command) -> bool:
    command.refresh()
    return command.has_ended


def has_printed(command: Command, text: str) -> bool:
    trial = command.trial()
    return trial is not None and text in trial.log_chunk()["text"]


def test_program_runs_with_arguments_files_and_variables(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "show.sh").write_text('printf "[%s]" "$GREETING" "$@"; ls; exit 7\n')
    options = ["--config", "environment.environment_variables=[GREETING=good day]"]
    program = ["bash", "show.sh", "a  b", "", "$HOME", "--detach"]
    code, out, err = run(cluster, "run", "-c", str(context), *options, "--", *program)
    assert (code, out) == (7, "[good day][a  b][][$HOME][--detach]show.sh\n")
    assert "ended with exit code 7" in err
    _, listed, _ = run(cluster, "list", "--quiet")
    _, described, _ = run(cluster, "describe", listed.split()[0], "--csv")
    assert ",7," in described.splitlines()[1]
    _, log, _ = run(cluster, "logs", listed.split()[0])
    assert log == out


def test_successful_program_ends_the_command_with_exit_code_0(cluster: EmbeddedCluster) -> None:
    code, out, _ = run(cluster, "run", "--config", "resources.slots=0", "echo", "hello")
    assert (code, out) == (0, "hello\n")


def test_ctrl_c_detaches_and_kill_ends_the_program(cluster: EmbeddedCluster) -> None:
    process = start(cluster, "run", "--", "bash", "-c", "echo begun; sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PROCESS_SECONDS_MAX)
    assert process.returncode == 130
    command_id = int(err.split("command ")[1].split()[0])
    assert f"end it with `detcloud command kill {command_id}`" in err
    command = read_command(cluster.client(), command_id)
    assert command.state == "ACTIVE"
    assert run(cluster, "kill", str(command_id))[0] == 0
    wait_until(lambda: has_ended(command))
    assert command.state == "CANCELED"


def test_program_outlives_the_server(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"echo begun; until test -e {gate}; do sleep 0.1; done; echo done"
    _, out, _ = run(cluster, "run", "--detach", "bash", "-c", script)
    command = read_command(cluster.client(), int(out))
    wait_until(lambda: has_printed(command, "begun"))
    cluster.kill()
    cluster.start()
    gate.touch()
    command = read_command(cluster.client(), int(out))
    wait_until(lambda: has_ended(command))
    trial = command.trial()
    assert trial is not None
    assert (command.state, trial.exit_code) == ("COMPLETED", 0)
    # The log of a single run, from the first line to the last.
    assert trial.log_chunk()["text"] == "begun\ndone\n"


def test_lost_program_ends_the_command_with_the_reason(cluster: EmbeddedCluster) -> None:
    _, out, _ = run(cluster, "run", "-d", "bash", "-c", "echo $$; sleep 600")
    command = read_command(cluster.client(), int(out))
    wait_until(lambda: has_printed(command, "\n"))
    trial = command.trial()
    assert trial is not None
    program = int(trial.log_chunk()["text"])
    # As by an operator or the kernel: the program and its supervisor are gone.
    with open(f"/proc/{program}/stat", encoding="ascii") as stat:  # noqa: PTH123
        launcher = int(stat.read().split()[3])
    supervisor = int(Path(f"/proc/{launcher}/stat").read_text().split()[3])
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: has_ended(command))
    assert command.state == "ERROR"
    assert command.message is not None
    assert command.message.startswith("lost: ")
    assert command.message.endswith("it runs once, so start another one")
