"""Determined's writers of event files, which trial controllers have as `metric_writer`.

All reported metrics are in the trial's event files already, as GROUP/NAME. A writer that a
controller creates gets the metrics under Determined's tags, Determined/NAME.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcloud.compatibility.util_functions import is_numerical_scalar
from detcloud.pytorch.event_files import TRIAL_FOLDER, TorchWriter

_PREFIX = "Determined/"


class MetricWriter(ABC):
    """The base class of writers. User code may derive a writer."""

    @abstractmethod
    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Write a number as a point of the curve `name`."""

    @abstractmethod
    def reset(self) -> None:
        """Begin another file. Called at most once a second, because file names may contain the
        second.
        """

    def flush(self) -> None:  # noqa: B027 - writers of the first releases have no such method.
        """Write buffered points. Does nothing by default."""


MetricWriter.register(TorchWriter)


class BatchMetricWriter:
    """Passes the numbers of training and validations to a writer.

    Without a writer, discards them.
    """

    def __init__(self, writer: MetricWriter | None = None) -> None:
        self.writer = writer
        self._flushed_at = 0.0

    def on_train_step_end(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Write the metrics of each batch, and those averages in `metrics` that no batch has.

        The last batch has the step `steps_completed` - 1.
        """
        batches = list(batch_metrics or ())
        points = [
            (name, value, steps_completed - len(batches) + index)
            for index, batch in enumerate(batches)
            for name, value in batch.items()
        ]
        named = {name for name, _, _ in points}
        points += [
            (name, value, steps_completed) for name, value in metrics.items() if name not in named
        ]
        self._write(points)

    def on_validation_step_end(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of a validation. A name gets the prefix `val_` unless it begins with
        `val`.
        """
        named = {
            name if name.startswith("val") else f"val_{name}": value
            for name, value in metrics.items()
        }
        self._write([(name, value, steps_completed) for name, value in named.items()])

    def _write(self, points: Sequence[tuple[str, Any, int]]) -> None:
        if self.writer is None:
            return
        if self._flushed_at and int(time.time()) > int(self._flushed_at):
            self.writer.reset()
        for name, value, step in points:
            if is_numerical_scalar(value):
                self.writer.add_scalar(_PREFIX + name, value, step)
        self.writer.flush()
        self._flushed_at = time.time()


def get_metric_writer() -> BatchMetricWriter:
    """Return the default writer of controllers, which discards all numbers."""
    return BatchMetricWriter()


def get_base_path(*_config: object, **_options: object) -> Path:
    """Return the folder of the trial's event files. Without a trial, create a temporary folder.

    The arguments change nothing.
    """
    folder = TRIAL_FOLDER.get()
    return folder() if folder is not None else Path(tempfile.mkdtemp(prefix="detcloud-events-"))
