"""Hints on a custom search, and the address of an experiment on the web page."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from detcloud.cli.rendering.hints import print_page_link, print_search_method_hint
from detcloud.client import Client, Experiment

NOW_SECONDS = 1_800_000_000
NOW_TEXT = "2027-01-15 08:00:00+0000"


def hint(
    method: dict[str, Any] | None,
    capsys: pytest.CaptureFixture[str],
    state: str = "ACTIVE",
    now_seconds: int = NOW_SECONDS,
) -> str:
    data = {"id": 3, "state": state, "search_method": method}
    experiment = Experiment(Client("http://cluster.test", "token"), data)
    print_search_method_hint(experiment, lambda: float(now_seconds))
    return capsys.readouterr().err


def test_hint_explains_starting_a_missing_search_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert hint({"heard_ms": None, "events_waiting": 1}, capsys) == (
        "hint: experiment 3 waits for its search method, which is not running; start it with "
        "detcloud.searcher.LocalSearchRunner(method, folder).attach(3)\n"
    )


@pytest.mark.parametrize(
    ("seconds", "clause"),
    [(80, "has a search method,"), (100, "waits for its search method,")],
)
def test_hint_names_the_last_contact_of_a_search_method(
    seconds: int, clause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    method = {"heard_ms": NOW_SECONDS * 1000, "events_waiting": 2}
    assert hint(method, capsys, now_seconds=NOW_SECONDS + seconds) == (
        f"hint: experiment 3 {clause} last seen at {NOW_TEXT}; 2 unanswered events\n"
    )


def test_built_in_and_ended_searches_have_no_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    method = {"heard_ms": None, "events_waiting": 1}
    assert hint(None, capsys) == ""
    assert hint(method, capsys, state="COMPLETED") == ""


def page_client(files: list[str]) -> Any:
    """Make a client of a cluster whose page has these files."""
    answer = {"files": files, "policy": ""}
    return SimpleNamespace(
        http=SimpleNamespace(base_url="http://127.0.0.1:8470", request=lambda *words: answer)
    )


@pytest.mark.parametrize(
    ("is_terminal", "files", "printed"),
    [
        (True, ["index.html"], "page: http://127.0.0.1:8470/ui/#/experiments/3\n"),
        (True, [], ""),
        (False, ["index.html"], ""),
    ],
)
def test_page_link_is_printed_on_terminals_if_a_page_exists(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    files: list[str],
    printed: str,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    print_page_link(page_client(files), "experiments/3")
    assert capsys.readouterr().err == printed
