"""`detcloud ssh`: the command of OpenSSH's client, settings, and errors before a connection."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="OpenSSH's client is not installed"
)


@pytest.fixture
def executions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands that would have replaced this process."""
    commands: list[list[str]] = []

    def execute(path: str, words: list[str]) -> None:
        commands.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execute)
    return commands


@pytest.fixture
def running(fake: FakeCluster) -> FakeCluster:
    """A cluster on which trial 1 of experiment 1 runs."""
    fake.add_experiment({"name": "mine"}, {})
    fake.trials.pop()
    return fake


def options_of(words: list[str]) -> dict[str, str]:
    pairs = [word.removeprefix("-o").split("=", 1) for word in words if word.startswith("-o")]
    return dict(pairs)


def test_openssh_gets_host_options_and_command(
    running: FakeCluster, detcloud: Detcloud, executions: list[list[str]]
) -> None:
    assert detcloud("ssh", "1", "-L", "80:x:80", "ls", "-l").code == 0
    [words] = executions
    assert words[0] == "ssh"
    assert words[-5:] == ["detcloud-1", "-L", "80:x:80", "ls", "-l"]
    options = options_of(words)
    assert options["StrictHostKeyChecking"] == "yes"
    proxy = shlex.split(options["ProxyCommand"])
    assert proxy[-6:] == ["detcloud.cli.main", "ssh", "proxy", "--url", running.url, "%n"]


def test_trial_has_a_host_name_of_its_own(
    running: FakeCluster, detcloud: Detcloud, executions: list[list[str]]
) -> None:
    assert detcloud("ssh", "--trial", "12", "--", "true").code == 0
    assert executions[0][-2:] == ["detcloud-trial-12", "true"]


def test_options_of_ssh_open_a_shell_with_ssh(
    running: FakeCluster, detcloud: Detcloud, executions: list[list[str]]
) -> None:
    assert detcloud("shell", "open", "1", "--", "-A").code == 0
    assert executions[0][-2:] == ["detcloud-1", "-A"]


@pytest.mark.parametrize("verb", ["show-ssh-command", "show_ssh_command"])
def test_command_of_a_shell_is_printed_as_a_line(
    running: FakeCluster, detcloud: Detcloud, verb: str
) -> None:
    done = detcloud("shell", verb, "1")
    words = shlex.split(done.out)
    assert (done.code, words[0], words[-1]) == (0, "ssh", "detcloud-1")


def test_ended_experiment_is_refused_before_openssh_starts(
    running: FakeCluster, detcloud: Detcloud, executions: list[list[str]]
) -> None:
    running.experiments[0]["state"] = "COMPLETED"
    done = detcloud("ssh", "1")
    assert done.code == 1
    assert "no trial of 1 runs now" in done.err
    assert executions == []


def test_settings_are_installed_once(
    running: FakeCluster, detcloud: Detcloud, own_home: Path
) -> None:
    (own_home / ".ssh").mkdir()
    (own_home / ".ssh" / "config").write_text("Host a\n")
    for _ in range(2):
        done = detcloud("ssh", "config", "--install")
        assert done.code == 0
        assert done.out.startswith("Host detcloud-*\n")
        # An editor lacks the variable DETCLOUD_URL of this terminal.
        assert f"--url {running.url} %n" in done.out
    text = (own_home / ".ssh" / "config").read_text()
    assert text.count("Include") == 1
    assert text.endswith("\nHost a\n")
    assert [copy.name for copy in (own_home / ".ssh").glob("*before*")] == [
        "config.before-detcloud"
    ]


def test_prefix_names_the_hosts_of_another_cluster(
    running: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("ssh", "config", "--prefix", "team")
    assert done.out.startswith("Host team-*\n")
    assert f"--url {running.url} %n" in done.out
    assert "begin host names" in detcloud("ssh", "config", "--prefix", "*").err


def test_other_host_names_are_refused(running: FakeCluster, detcloud: Detcloud) -> None:
    done = detcloud("ssh", "proxy", "example.com")
    assert done.code == 1
    assert "expected detcloud-ID or detcloud-trial-ID" in done.err
