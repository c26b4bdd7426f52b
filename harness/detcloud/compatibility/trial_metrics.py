"""Determined's reports of metrics, as its client gives them for a trial and for several."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from detcloud.client.records import MetricReport

TRAINING, VALIDATION = "training", "validation"


@dataclass(frozen=True)
class TrialMetrics:
    """One report of a trial's metrics; those of single batches are not kept."""

    trial_id: int
    steps_completed: int
    end_time: datetime
    metrics: dict[str, Any]
    group: str
    batch_metrics: None = None

    @property
    def total_batches(self) -> int:
        """The former name of `steps_completed`."""
        return self.steps_completed


TrainingMetrics = ValidationMetrics = TrialMetrics


def to_trial_metrics(trial_id: int, report: MetricReport) -> TrialMetrics:
    """The report of a trial under Determined's names."""
    end = datetime.fromtimestamp(report["time_ms"] / 1000, UTC)
    names = (report["steps_completed"], end, report["metrics"], report["group"])
    return TrialMetrics(trial_id, *names)
