"""Names that code with a trial controller imports, for its annotations and its own loop."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from detcloud.shared.errors import DetcloudError


class SkipWorkloadException(DetcloudError):
    """An error with which a controller's own loop skips a workload."""


class SkipAnswer:
    """The answer to a workload that was skipped."""


class Workload:
    """A stretch of what a trial does; only its kinds are used."""

    class Kind(Enum):
        RUN_STEP = 1
        COMPUTE_VALIDATION_METRICS = 2
        CHECKPOINT_MODEL = 3
        TERMINATE = 4


Stream = Iterator[Any]
Response = Any
ResponseFunc = Any
Metrics = dict[str, Any]


class _Annotation:
    """A type for annotations only; no code gets an instance of it."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        raise DetcloudError(
            f"{type(self).__name__} cannot be created: it exists for annotations only"
        )


class ProfilerAgent(_Annotation):
    """Determined's profiler, in the signatures of controllers."""


class HorovodContext(_Annotation):
    """Determined's settings of Horovod, in the signatures of controllers."""


class DistributedBackend(_Annotation):
    """Determined's choice of a backend, in the signatures of controllers."""


class BatchMetricWriter:
    """A writer of event files with nothing to do, since every reported number is in them."""

    def on_train_step_end(self, *_arguments: object, **_options: object) -> None:
        """Do nothing."""

    def on_validation_step_end(self, *_arguments: object, **_options: object) -> None:
        """Do nothing."""


def get_metric_writer() -> BatchMetricWriter:
    """The writer for a controller."""
    return BatchMetricWriter()
