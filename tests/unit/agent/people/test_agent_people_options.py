"""The options for machines that people use, and their environment variables."""

from __future__ import annotations

import sys

import pytest

from detcloud.agent.options import PEOPLE_AT_CONSOLE, PEOPLE_HOURS, parse_options

REQUIRED = ["--url", "http://c", "--name", "n", "--pool", "p", "--work-dir", "w"]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PEOPLE_HOURS, PEOPLE_AT_CONSOLE):
        monkeypatch.delenv(name, raising=False)


def parse(monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[list[str], bool]:
    """Return the texts of the hours, and whether the console counts."""
    monkeypatch.setattr(sys, "argv", ["agent", *REQUIRED, *options])
    parsed = parse_options()
    return [hours.text for hours in parsed.people_hours], parsed.people_at_console


def test_options_for_people_are_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(monkeypatch) == ([], False)


def test_variables_are_defaults_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PEOPLE_HOURS, "mon 09:00-10:00; tue 11:00-12:00;")
    monkeypatch.setenv(PEOPLE_AT_CONSOLE, "1")
    assert parse(monkeypatch) == (["mon 09:00-10:00", "tue 11:00-12:00"], True)
    assert parse(monkeypatch, "--people-hours", "01:00-02:00")[0] == ["01:00-02:00"]


@pytest.mark.parametrize(
    "options",
    [("--people-hours", "9-18"), ("--people-delay-minutes", "-1"), ("--people-running", "kill")],
)
def test_unusable_values_end_the_start(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(monkeypatch, *options)


def test_unusable_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PEOPLE_HOURS, "always")
    with pytest.raises(SystemExit, match="2"):
        parse(monkeypatch)
    assert f"{PEOPLE_HOURS} must be hours such as" in capsys.readouterr().err
