"""Exit codes, and hints for commands and options of Determined with different names here."""

import pytest

from detcloud import DetcloudError
from detcloud.cli.framework.exit_codes import EXIT_CODES
from detcloud.cli.framework.failures import RefusedConfigError, exit_code
from detcloud.cli.framework.nouns import NOUN_ALIASES, NOUNS
from detcloud.client import NoCluster
from detcloud.shared.http import ApiError, Unreachable
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DetcloudError("x"), 1),
        (OSError("x"), 1),
        (KeyError("x"), 1),
        (ApiError(404, "not_found", "x"), 3),
        (ApiError(409, "conflict", "x"), 3),
        (ApiError(422, "invalid", "x"), 3),
        (RefusedConfigError("f", ApiError(422, "invalid", "x")), 3),
        (ApiError(429, "rate_limited", "x"), 4),
        (ApiError(503, "unavailable", "x"), 4),
        (Unreachable("x"), 4),
        (NoCluster("x"), 4),
    ],
)
def test_exit_code_of_an_error(error: Exception, expected: int) -> None:
    assert exit_code(error) == expected
    assert expected in EXIT_CODES


@pytest.mark.usefixtures("quick_retries")
def test_commands_end_with_all_exit_codes(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {})
    ended = {
        0: detcloud("wait", "1", "--polling-interval", "0.001"),
        1: detcloud("create", "none.yaml", "."),
        2: detcloud("wait"),
        3: detcloud("pause", "1"),
        4: detcloud("list", "--url", "http://127.0.0.1:1"),
    }
    assert {code: done.code for code, done in ended.items()} == {n: n for n in range(5)}


def test_help_lists_exit_codes(detcloud: Detcloud) -> None:
    text = detcloud("--help").out
    assert "\nexit codes:\n" in text
    assert all(f"\n  {code:<3}  {meaning}" in text for code, meaning in EXIT_CODES.items())


@pytest.mark.parametrize(
    ("words", "typed", "instead"),
    [
        (["workspace", "create", "a"], "workspace create", "exists while it has experiments"),
        (["w", "list-projects", "a"], "workspace list-projects", "project list WORKSPACE"),
        (["p", "list-experiments", "a", "b"], "project list-experiments", "--workspace"),
        (["user", "create", "bob"], "user create", "`detcloud token create USER`"),
        (["user", "login"], "user login", "`detcloud token login`"),
        (["token", "edit", "1"], "token edit", "revoke the old token"),
        (["resources", "list"], "resources", "`detcloud job list`"),
        (
            ["rp", "bindings", "add"],
            "resource-pool bindings",
            "all workspaces share all pools",
        ),
        (["task", "list"], "task list", "`detcloud job list` lists running"),
        (["task"], "task", "`detcloud job list` lists running jobs"),
    ],
)
def test_unsupported_determined_commands_name_the_replacement(
    words: list[str], typed: str, instead: str, detcloud: Detcloud
) -> None:
    code, out, err = detcloud(*words)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == f"error: `detcloud {typed}` is not a known command"
    assert second.startswith("hint: ")
    assert instead in second


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (
            ["-m", "http://x", "e", "list"],
            "-m is not a known option",
            "`--url URL` or DETCLOUD_URL",
        ),
        (["--master=http://x", "list"], "--master is not a known option", "`--url URL`"),
        (["-u", "ada", "list"], "-u is not a known option", "DETCLOUD_TOKEN identifies you"),
        (
            ["list-trials", "1"],
            "is not a known command",
            "did you mean `detcloud experiment list-trials`?",
        ),
        (["lc", "1"], "is not a known command", "did you mean `detcloud experiment lc`?"),
        (["create", "a", "b", "--pause"], "arguments: --pause", "did you mean --paused?"),
        (
            ["create", "a", "b", "--config", "x"],
            "'x' is not of the form KEY=VALUE",
            "`detcloud create --help`",
        ),
        (
            ["config", "check", "a", "--config", "=1"],
            "'=1' is not of the form KEY",
            "`detcloud config check",
        ),
    ],
)
def test_determined_options_have_a_hint(
    words: list[str], error: str, hint: str, detcloud: Detcloud
) -> None:
    code, out, err = detcloud(*words)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert error in first
    assert hint in second


def test_incomplete_command_lists_possible_words(detcloud: Detcloud) -> None:
    assert detcloud("e", "label").err.splitlines() == [
        "error: `detcloud experiment label` needs one more word",
        "hint: commands: `detcloud experiment label add`, `detcloud experiment label remove`",
    ]
    assert detcloud("e", "label", "ad").code == 2
    assert detcloud("e", "set", "nam", "1", "x").code == 2
    assert set(NOUN_ALIASES.values()) <= NOUNS.keys()
