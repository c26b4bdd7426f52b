"""The restart of a notebook or shell after the loss of the machine, in an open terminal."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable

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


def is_restorable(run: Command) -> bool:
    """Return whether the machine of a run was lost, and another run can start with the files.

    The fields of `run` must be those after the end. No request is sent.
    """
    message = run.message or ""
    return run.state == "ERROR" and message.startswith("lost: ") and "--from" in message


def _saved_text(run: Command) -> str:
    """Return ` of HH:MM` with the local time of the last snapshot of a run. "" without one."""
    snapshot = (run.data.get("run") or {}).get("snapshot")
    if snapshot is None:
        return ""
    return time.strftime(" of %H:%M", time.localtime(snapshot["saved_ms"] / 1000))
