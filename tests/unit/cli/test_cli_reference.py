"""The reference in docs/ is what the commands are."""

from pathlib import Path

from detcloud.cli.commands import COMMANDS, EXIT_CODES, NOUN_ALIASES, NOUNS
from detcloud.cli.elsewhere import NOUNS_ELSEWHERE, VERBS_ELSEWHERE
from detcloud.cli.grammar import forms, typed_as
from detcloud.cli.reference import reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_document_is_up_to_date() -> None:
    again = "PYTHONPATH=harness python -m detcloud.cli.reference > docs/cli.md"
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), f"write it again: {again}"


def test_every_command_and_exit_code_is_in_it() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n### detcloud {typed_as(command)}\n" in text
    assert all(f"\n| {code} | " in text for code in EXIT_CODES)


def test_every_list_and_description_has_three_forms() -> None:
    known = forms()
    verbs = ("list", "describe", "history", "replay", "metrics", "files", "info", "whoami")
    shown = [command for command in COMMANDS if command.verb.split("-")[0] in verbs]
    assert len(shown) == 25
    for command in shown:
        flags = {flag for option in known[command.place].options for flag in option.flags}
        assert flags >= {"--json", "--yaml", "--csv"}, typed_as(command)


def test_no_table_is_broken() -> None:
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 3, line


def test_what_is_elsewhere_is_not_here() -> None:
    assert not NOUNS_ELSEWHERE.keys() & {*NOUNS, *NOUN_ALIASES}
    here = {typed_as(command) for command in COMMANDS}
    assert not VERBS_ELSEWHERE.keys() & here
    assert {typed.split(" ")[0] for typed in VERBS_ELSEWHERE} <= NOUNS.keys()
