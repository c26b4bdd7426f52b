"""The exceptions of `determined.errors`, which training code raises and catches.

Only training code raises them. detcloud's own errors are plain DetcloudErrors.
"""

from __future__ import annotations

from typing import Any

from detcloud.shared.errors import DetcloudError


class InternalException(DetcloudError):
    """An error of Determined's own code."""


class InvalidExperimentException(DetcloudError):
    """An experiment that cannot work."""


class InvalidDataTypeException(InvalidExperimentException):
    """Data of type `kind` that cannot be used for training."""

    def __init__(self, kind: type, message: str) -> None:
        super().__init__(f"invalid data type {kind.__name__}: {message}")


class InvalidConfigurationException(InvalidExperimentException):
    """A configuration that cannot work. `config` is not part of the message."""

    def __init__(self, config: dict[str, Any], message: str) -> None:
        super().__init__(f"invalid configuration: {message}")


class InvalidModelException(InvalidExperimentException):
    """A model that cannot be trained."""


class InvalidCheckpointException(DetcloudError):
    """A checkpoint that cannot be loaded."""


class CheckpointStateException(DetcloudError):
    """A checkpoint that is not complete."""


class CheckpointNotFound(DetcloudError):
    """A checkpoint that does not exist."""


class MultipleDownloadsFailed(DetcloudError):
    """A checkpoint that could not be downloaded in any way."""


class NoDirectStorageAccess(DetcloudError):
    """A checkpoint storage that cannot be reached from here."""


class ProxiedDownloadFailed(DetcloudError):
    """A checkpoint that could not be downloaded through the cluster."""


class EnterpriseOnlyError(DetcloudError):
    """A feature that only the enterprise edition has."""


class StopLoadingImplementation(DetcloudError):
    """The rest of the trial's code need not be read."""


class WorkerError(DetcloudError):
    """A process of a trial has failed."""


class WorkerFinishedGracefully(DetcloudError):
    """A process of a trial has ended without being stopped."""
