"""Determined's checkpoints over the checkpoints of `detcloud.Client`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, ClassVar

from detcloud.client import Checkpoint as ClusterCheckpoint
from detcloud.compatibility.handles import Handle, OrderBy


class CheckpointSortBy(Enum):
    """The fields by which lists of checkpoints are sorted."""

    UUID = "uuid"
    TRIAL_ID = "trial_id"
    BATCH_NUMBER = "steps_completed"
    END_TIME = "created_ms"
    STATE = "state"
    SEARCHER_METRIC = "metric"


CheckpointOrderBy = OrderBy


class CheckpointState(StrEnum):
    """The states of checkpoints. Only detcloud has DAMAGED and DELETING."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    DELETED = "DELETED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"
    DAMAGED = "DAMAGED"
    DELETING = "DELETING"


@dataclass(frozen=True)
class CheckpointTrainingMetadata:
    """The trial that stored a checkpoint, and the validation at the checkpoint."""

    experiment_config: dict[str, Any]
    experiment_id: int
    trial_id: int
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]
    """The metrics below the key `avgMetrics`, or empty without a validation."""


class DownloadMode(Enum):
    """Determined's ways of downloading. Here the mode changes nothing."""

    DIRECT = "direct"
    MASTER = "master"
    AUTO = "auto"


class ModelFramework(Enum):
    """The frameworks that a checkpoint named up to 0.17."""

    PYTORCH = 1
    TENSORFLOW = 2


class Checkpoint(Handle):
    """A folder of files that a trial stored."""

    instead: ClassVar[Mapping[str, str]] = {
        "task_id": "use Checkpoint.trial_id; a trial has no task",
        "allocation_id": "use Checkpoint.trial_id and detcloud.Client().trial(ID).allocation",
        "get_metrics": "use Trial.iter_metrics(group) and compare steps_completed",
        "get_pachyderm_commit": "use Checkpoint.training.experiment_config['integrations']",
    }

    _found: ClusterCheckpoint

    @property
    def state(self) -> CheckpointState:
        return CheckpointState(self._found.state)

    @property
    def report_time(self) -> str:
        """The time of storing, in ISO 8601."""
        return datetime.fromtimestamp(self._found.created_ms / 1000, UTC).isoformat()

    @property
    def resources(self) -> dict[str, int]:
        """The sizes in bytes of the stored files, by path. Each access reads the list from the
        cluster.
        """
        return {file["path"]: file["size"] for file in self._found.files()}

    def download(self, path: str | None = None, mode: object = None) -> str:
        """Download the files to the folder `path`, by default `checkpoints/UUID`, and return the
        path.

        If the path exists, nothing is downloaded. `mode` changes nothing. Raises DetcloudError if a
        file is damaged or the folder cannot be written.
        """
        folder = Path(path or f"checkpoints/{self.uuid}")
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._found.download(folder)
        return str(folder)

    def write_metadata_file(self, path: str | Path) -> None:
        """Write the metadata to a JSON file at `path`, replacing an existing file."""
        Path(path).write_text(json.dumps(self._found.metadata, indent=2) + "\n", "utf-8")

    @property
    def training(self) -> CheckpointTrainingMetadata:
        """The trial that stored the checkpoint, and the validation at the checkpoint."""
        metrics = self._validation_metrics()
        return CheckpointTrainingMetadata(
            experiment_config=self.experiment_config,
            experiment_id=self._found.experiment_id,
            trial_id=self._found.trial_id,
            hparams=self.hparams,
            validation_metrics={"avgMetrics": metrics} if metrics else {},
        )

    # Fields of releases up to 0.17.

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
        """The validation at the checkpoint, or None.

        The form is `{"metrics": {"validationMetrics": {NAME: value}}}`.
        """
        metrics = self._validation_metrics()
        return {"metrics": {"validationMetrics": metrics}} if metrics else None

    def _validation_metrics(self) -> dict[str, Any]:
        """Return the metrics of all validations after the checkpoint's number of batches."""
        metrics: dict[str, Any] = {}
        for report in self._found.trial().metrics("validation"):
            if report["steps_completed"] == self._found.steps_completed:
                metrics |= report["metrics"]
        return metrics

    def load(self, path: str | None = None, **options: Any) -> Any:
        """Download the checkpoint as `download` does, and return the PyTorchTrial.

        `options` and errors are those of `load_trial_from_checkpoint_path`, which may run the
        checkpoint's code.
        """
        from detcloud.pytorch import load_trial_from_checkpoint_path

        return load_trial_from_checkpoint_path(self.download(path), **options)

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Set entries of the metadata. Other entries of this handle's metadata stay.

        Changes that others made since this handle was read are lost.
        """
        self._found.set_metadata({**self._found.metadata, **metadata})

    def remove_metadata(self, keys: list[str]) -> None:
        """Remove entries of the metadata. Keys that the metadata lacks are ignored.

        Changes that others made since this handle was read are lost.
        """
        left = {key: value for key, value in self._found.metadata.items() if key not in keys}
        self._found.set_metadata(left)

    def delete(self) -> None:
        """Delete the files. Errors are those of detcloud's `Checkpoint.delete`."""
        self._found.delete()

    def remove_files(self, globs: list[str]) -> None:
        """Delete the files that match a pattern of `globs`. Do nothing for an empty list."""
        if globs:
            self._found.delete(globs)
