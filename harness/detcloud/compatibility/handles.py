"""The base of the objects of Determined's `experimental` modules, and checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.client import Checkpoint as ClusterCheckpoint


class OrderBy(Enum):
    """The order of a list."""

    ASC = ASCENDING = "asc"
    DESC = DESCENDING = "desc"


class CheckpointSortBy(Enum):
    """The fields that a list of checkpoints is sorted by."""

    UUID = "uuid"
    TRIAL_ID = "trial_id"
    BATCH_NUMBER = "steps_completed"
    END_TIME = "created_ms"
    STATE = "state"
    SEARCHER_METRIC = "metric"


@dataclass(frozen=True)
class CheckpointTrainingMetadata:
    """The trial that stored a checkpoint, and the validation there, as `avgMetrics` below it."""

    experiment_config: dict[str, Any]
    experiment_id: int
    trial_id: int
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]


class DownloadMode(Enum):
    """Determined's ways to a checkpoint's files, which here all come from the storage."""

    DIRECT = "direct"
    MASTER = "master"
    AUTO = "auto"


class Handle:
    """An object of the cluster, with its fields; a name that is not there says what to do."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self._found, name):
            return getattr(self._found, name)
        kind = type(self).__name__
        raise AttributeError(
            f"{kind}.{name} is not supported by detcloud: use detcloud.Client "
            f"or the detcloud command with a{'n' if kind[0] in 'AE' else ''} {kind.lower()}"
        )

    def reload(self) -> None:
        """Ask the cluster for the present state."""
        self._found.refresh()


class Checkpoint(Handle):
    """Files that a trial stored together."""

    _found: ClusterCheckpoint

    def download(self, path: str | None = None, mode: object = None) -> str:
        """Fetch the files into `path`, by default `checkpoints/UUID`; returns the path.

        If the path exists, nothing is fetched. The files come from the cluster's storage, whatever
        `mode` is.
        """
        folder = Path(path or f"checkpoints/{self.uuid}")
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._found.download(folder)
        return str(folder)

    def write_metadata_file(self, path: str | Path) -> None:
        """Write the metadata into a file of JSON."""
        Path(path).write_text(json.dumps(self._found.metadata, indent=2) + "\n")

    @property
    def training(self) -> CheckpointTrainingMetadata:
        """The trial that stored it."""
        metrics = self._validation_metrics()
        return CheckpointTrainingMetadata(
            experiment_config=self.experiment_config,
            experiment_id=self._found.experiment_id,
            trial_id=self._found.trial_id,
            hparams=self.hparams,
            validation_metrics={"avgMetrics": metrics} if metrics else {},
        )

    # What it had itself up to 0.17.

    @property
    def experiment_config(self) -> dict[str, Any]:
        return self._found.experiment().config

    @property
    def hparams(self) -> dict[str, Any]:
        return self._found.trial().hparams

    @property
    def batch_number(self) -> int:
        return self._found.steps_completed

    @property
    def validation(self) -> dict[str, Any] | None:
        """The validation there, None without one."""
        metrics = self._validation_metrics()
        return {"metrics": {"validationMetrics": metrics}} if metrics else None

    def _validation_metrics(self) -> dict[str, Any]:
        """The metrics of the validation after as many batches; several reports are one."""
        metrics: dict[str, Any] = {}
        for report in self._found.trial().metrics("validation"):
            if report["steps_completed"] == self._found.steps_completed:
                metrics |= report["metrics"]
        return metrics

    def load(self, path: str | None = None, **options: Any) -> Any:
        """Download the checkpoint and make its PyTorchTrial again, as releases up to 0.19 did."""
        from detcloud.pytorch import load_trial_from_checkpoint_path

        return load_trial_from_checkpoint_path(self.download(path), **options)

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Set these keys of the metadata."""
        self._found.set_metadata({**self._found.metadata, **metadata})

    def remove_metadata(self, keys: list[str]) -> None:
        """Remove keys of the metadata; those that are not there are no error."""
        left = {key: value for key, value in self._found.metadata.items() if key not in keys}
        self._found.set_metadata(left)

    def delete(self) -> None:
        """Delete the files."""
        self._found.delete()

    def remove_files(self, globs: list[str]) -> None:
        """Delete the files that match one of the patterns; without any, nothing."""
        if globs:
            self._found.delete(globs)
