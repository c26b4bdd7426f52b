"""The failure of a gang: a mark by which workers know of it, and the launcher's exit line.

A worker that gets SIGTERM because another one died would save its work and report that it was
preempted. The launcher's line comes after that, so that the trial's run counts as the failure that
it is.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import TrialDirectory

GANG_FOLDER_VARIABLE = "DETCLOUD_GANG_FOLDER"
_MARK = "failed"
_MESSAGE_CHARACTERS_MAX = 2000


def mark_failure(text: str) -> None:
    """Mark the gang as failed, with why; the first mark stays."""
    folder = os.environ.get(GANG_FOLDER_VARIABLE)
    if folder:
        with contextlib.suppress(OSError), Path(folder, _MARK).open("x") as file:
            file.write(text)


def failure_text() -> str | None:
    """The reason of the gang's failure, or None while it has none."""
    folder = os.environ.get(GANG_FOLDER_VARIABLE)
    try:
        return Path(folder, _MARK).read_text() if folder else None
    except OSError:
        return None


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
