"""Completion by the Tab key in real shells."""

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from detcloud.cli.commands.completion import SCRIPTS
from detcloud.cli.framework.completion_table import completion_table
from detcloud.cli.framework.grammar import command_forms, command_spellings
from tests.unit.cli.conftest import Detcloud

# Bash script that sets the COMP_ variables, calls the completion function and prints COMPREPLY.
ASK = """
source "$1"; shift
specification="$(complete -p detcloud)"
function="$(sed 's/.*-F \\([^ ]*\\).*/\\1/' <<< "$specification")"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@functools.cache
def words() -> dict[str, str]:
    return completion_table()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "detcloud.bash"
    path.write_text(SCRIPTS["bash"](words()))
    return path


def completions(script: Path, *typed: str) -> list[str]:
    """Return bash's completions for the last of the words."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", ASK, "bash", str(script), "detcloud", *typed],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parent,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["exp"], ["experiment"]),
        (["un"], ["unarchive"]),
        (["e", "un"], ["unarchive", "unpause"]),
        (["experiment", "lis"], ["list", "list-trials", "list-checkpoints"]),
        (["e", "label", ""], ["add", "remove"]),
        (["e", "se"], ["set"]),
        (["e", "set", "g"], ["gc-policy"]),
        (["e", "set", "gc-policy", "3", "--save-t"], ["--save-trial-best", "--save-trial-latest"]),
        (["trial", "logs", "1", "--le"], ["--level"]),
        (["trial", "logs", "1", "--level", "E"], ["ERROR"]),
        (["t", "logs", "--level", "ERROR", "--fo"], ["--follow"]),
        (["t", "logs", "--level", "=", "W"], ["WARNING"]),
        (["list", "--state", "ACTIVE", "--js"], ["--json"]),
        (["completion", ""], ["-h", "--help", "bash", "zsh", "fish"]),
        (["token", "create", "--role", "a"], ["admin"]),
        (["--url", "http://x", "st"], ["status"]),
        (["zzz"], []),
    ],
)
def test_bash_completes_the_next_word(typed: list[str], expected: list[str], script: Path) -> None:
    assert sorted(completions(script, *typed)) == sorted(expected)


def test_bash_completes_files_for_file_arguments(script: Path) -> None:
    (script.parent / "const file.yaml").touch()
    assert completions(script, "create", "const") == ["const", "file.yaml"]
    assert completions(script, "e", "create", "const.yaml", "model", "--include", "det") == [
        "detcloud.bash"
    ]
    assert completions(script, "pause", "const") == []


def test_completion_table_contains_all_commands_and_flags() -> None:
    forms = command_forms()
    for typed, command in command_spellings():
        flags = {flag for option in forms[command.name].options for flag in option.flags}
        assert flags <= set(words()[typed].split()), typed
        *before, last = typed.split(" ")
        assert last in words()[" ".join(before)].split(), typed


def test_completion_words_need_no_quoting() -> None:
    for typed, following in words().items():
        assert re.fullmatch(r"[A-Za-z0-9@ _-]*", typed + following), typed


@pytest.mark.parametrize("shell", SCRIPTS)
def test_shell_parses_its_completion_script(shell: str, detcloud: Detcloud, tmp_path: Path) -> None:
    done = detcloud("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "detcloud" in done.out
    _skip_without(shell)
    path = tmp_path / "script"
    path.write_text(done.out)
    subprocess.run([shell, "-n", str(path)], check=True)


def test_fish_completes_the_next_word(tmp_path: Path) -> None:
    _skip_without("fish")
    path = tmp_path / "detcloud.fish"
    path.write_text(SCRIPTS["fish"](words()))
    command = f"source {path}; complete -C 'detcloud trial logs 1 --level E'"
    done = subprocess.run(
        [shutil.which("fish") or "fish", "--no-config", "-c", command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["ERROR"]


def _skip_without(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
