"""Reports of metrics, progress and early exits."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

from detcloud import DetcloudError
from detcloud.trial_directory import Reporter


class EarlyExitReason(Enum):
    """Why training code ends its trial by itself."""

    INVALID_HP = "INVALID_HP"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"


class TrainContext:
    """Reports are written at once and never wait for the cluster."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self.early_exit: EarlyExitReason | None = None

    def report_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batches: int | None = None
    ) -> None:
        """Metrics of group `training`: averages over the last `batches` batches."""
        extra = {} if batches is None else {"batches": batches}
        self._report_group("training", steps_completed, metrics, **extra)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Metrics of group `validation`; bytes are left out."""
        if isinstance(metrics, dict):
            metrics = {name: one for name, one in metrics.items() if not isinstance(one, bytes)}
        self._report_group("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Metrics of any group whose name has no dot.

        `steps_completed` counts batches since the trial's start; values are numbers, strings,
        lists or tensors of them. Raises DetcloudError for anything else.
        """
        if not group or "." in group:
            raise DetcloudError(f"metric group {group!r}: a name without '.' was expected")
        self._report_group(group, steps_completed, metrics)

    def report_progress(self, progress: float) -> None:
        """How much of the trial is done, in [0, 1]; raises DetcloudError outside of it."""
        value = progress.item() if hasattr(progress, "item") else progress
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise DetcloudError(f"progress is {progress!r}: a number in [0, 1] was expected")
        self._report("progress", value=float(value))

    def report_early_exit(self, reason: EarlyExitReason | str) -> None:
        """Says that this trial ends by the code's own wish; the code still has to return."""
        try:
            self.early_exit = EarlyExitReason(reason)
        except ValueError:
            known = ", ".join(one.value for one in EarlyExitReason)
            raise DetcloudError(f"early exit reason {reason!r} is none of {known}") from None
        self._report("early_exit", reason=self.early_exit.value)

    def set_status(self, status: str) -> None:
        """Writes what the trial is doing to its log."""
        print(f"[detcloud] status: {status}", file=sys.stderr, flush=True)

    def _report_group(
        self, group: str, steps_completed: int, metrics: dict[str, Any], **extra: int
    ) -> None:
        if isinstance(steps_completed, bool) or not isinstance(steps_completed, int):
            raise DetcloudError(f"steps_completed is {steps_completed!r}: an int was expected")
        if steps_completed < 0:
            raise DetcloudError(f"steps_completed is {steps_completed}: at least 0 was expected")
        if not isinstance(metrics, dict):
            raise DetcloudError(
                f"{group} metrics at batch {steps_completed} are {metrics!r:.80}: an object with "
                "the metrics' names was expected"
            )
        for name, value in metrics.items():
            if value is None:
                raise DetcloudError(
                    f"{group} metric {name!r} at batch {steps_completed} is None: leave it out "
                    "or give it a value"
                )
        self._report(
            "metrics", group=group, steps_completed=steps_completed, metrics=metrics, **extra
        )
