"""Names that code with a trial controller imports, for annotations and for loops."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from detcloud.shared.errors import DetcloudError


class SkipWorkloadException(DetcloudError):
    """An error with which the loop of a controller skips a workload."""


class SkipAnswer:
    """The answer to a skipped workload."""


class Workload:
    """A part of a trial's work. Only `Kind` is used."""

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
    """A type for annotations. Creating an instance raises DetcloudError."""

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
