"""The failure of a gang, the workers of a trial: marks for other workers, and the exit line.

A worker that gets SIGTERM after the death of another worker saves its work and reports a
preemption. The launcher's exit line follows that report, so that the run counts as a failure. Each
attempt of torch's launcher, which may restart the workers, has its own mark.
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
from detcloud.shared.report_file import LINE_BYTES_MAX
from detcloud.shared.trial_directory import TRIAL_DIRECTORY_VARIABLE, TrialDirectory

GANG_FOLDER_VARIABLE = "DETCLOUD_GANG_FOLDER"
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
REFUSED = "invalid_hp"
_MARK = "failed-"
_WRAPPER = "wrapper-"
_MESSAGE_CHARACTERS_MAX = 2000


def mark_failure(text: str) -> None:
    """Write a file that marks this worker's attempt as failed for the reason `text`.

    The first mark of an attempt stays. Do nothing without a launcher, or if the file cannot be
    written.
    """
    mark = _own_mark()
    if mark is not None:
        with contextlib.suppress(OSError), mark.open("x") as file:
            file.write(text)


def has_failed() -> bool:
    """Return whether this worker's attempt is marked as failed. False without a launcher."""
    mark = _own_mark()
    return mark is not None and mark.exists()


def list_failures(folder: str) -> dict[int, str]:
    """Return the reason of each failed attempt of this node, by the attempt's number, ascending.

    `folder` is the folder that the node's launcher shares with the workers. The dict is empty
    without failures. Raises OSError if a mark cannot be read.
    """
    marks = {int(mark.name.removeprefix(_MARK)): mark for mark in Path(folder).glob(f"{_MARK}*")}
    return {attempt: marks[attempt].read_text() for attempt in sorted(marks)}


def _own_mark() -> Path | None:
    """Return the path of the mark of this worker's attempt. Return None without a launcher."""
    folder, attempt = _own_attempt()
    return Path(folder, f"{_MARK}{attempt}") if folder else None


def _own_attempt() -> tuple[str, str]:
    """Return the folder of this node's launcher and the attempt's number.

    The folder is "" without a launcher. The number is "0" if the launcher does not count attempts.
    """
    return os.environ.get(GANG_FOLDER_VARIABLE, ""), os.environ.get(ATTEMPT_VARIABLE, "0")


@contextlib.contextmanager
def announce_wrapper(rank: int) -> Iterator[None]:
    """Announce this process, a worker's wrapper, to the launcher during the block.

    A killed wrapper cannot mark its failure; `mark_lost_wrappers` marks the failure instead. If an
    exception leaves the block, the announcement stays. Do nothing without a launcher or without
    /proc. Ignore a file that cannot be written.
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
    """Mark each attempt as failed if a wrapper that is announced in `folder` has been killed.

    An existing mark stays. Unreadable announcements are skipped.
    """
    for place in Path(folder).glob(f"{_WRAPPER}*"):
        attempt, _, rank = place.name.removeprefix(_WRAPPER).partition("-")
        with contextlib.suppress(OSError, ValueError):
            pid, started_ticks = map(int, place.read_text().split())
            if not is_alive(Process(pid, 0, started_ticks, "")) and place.exists():
                with Path(folder, f"{_MARK}{attempt}").open("x") as file:
                    file.write(f"rank {rank}: the process that wraps it was killed")


def has_refused(rank: int) -> bool:
    """Return whether the last exit report of this rank refuses the hyperparameters.

    Return False without a cluster, without an exit report, and if the report file cannot be read.
    """
    folder = os.environ.get(TRIAL_DIRECTORY_VARIABLE)
    if not folder:
        return False
    return any(
        line.get("reason") == REFUSED
        for line in _exit_lines(Path(folder, "out", f"report-{rank}.jsonl"))[-1:]
    )


def report_failure(text: str) -> None:
    """Append an `exit` line to the trial's report file, after a worker's failure ended all workers.

    Reason and message are those of the first worker whose report refuses the hyperparameters, or
    else of the first reported error. Without either, the reason is `errored`. `text` replaces a
    missing message. If the trial's directory is invalid or the line cannot be written, only print
    the error. Do nothing without a cluster.
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
    """Return the reason and message of the first refusal, or else of the first reported error.

    The first one has the earliest time in the workers' reports. A missing message is "". Return
    None if no worker reported either.
    """
    exits = []
    for path in sorted(out.glob("report-*.jsonl")):
        for line in _exit_lines(path):
            reason, message = line.get("reason"), str(line.get("message") or "")
            if reason in (REFUSED, "errored"):
                exits.append((reason != REFUSED, line.get("time_ms", 0), reason, message))
    return min(exits)[2:] if exits else None


def _exit_lines(path: Path) -> list[dict[str, Any]]:
    """Return the `exit` entries among the last two lines of a report file.

    Skip a line that is no JSON object. Return an empty list if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2 * LINE_BYTES_MAX))
            lines = file.read().splitlines()[-2:]
    except OSError:
        return []
    exits = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("kind") == "exit":
                exits.append(entry)
    return exits
