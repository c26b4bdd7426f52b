"""The documents name commands that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.cli.framework.command_index import COMMANDS, NOUN_ALIASES, NOUNS, flat_commands
from docs_site.links import CODE

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    path
    for pattern in ("README.md", "docs/*.md", "docs/tutorials/*.md", "docs/runbook/*.md")
    for path in ROOT.glob(pattern)
)
# A command after the start of a line, a prompt, or an operator of the shell.
COMMAND = re.compile(r"(?:^|[(&;|]\s*|\$ )detcloud((?: +[^\s`|;&)]+)+)", re.MULTILINE)
# Words of a command are in lower case; the rest is an argument, an option or a placeholder.
WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
GLOBAL_OPTION = re.compile(r"--(?:url|det)\b\S*(?: +\S*[A-Z:/]\S*)?")


def documented_commands(text: str) -> Iterator[list[str]]:
    """Yield the leading words of each command in the blocks and spans of code of a text."""
    parts = [match[0].strip().strip("`") for match in CODE.finditer(text)]
    lines = [
        line
        for part in parts
        for line in part.splitlines()
        # The other lines of a console are output.
        if not part.startswith("console") or line.startswith("$ ")
    ]
    for match in COMMAND.finditer("\n".join(lines)):
        words = GLOBAL_OPTION.sub("", match[1]).split()
        found = []
        for word in words:
            if not WORD.fullmatch(word):
                break
            found.append(word)
        if found:
            yield found


def is_known(words: list[str]) -> bool:
    """Return whether a command begins with these words."""
    if words[0] in flat_commands() or words[0] == "help":
        return True
    noun = NOUN_ALIASES.get(words[0], words[0])
    if noun not in NOUNS:
        return False
    verbs = [
        verb.split()
        for command in COMMANDS
        if command.noun == noun
        for verb in (command.verb, *command.verb_aliases)
    ]
    rest = words[1:]
    return not rest or any(verb[: len(rest)] == rest[: len(verb)] for verb in verbs)


def test_documents_name_existing_commands() -> None:
    found = [
        (path, words)
        for path in DOCUMENTS
        for words in documented_commands(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 500
    unknown = [
        f"{path.relative_to(ROOT)}: detcloud {' '.join(words)}"
        for path, words in found
        if not is_known(words)
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```console\n$ detcloud trial list 1\ndetcloud has\n```\n", ["trial", "list"]),
        ("`detcloud experiment set priority 1`", ["experiment", "set", "priority"]),
        ("`detcloud --url https://x token login -`", ["token", "login"]),
        ("`cd x && detcloud create a.yaml .`, as detcloud lists", ["create"]),
    ],
)
def test_reads_commands_of_documents(text: str, words: list[str]) -> None:
    assert list(documented_commands(text)) == [words]
    assert is_known(words)


@pytest.mark.parametrize("words", [["trial", "show"], ["experiments"], ["experiment", "set", "x"]])
def test_commands_that_do_not_exist_are_unknown(words: list[str]) -> None:
    assert not is_known(words)
