"""The failure of a gang: marks by which workers know of it, and the launcher's exit line.

A worker that gets SIGTERM because another one died would save its work and report that it was
preempted. The launcher's line comes after that, so that the trial's run counts as the failure that
it is. Each attempt of torch's launcher, which may restart its workers, has a mark of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import TrialDirectory

GANG_FOLDER_VARIABLE = "DETCLOUD_GANG_FOLDER"
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
_MARK = "failed-"
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
    folder = os.environ.get(GANG_FOLDER_VARIABLE)
    attempt = os.environ.get(ATTEMPT_VARIABLE, "0")
    return Path(folder, f"{_MARK}{attempt}") if folder else None


def report_failure(text: str) -> None:
    """Write the trial's exit line for a gang that failed: a worker's own message, else `text`."""
    try:
        directory = TrialDirectory.from_environment()
        if directory is None:
            return
        message = _worker_message(directory.path / "out") or text
        directory.report.append(
            "exit",
            reason="errored",
            directive_revision=directory.directives.read().revision,
            message=message[:_MESSAGE_CHARACTERS_MAX],
        )
    except DetcloudError as error:
        print(f"[detcloud] the end was not reported: {error}", flush=True)


def _worker_message(out: Path) -> str:
    """The message of the worker that reported an error first, "" where none did."""
    errors = []
    for path in sorted(out.glob("report-*.jsonl")):
        for line in path.read_text(errors="replace").splitlines()[-2:]:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("kind") == "exit" and entry.get("reason") == "errored":
                    errors.append((entry.get("time_ms", 0), str(entry.get("message") or "")))
    return min(errors)[1] if errors else ""
