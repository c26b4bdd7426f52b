"""The generated reference docs/cli.md."""

from pathlib import Path

from detcloud.cli.framework.command_index import COMMANDS
from detcloud.cli.framework.exit_codes import EXIT_CODES
from detcloud.cli.framework.grammar import command_forms
from detcloud.cli.framework.nouns import NOUN_ALIASES, NOUNS
from detcloud.cli.framework.original_commands import REPLACED_NOUNS, REPLACED_VERBS
from detcloud.cli.reference import render_reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def test_cli_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render_reference(), "run `make references`"


def test_reference_contains_all_commands_and_exit_codes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n### detcloud {command.name}\n" in text
    assert all(f"\n| {code} | " in text for code in EXIT_CODES)


def test_lists_and_descriptions_have_three_formats() -> None:
    forms = command_forms()
    verbs = ("list", "describe", "history", "replay", "metrics", "files", "info", "whoami")
    described = [command for command in COMMANDS if command.verb.split("-")[0] in verbs]
    assert len(described) == 44
    for command in described:
        flags = {flag for option in forms[command.name].options for flag in option.flags}
        assert flags >= {"--json", "--yaml", "--csv"}, command.name


def test_tables_of_the_reference_are_well_formed() -> None:
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 3, line


def test_asterisks_of_a_pattern_are_no_emphasis() -> None:
    assert r"'\*\*/\*.pth'" in DOCUMENT.read_text(encoding="utf-8")


def test_replaced_commands_do_not_exist() -> None:
    assert not REPLACED_NOUNS.keys() & {*NOUNS, *NOUN_ALIASES}
    here = {command.name for command in COMMANDS}
    assert not REPLACED_VERBS.keys() & here
    without_verbs = {name for name in here if " " not in name}
    nouns = {*NOUNS, *REPLACED_NOUNS, *without_verbs}
    assert {typed.split(" ")[0] for typed in REPLACED_VERBS} <= nouns
