"""Reports of metrics in the form of Determined's client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from detcloud.client.records import MetricReport

TRAINING, VALIDATION = "training", "validation"


@dataclass(frozen=True)
class TrialMetrics:
    """A report of a trial's metrics. Metrics of single batches are not kept.

    `trial_run_id` is always 0, because detcloud does not number the runs of a trial in reports.
    """

    trial_id: int
    steps_completed: int
    end_time: datetime
    metrics: dict[str, Any]
    group: str
    batch_metrics: None = None
    trial_run_id: int = 0

    @property
    def total_batches(self) -> int:
        """The former name of `steps_completed`."""
        return self.steps_completed


TrainingMetrics = ValidationMetrics = TrialMetrics


def to_trial_metrics(trial_id: int, report: MetricReport) -> TrialMetrics:
    """Convert a report of a trial into Determined's form."""
    end = datetime.fromtimestamp(report["time_ms"] / 1000, UTC)
    names = (report["steps_completed"], end, report["metrics"], report["group"])
    return TrialMetrics(trial_id, *names)
