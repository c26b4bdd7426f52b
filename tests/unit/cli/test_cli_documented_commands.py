"""The command line accepts each command in the blocks of code of the documents.

Commands are parsed, not run. Words in capitals stand for values of the reader.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.cli.framework.command_parser import load_command
from detcloud.cli.framework.usage_error import UsageError
from detcloud.cli.main import _find_command, _split_leading_url

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    path
    for pattern in (
        "README.md",
        "docs/*.md",
        "docs/runbook/*.md",
        "docs/tutorials/*.md",
        "examples/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
]
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SHELLS = ("", "sh", "console")
_COMMAND = re.compile(r"detcloud (?:--url|[a-z])")
_PLACEHOLDER = re.compile(r"\b(?:TEAM|URL)\b")
_HELP = ("-h", "--help", "--version")


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words after `detcloud` of each command in the blocks of a document."""
    for language, block in _BLOCK.findall(text):
        for line in block.splitlines() if language in _SHELLS else ():
            typed = line.strip()
            # Other lines of a console are output.
            if language == "console" and not typed.startswith("$ "):
                continue
            typed = typed.removeprefix("$ ")
            if _COMMAND.match(typed):
                yield from _commands_of_line(typed)


def _commands_of_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(_PLACEHOLDER.sub("team", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for token in [*lexer, ";"]:
        if not set(token) <= set("();<>|&"):
            words.append(token)
            continue
        if words[:1] == ["detcloud"]:
            yield words[1:]
        words = []


def problem_of(words: list[str]) -> str:
    """Return why the command line refuses the words after `detcloud`, or ""."""
    _, rest = _split_leading_url(words)
    if rest[0] in _HELP or rest[-1] in _HELP:
        return ""
    try:
        command, typed, arguments = _find_command(rest)
        parser, _ = load_command(command, typed)
        parser.parse_command(arguments)
    except (UsageError, SystemExit) as error:
        return f"{' '.join(words)}: {error}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_are_accepted(page: Path) -> None:
    problems = [problem_of(words) for words in commands_of(page.read_text(encoding="utf-8"))]
    assert [problem for problem in problems if problem] == []


def test_commands_of_pipes_and_comments_are_separate() -> None:
    text = "```sh\ndetcloud list --json | jq .    # all\ndetcloud down && detcloud up\n```\n"
    assert list(commands_of(text)) == [["list", "--json"], ["down"], ["up"]]


def test_output_of_a_console_is_no_command() -> None:
    text = "```console\n$ detcloud wait 1\ndetcloud is no command here\n```\n"
    assert list(commands_of(text)) == [["wait", "1"]]


def test_unknown_option_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert problem_of(["list", "--no-such-option"]) != ""
    assert "--no-such-option" in capsys.readouterr().err
