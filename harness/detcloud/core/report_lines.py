"""The lines that reports print into a trial's log."""

from __future__ import annotations

import sys

from detcloud.shared.json_values import short_text


def print_report(kind: str, **fields: object) -> None:
    """Print a line to stdout for a report of metrics or of a checkpoint; ignore all other kinds.

    The kinds `metrics` and `rank_metrics` need the fields `group`, `steps_completed` and `metrics`;
    metrics that are no dict are ignored. The kind `checkpoint` needs `uuid` and `steps_completed`.
    Raises KeyError for a missing field. Characters that the output's encoding lacks become question
    marks.
    """
    if kind in ("metrics", "rank_metrics") and isinstance(metrics := fields["metrics"], dict):
        values = " ".join(f"{name}={short_text(value)}" for name, value in metrics.items())
        text = f"{fields['group']} at batch {fields['steps_completed']}: {values}"
    elif kind == "checkpoint":
        text = f"checkpoint {fields['uuid']} at batch {fields['steps_completed']}"
    else:
        return
    # An encoding error of the terminal must not end the training.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(f"[detcloud] {text}".encode(encoding, "replace").decode(encoding), flush=True)
