"""Arguments of `detcloud command`, and refusals before the cluster runs a program."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from detcloud.cli.commands.run_creation import parse_mount, program_words
from detcloud.cli.framework.nouns import NOUN_ALIASES, noun_spellings
from detcloud.client.client import Client
from detcloud.client.command import create_command
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["nvidia-smi", "-L"], ["nvidia-smi", "-L"]),
        (["--", "nvidia-smi", "-L"], ["nvidia-smi", "-L"]),
        # detcloud drops the first `--`; git gets the second.
        (["--", "git", "log", "--", "a"], ["git", "log", "--", "a"]),
        (["--"], []),
    ],
)
def test_two_dashes_before_the_program_are_dropped(words: list[str], program: list[str]) -> None:
    assert program_words(words) == program


def test_a_mount_is_two_paths() -> None:
    assert parse_mount("/data:/mnt") == {"host_path": "/data", "container_path": "/mnt"}


@pytest.mark.parametrize("text", ["/data", "/data:", ":/mnt", "/a:/b:ro", ""])
def test_malformed_mount_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected HOST_PATH:CONTAINER_PATH"):
        parse_mount(text)


def test_a_command_needs_a_program(detcloud: Detcloud) -> None:
    done = detcloud("cmd", "run", "--detach", "--")
    assert (done.code, done.out) == (1, "")
    assert "no program was given; name a program, such as `nvidia-smi`" in done.err


def test_mount_option_excludes_a_settings_file(detcloud: Detcloud, config: Path) -> None:
    done = detcloud("cmd", "run", "--config-file", str(config), "-v", "/a:/b", "true")
    assert done.code == 1
    assert "as `bind_mounts`" in done.err


def test_long_arguments_with_a_settings_file_are_refused(fake: FakeCluster, config: Path) -> None:
    with pytest.raises(DetcloudError, match="longer than 4096 characters"):
        create_command(Client(), ["echo", "x" * 4096], config=config)


def test_command_kill_refuses_an_experiment(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "digits"}, {})
    fake.experiments[0]["kind"] = "experiment"
    done = detcloud("command", "kill", "1")
    assert done.code == 1
    assert "1 is an experiment, not a command: see `detcloud command list`" in done.err
    assert fake.experiments[0]["state"] != "CANCELED"


def test_forced_kill_continues_and_reports_failure(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "program"}, {})
    fake.experiments[0]["kind"] = "command"
    done = detcloud("command", "kill", "--force", "8", "1", "9")
    assert done.code == 3
    assert done.out == "command 1 is being killed\n"
    assert done.err == "command 8: there is no command 8\ncommand 9: there is no command 9\n"


def test_error_for_an_unknown_id_says_command(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert detcloud("command", "kill", "9").err == (
        "error: there is no command 9\nhint: `detcloud command list --all` shows what exists\n"
    )


def test_command_and_cmd_are_both_known() -> None:
    assert noun_spellings("command") == ["command", "cmd"]
    assert NOUN_ALIASES["cmd"] == "command"
