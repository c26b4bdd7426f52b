"""The line that shows why a new notebook or shell does not run yet."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detcloud.cli.commands import start_progress
from detcloud.cli.commands.start_progress import StartProgress
from detcloud.cli.rendering import progress as progress_lines
from detcloud.client import Experiment, Trial
from detcloud.shared.http import ApiError

NOW_MS = 1_000_000


class FakeRun:
    """A queued run with answers to requests. None is the answer of an old cluster."""

    id = 5

    def __init__(self, *activities: dict[str, Any] | None) -> None:
        self.activities = list(activities)

    def activity(self) -> dict[str, Any]:
        answer = self.activities.pop(0)
        if answer is None:
            raise ApiError(404, "not_found", "no such path")
        return answer


class Start:
    """A progress whose clock the test moves."""

    def __init__(self, *activities: dict[str, Any] | None) -> None:
        self.run = FakeRun(*activities)
        self.seconds = 0.0
        self.progress = StartProgress(
            cast(Experiment, self.run), "shell", lambda: self.seconds, lambda: NOW_MS
        )

    def show(self, seconds: float, state: str = "") -> None:
        self.seconds = seconds
        allocation = {"state": state} if state else None
        self.progress.show(cast(Trial, SimpleNamespace(data={"allocation": allocation})))


def queued_activity(reason: str, start_ms: int | None = None) -> dict[str, Any]:
    return {"reason": f"waits: {reason}", "expected_start_ms": start_ms}


def test_file_gets_each_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    busy, starting = (
        queued_activity("all slots are busy"),
        queued_activity("a machine starts", NOW_MS + 90_000),
    )
    start = Start(busy, starting, starting)
    # A free slot would be assigned within the first seconds.
    start.show(0.0)
    assert capsys.readouterr().err == ""
    for seconds in (5.0, 5.5, 9.5, 10.5):
        start.show(seconds)
    start.show(11.0, "PULLING")
    assert capsys.readouterr().err.splitlines() == [
        "shell 5 waits: a machine starts",
        "shell 5 starts: its machine fetches the code and the image",
    ]
    assert start.run.activities == []


def test_terminal_shows_the_reason_the_expected_start_and_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (start_progress, progress_lines):
        monkeypatch.setattr(module, "is_live", lambda stream: stream is sys.stderr)
    monkeypatch.setattr(progress_lines, "terminal_width", lambda stream: 200)
    start = Start(
        queued_activity("a machine starts", NOW_MS + 90_000),
        queued_activity("it is your turn", NOW_MS),
    )
    with start.progress:
        start.show(2.0)
        start.show(7.0)
        start.show(8.0, "STARTING")
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert lines == [
        "",
        "shell 5 waits: a machine starts; start expected in 1 min 30 s; 2 s",
        "shell 5 waits: it is your turn; start expected now; 7 s",
        "shell 5 starts: its machine prepares the environment; 8 s",
        "",
    ]


def test_cluster_without_reasons_only_waits(capsys: pytest.CaptureFixture[str]) -> None:
    start = Start(None)
    start.show(6.0)
    start.progress.show(None)
    assert capsys.readouterr().err == "shell 5 waits for a slot\n"
