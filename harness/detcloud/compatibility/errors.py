"""The exceptions of `determined.errors`, which training code raises and catches.

Only that code raises them: detcloud's own errors are DetcloudError alone.
"""

from __future__ import annotations

from typing import Any

from detcloud.shared.errors import DetcloudError


class InternalException(DetcloudError):
    """An error that Determined's code raised of itself."""


class InvalidExperimentException(DetcloudError):
    """An experiment cannot work."""


class InvalidDataTypeException(InvalidExperimentException):
    """Data have a type with which training cannot work."""

    def __init__(self, kind: type, message: str) -> None:
        super().__init__(f"invalid data type {kind.__name__}: {message}")


class InvalidConfigurationException(InvalidExperimentException):
    """A configuration cannot work."""

    def __init__(self, config: dict[str, Any], message: str) -> None:
        super().__init__(f"invalid configuration: {message}")


class InvalidModelException(InvalidExperimentException):
    """A model cannot be trained."""


class InvalidCheckpointException(DetcloudError):
    """A checkpoint cannot be loaded."""


class CheckpointStateException(DetcloudError):
    """A checkpoint is not complete."""


class CheckpointNotFound(DetcloudError):
    """There is no such checkpoint."""


class MultipleDownloadsFailed(DetcloudError):
    """A checkpoint could be downloaded in no way."""


class NoDirectStorageAccess(DetcloudError):
    """The storage of a checkpoint cannot be reached from here."""


class ProxiedDownloadFailed(DetcloudError):
    """A checkpoint could not be downloaded through the cluster."""


class EnterpriseOnlyError(DetcloudError):
    """Only the edition for companies has this."""


class StopLoadingImplementation(DetcloudError):
    """The code of a trial need not be read on."""


class WorkerError(DetcloudError):
    """A process of a trial has failed."""


class WorkerFinishedGracefully(DetcloudError):
    """A process of a trial has ended by itself."""
