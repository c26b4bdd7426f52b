"""The restart of a notebook or shell after the loss of the machine, in an open terminal."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from detcloud.cli.commands.places import create_interactive_run
from detcloud.client.command import Command

RESTARTS_MAX = 5
"""The most automatic restarts of one command: a terminal may be open without anybody there."""


def show_with_restarts(
    run: Command, kind: str, show: Callable[[Command], int], arguments: Namespace
) -> int:
    """Call `show` for a new run, and return the exit code. Start again after a lost machine.

    If the machine was lost and the files are stored, another run with the same settings starts with
    the files, and `show` is called for it. This needs a terminal as input, and is not done with
    `--detach`. A notice on stderr names the new run.

    Args:
        run: the notebook or shell.
        kind: `notebook` or `shell`.
        show: opens a run until its end, and returns the exit code.
        arguments: the options with which the run was created.

    Raises:
        DetcloudError: `show` or the submission failed.
    """
    code = show(run)
    for _ in range(RESTARTS_MAX):
        if arguments.detach or not sys.stdin.isatty() or not is_restorable(run):
            break
        arguments.restored_from, arguments.context, arguments.includes = run.id, None, []
        lost, run = run, create_interactive_run(kind, arguments)
        print(
            f"the machine was lost; {kind} {run.id} starts with the files{_saved_text(lost)}",
            file=sys.stderr,
        )
        code = show(run)
    return code


def is_lost(run: Command) -> bool:
    """Return whether a notebook or shell has ended because of the loss of its machine.

    The fields of `run` must be those after the end.

    Raises:
        DetcloudError: the request failed.
    """
    if run.state != "ERROR":
        return False
    # A notebook or shell runs once, so the first loss ends the run.
    trial = run.trial()
    return trial is not None and trial.losses > 0


def is_restorable(run: Command) -> bool:
    """Return whether the machine of a run was lost, and another run can start with the files.

    The fields of `run` must be those after the end.

    Raises:
        DetcloudError: the request failed.
    """
    return _find_snapshot(run) is not None and is_lost(run)


def _find_snapshot(run: Command) -> dict[str, Any] | None:
    snapshot: dict[str, Any] | None = (run.data.get("run") or {}).get("snapshot")
    return snapshot


def _saved_text(run: Command) -> str:
    """Return ` of HH:MM` with the local time of the last snapshot of a run. "" without one."""
    snapshot = _find_snapshot(run)
    if snapshot is None:
        return ""
    return time.strftime(" of %H:%M", time.localtime(snapshot["saved_ms"] / 1000))
