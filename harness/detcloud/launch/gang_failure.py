"""The failure of a gang: marks by which workers know of it, and the launcher's exit line.

A worker that gets SIGTERM because another one died would save its work and report that it was
preempted. The launcher's line comes after that, so that the trial's run counts as the failure that
it is. Each attempt of torch's launcher, which may restart its workers, has a mark of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcloud.shared.errors import DetcloudError
from detcloud.shared.processes import Process, is_alive, read_process
from detcloud.shared.trial_directory import (
    LINE_BYTES_MAX,
    TRIAL_DIRECTORY_VARIABLE,
    TrialDirectory,
)

GANG_FOLDER_VARIABLE = "DETCLOUD_GANG_FOLDER"
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
REFUSED = "invalid_hp"
_MARK = "failed-"
_WRAPPER = "wrapper-"
_MESSAGE_CHARACTERS_MAX = 2000


def mark_failure(text: str) -> None:
    """Mark this worker's attempt as failed, with why; the first mark stays."""
    mark = _own_mark()
    if mark is not None:
        with contextlib.suppress(OSError), mark.open("x") as file:
            file.write(text)


def has_failed() -> bool:
    """Whether another worker of this one's attempt has failed."""
    mark = _own_mark()
    return mark is not None and mark.exists()


def list_failures(folder: str) -> dict[int, str]:
    """The failures that workers of this node have marked: the reason by attempt, in their order."""
    marks = {int(mark.name.removeprefix(_MARK)): mark for mark in Path(folder).glob(f"{_MARK}*")}
    return {attempt: marks[attempt].read_text() for attempt in sorted(marks)}


def _own_mark() -> Path | None:
    folder, attempt = _own_attempt()
    return Path(folder, f"{_MARK}{attempt}") if folder else None


def _own_attempt() -> tuple[str, str]:
    """The folder of this process's node, "" where it has no launcher, and the attempt."""
    return os.environ.get(GANG_FOLDER_VARIABLE, ""), os.environ.get(ATTEMPT_VARIABLE, "0")


@contextlib.contextmanager
def announce_wrapper(rank: int) -> Iterator[None]:
    """Tell the launcher of this process, a worker's wrapper, until the block has ended: what is
    killed meanwhile leaves no mark of its failure.
    """
    folder, attempt = _own_attempt()
    own = read_process(os.getpid()) if folder else None
    if own is None:
        yield
        return
    place = Path(folder, f"{_WRAPPER}{attempt}-{rank}")
    with contextlib.suppress(OSError):
        place.write_text(f"{own.pid} {own.started_ticks}")
    yield
    with contextlib.suppress(OSError):
        place.unlink()


def mark_lost_wrappers(folder: str) -> None:
    """Mark the attempts as failed whose wrappers, announced in the folder, have been killed."""
    for place in Path(folder).glob(f"{_WRAPPER}*"):
        attempt, _, rank = place.name.removeprefix(_WRAPPER).partition("-")
        with contextlib.suppress(OSError, ValueError):
            pid, started_ticks = map(int, place.read_text().split())
            if not is_alive(Process(pid, 0, started_ticks, "")) and place.exists():
                with Path(folder, f"{_MARK}{attempt}").open("x") as file:
                    file.write(f"rank {rank}: the process that wraps it was killed")


def has_refused(rank: int) -> bool:
    """Whether the worker of this rank has ended because the hyperparameters make no sense."""
    folder = os.environ.get(TRIAL_DIRECTORY_VARIABLE)
    if not folder:
        return False
    return any(
        line.get("reason") == REFUSED
        for line in _exit_lines(Path(folder, "out", f"report-{rank}.jsonl"))[-1:]
    )


def report_failure(text: str) -> None:
    """Write the trial's exit line for a gang that failed: a worker's own message, else `text`.

    A worker that refused the hyperparameters goes before any that failed, maybe for want of it.
    """
    try:
        directory = TrialDirectory.from_environment()
        if directory is None:
            return
        reason, message = _first_exit(directory.path / "out") or ("errored", text)
        directory.report.append(
            "exit",
            reason=reason,
            directive_revision=directory.directives.read().revision,
            message=(message or text)[:_MESSAGE_CHARACTERS_MAX],
        )
    except DetcloudError as error:
        print(f"[detcloud] the end was not reported: {error}", flush=True)


def _first_exit(out: Path) -> tuple[str, str] | None:
    """The reason and message of the worker that refused first, else of the one that reported an
    error first; None where none did.
    """
    found = []
    for path in sorted(out.glob("report-*.jsonl")):
        for line in _exit_lines(path):
            reason, message = line.get("reason"), str(line.get("message") or "")
            if reason in (REFUSED, "errored"):
                found.append((reason != REFUSED, line.get("time_ms", 0), reason, message))
    return min(found)[2:] if found else None


def _exit_lines(path: Path) -> list[dict[str, Any]]:
    """The `exit` lines among the last two of a report file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2 * LINE_BYTES_MAX))
            lines = file.read().splitlines()[-2:]
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("kind") == "exit":
                found.append(entry)
    return found
