"""Hints on a custom search whose search method is there, away, or was never started."""

import time
from typing import Any

import pytest

from detcloud.cli.rendering.hints import print_search_method_hint
from detcloud.client import Client, Experiment

NOW_SECONDS = 1_800_000_000
NOW_TEXT = "2027-01-15 08:00:00+0000"


def hint(method: dict[str, Any] | None, capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    data = {"id": 3, "state": "ACTIVE", "search_method": method, **more}
    print_search_method_hint(Experiment(Client("http://cluster.test", "token"), data))
    return capsys.readouterr().err


def test_one_that_nobody_started_is_told_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert hint({"heard_ms": None, "events_waiting": 1}, capsys) == (
        "hint: experiment 3 waits for its search method, which is not running; start it with "
        "detcloud.searcher.LocalSearchRunner(method, folder).attach(3)\n"
    )


@pytest.mark.parametrize(
    ("seconds", "what"),
    [(80, "has a search method,"), (100, "waits for its search method,")],
)
def test_one_that_was_there_is_told_since_when(
    seconds: int,
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: float(NOW_SECONDS + seconds))
    assert hint({"heard_ms": NOW_SECONDS * 1000, "events_waiting": 2}, capsys) == (
        f"hint: experiment 3 {what} last seen at {NOW_TEXT}; 2 unanswered events\n"
    )


def test_nothing_is_said_of_other_searches_and_of_one_that_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    method = {"heard_ms": None, "events_waiting": 1}
    assert hint(None, capsys) == ""
    assert hint(method, capsys, state="COMPLETED") == ""
