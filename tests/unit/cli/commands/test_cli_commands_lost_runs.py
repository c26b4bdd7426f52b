"""The restart of a shell in an open terminal after its machine was lost."""

from __future__ import annotations

import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detcloud.cli.commands import lost_runs
from detcloud.cli.commands.lost_runs import RESTARTS_MAX, is_restorable, show_with_restarts
from detcloud.client.command import Command

SNAPSHOT = {"uuid": "u", "size_bytes": 1, "saved_ms": 1_800_000_000_000}


def shell(number: int, state: str = "ERROR", losses: int = 1, snapshot: Any = SNAPSHOT) -> Command:
    data = {"run": {"snapshot": snapshot}}
    trial = SimpleNamespace(losses=losses)
    return cast(Command, SimpleNamespace(id=number, state=state, data=data, trial=lambda: trial))


@pytest.fixture
def arguments() -> Namespace:
    return Namespace(detach=False, restored_from=None, context="code", includes=["more"])


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count the restarts: each entry is the source and the files that would be uploaded."""
    recorded: list[Any] = []

    def create(kind: str, arguments: Namespace) -> Command:
        recorded.append((arguments.restored_from, arguments.context, arguments.includes))
        return shell(len(recorded) + 1)

    monkeypatch.setattr(lost_runs, "create_interactive_run", create)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("TZ", "UTC")
    return recorded


def test_lost_shell_starts_again_with_the_files(
    arguments: Namespace, starts: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def show(run: Command) -> int:
        if run.id == 2:
            cast(Any, run).state = "CANCELED"
        return int(run.id)

    assert show_with_restarts(shell(1), "shell", show, arguments) == 2
    assert starts == [(1, None, [])]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("the machine was lost; shell 2 starts with the files of ")


def test_restarts_are_limited(arguments: Namespace, starts: list[Any]) -> None:
    assert show_with_restarts(shell(1), "shell", lambda run: 1, arguments) == 1
    assert [source for source, *_ in starts] == list(range(1, RESTARTS_MAX + 1))


def test_nobody_at_a_terminal_means_no_restart(
    arguments: Namespace, starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments.detach = True
    assert show_with_restarts(shell(1), "shell", lambda run: 0, arguments) == 0
    arguments.detach = False
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert show_with_restarts(shell(1), "shell", lambda run: 1, arguments) == 1
    assert starts == []


@pytest.mark.parametrize(
    ("state", "losses", "snapshot"),
    [
        ("CANCELED", 1, SNAPSHOT),
        ("ACTIVE", 0, SNAPSHOT),
        # The program failed.
        ("ERROR", 0, SNAPSHOT),
        # No file was stored.
        ("ERROR", 1, None),
    ],
)
def test_other_ends_are_no_reason_for_a_restart(state: str, losses: int, snapshot: Any) -> None:
    assert not is_restorable(shell(1, state, losses, snapshot))
