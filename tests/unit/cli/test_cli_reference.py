"""Reference in docs/: the commands as they are."""

from pathlib import Path

from detcloud.cli.framework.command_index import COMMANDS, NOUN_ALIASES, NOUNS
from detcloud.cli.framework.exit_codes import EXIT_CODES
from detcloud.cli.framework.grammar import command_forms
from detcloud.cli.framework.original_commands import REPLACED_NOUNS, REPLACED_VERBS
from detcloud.cli.reference import render_reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render_reference(), "run `make references`"


def test_every_command_and_exit_code_is_in_it() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n### detcloud {command.name}\n" in text
    assert all(f"\n| {code} | " in text for code in EXIT_CODES)


def test_every_list_and_description_has_three_forms() -> None:
    forms = command_forms()
    verbs = ("list", "describe", "history", "replay", "metrics", "files", "info", "whoami")
    described = [command for command in COMMANDS if command.verb.split("-")[0] in verbs]
    assert len(described) == 34
    for command in described:
        flags = {flag for option in forms[command.name].options for flag in option.flags}
        assert flags >= {"--json", "--yaml", "--csv"}, command.name


def test_no_table_is_broken() -> None:
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 3, line


def test_what_is_elsewhere_is_not_here() -> None:
    assert not REPLACED_NOUNS.keys() & {*NOUNS, *NOUN_ALIASES}
    here = {command.name for command in COMMANDS}
    assert not REPLACED_VERBS.keys() & here
    assert {typed.split(" ")[0] for typed in REPLACED_VERBS} <= {*NOUNS, *REPLACED_NOUNS}
