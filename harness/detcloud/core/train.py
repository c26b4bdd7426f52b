"""Reports of metrics, progress and early exits."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detcloud.core.event_upload import EventUploader
from detcloud.core.tensorboard import EventWriter
from detcloud.shared.errors import DetcloudError, InvalidCall, InvalidType, InvalidValue
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import Directives, Reporter, to_json_value

# The validations whose checkpoints may still be on their way into the store.
VALIDATIONS_KEPT = 16
# Larger metadata are left out by the cluster.
METADATA_BYTES_MAX = 16 * 1024
_BYTES = bytes | bytearray


class EarlyExitReason(Enum):
    """The reason why training code ends its trial by itself."""

    INVALID_HP = "INVALID_HP"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"

    @classmethod
    def _missing_(cls, value: object) -> EarlyExitReason | None:
        """The reason that Determined's own value names, which has a prefix."""
        name = value.removeprefix("EXITED_REASON_") if isinstance(value, str) else ""
        return cls.__members__.get(name)


class TensorboardMode(Enum):
    """The writer of numbers for TensorBoard: every report by itself, or the code alone."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TrainContext:
    """Reports of metrics, progress and early exits, written at once without the cluster."""

    def __init__(
        self,
        report: Reporter,
        read: Callable[[], Directives],
        events: EventWriter | None,
        metadata: dict[str, Any] | None = None,
        metric: str = "",
    ) -> None:
        self._metric = metric
        self._validated: dict[int, float] = {}
        self._report = report
        self._read = read
        self._events = events
        self._last_reported: dict[str, tuple[int, set[str]]] = {}
        # A process without `events` is a worker: whether the log says where its reports are, and
        # whether a loop that all processes share makes them, of which the chief's alone are kept.
        self._is_told = self._is_shared = False
        self.early_exit: EarlyExitReason | None = None
        self.tensorboard_mode = TensorboardMode.AUTO
        self.uploader: EventUploader | None = None
        self._worker_folder: TemporaryDirectory[str] | None = None
        self._metadata = dict(metadata or {})

    @accept_names(latest_batch="steps_completed")
    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
        *,
        batches: int | None = None,
    ) -> None:
        """Report metrics of group `training`: averages over the last `batches` batches.

        `batch_metrics`, each batch's own, which Determined did not show either, only say how many
        they are.
        """
        if batches is None and batch_metrics is not None:
            batches = len(batch_metrics)
        extra = {} if batches is None else {"batches": batches}
        self._report_group("training", steps_completed, metrics, **extra)

    @accept_names(latest_batch="steps_completed")
    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of group `validation`; bytes are left out, with a line in the log."""
        self._report_group("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group whose name has no dot.

        `steps_completed` counts batches since the trial's start; values are numbers, strings,
        lists or tensors of them. Several reports of one group may share a `steps_completed` if
        their names differ. Raises DetcloudError for anything else.
        """
        if not group or "." in group:
            raise InvalidValue(f"metric group {group!r}: a name without '.' was expected")
        self._report_group(group, steps_completed, metrics)

    def report_new_metrics(
        self, group: str, steps_completed: int, metrics: Mapping[str, Any]
    ) -> None:
        """Report those metrics whose names were not reported for this group and batch before.

        For frameworks, which log some numbers twice; None and bytes are left out.
        """
        steps, names = self._last_reported.get(group, (-1, set[str]()))
        reported = names if steps == steps_completed else set[str]()
        self._is_shared = True
        fresh = {
            name: value
            for name, value in metrics.items()
            if name not in reported and value is not None and not isinstance(value, _BYTES)
        }
        if fresh:
            self.report_metrics(group, steps_completed, fresh)

    def report_progress(self, progress: float) -> None:
        """Report how much of the trial is done, in [0, 1]; InvalidValue for anything else.

        Of several processes the chief's counts; others are told once that theirs is not used.
        """
        value = progress.item() if hasattr(progress, "item") else progress
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidValue(f"progress is {progress!r}: expected a number in [0, 1]")
        self._report("progress", value=float(value))

    def get_experiment_best_validation(self) -> float | None:
        """The best value of the searcher's metric in the experiment so far, as reported.

        None before the first, and without a cluster.
        """
        return self._read().best_validation

    def metric_at(self, steps_completed: int) -> float | None:
        """The searcher's metric of one of this process's last validations, at so many batches."""
        return self._validated.get(steps_completed)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Keep plain JSON data with the trial, instead of what was kept before; 16 KiB at most.

        `detcloud trial describe` shows them, and a later run of the trial has them. Returns what
        is kept. Raises DetcloudError for anything else.
        """
        if not isinstance(metadata, dict):
            raise DetcloudError(f"trial metadata are {metadata!r:.80}: expected an object")
        plain: dict[str, Any] = to_json_value(metadata, "metadata")
        size = len(json.dumps(plain).encode())
        if size > METADATA_BYTES_MAX:
            raise DetcloudError(
                f"trial metadata have {size} bytes, the limit is {METADATA_BYTES_MAX}: keep what "
                "is large in a checkpoint"
            )
        self._report("trial_metadata", metadata=plain)
        self._metadata = plain
        return self.get_metadata()

    def get_metadata(self) -> dict[str, Any]:
        """The metadata that this run, or the one before it, has set; empty where none has."""
        return copy.deepcopy(self._metadata)

    def report_early_exit(self, reason: EarlyExitReason | str) -> None:
        """Report that the code ends this trial by itself; it still has to return.

        Any process of several may say so, for all of them. The first reason counts, with a line in
        the log for a later one, but that hyperparameters make no sense goes before any other.
        """
        try:
            reason = EarlyExitReason(reason)
        except ValueError:
            known = ", ".join(known_reason.value for known_reason in EarlyExitReason)
            raise InvalidValue(
                f"early exit reason {reason!r} is unknown; expected one of {known}"
            ) from None
        if self.early_exit not in (None, reason) and reason is not EarlyExitReason.INVALID_HP:
            print(
                f"[detcloud] the early exit for {reason.value} is ignored: one for "
                f"{self.early_exit.value} was reported before",
                file=sys.stderr,
                flush=True,
            )
            return
        self._report("early_exit", reason=reason.value)
        self.early_exit = reason

    def get_tensorboard_path(self) -> Path:
        """The folder that TensorBoard shows for this trial; code may write event files there too.

        In the `AUTO` mode every reported number is in it already, under the tag GROUP/NAME. Of a
        process that is not the chief it is a folder of its own, of which nothing is kept.
        """
        if self._events is None:
            if self._worker_folder is None:
                self._worker_folder = TemporaryDirectory(prefix="detcloud-events-")
            return Path(self._worker_folder.name)
        self._events.folder.mkdir(parents=True, exist_ok=True)
        return self._events.folder

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> None:
        """Store at once what is new in the folder of `get_tensorboard_path`.

        All files in it are stored from time to time and at the end in any case; the arguments are
        Determined's, and choose none. Raises InvalidCall in the `AUTO` mode.
        """
        if self.tensorboard_mode is not TensorboardMode.MANUAL:
            raise InvalidCall(
                "upload_tensorboard_files needs core.init(tensorboard_mode=TensorboardMode.MANUAL)"
            )
        if self.uploader is not None:
            self.uploader.upload_soon()

    def close(self) -> None:
        """Close the event file and store the rest of it, at the end of `init`."""
        if self._events is not None:
            self._events.close()
        if self.uploader is not None:
            self.uploader.close()
        if self._worker_folder is not None:
            self._worker_folder.cleanup()

    def allow_repeats(self) -> None:
        """Allow reports that were made before, because a loop that all processes share starts."""
        self._last_reported.clear()
        self._is_shared = True

    def set_status(self, status: str) -> None:
        """Write what the trial is doing to its log."""
        print(f"[detcloud] status: {status}", file=sys.stderr, flush=True)

    def _report_group(
        self, group: str, steps_completed: int, metrics: dict[str, Any], **extra: int
    ) -> None:
        _check_steps(steps_completed)
        if group == "validation":
            metrics = _without_bytes(steps_completed, metrics)
        plain = _to_plain_metrics(group, steps_completed, metrics)
        self._check_not_repeated(group, steps_completed, plain)
        is_worker = self._events is None
        if is_worker and not (self._is_shared or self._is_told):
            self._is_told = True
            print(
                "[detcloud] what this process reports is kept apart from the trial's own metrics, "
                "which are those of rank 0: `detcloud trial metrics TRIAL --rank N` shows it. The "
                "search knows nothing of it",
                flush=True,
            )
        value = plain.get(self._metric) if group == "validation" else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._validated[steps_completed] = value
            for oldest in list(self._validated)[:-VALIDATIONS_KEPT]:
                del self._validated[oldest]
        if is_worker and self._is_shared:
            return
        self._report(
            "metrics", group=group, steps_completed=steps_completed, metrics=plain, **extra
        )
        if self._events is not None and self.tensorboard_mode is TensorboardMode.AUTO:
            self._events.add_scalars(group, steps_completed, plain)

    def _check_not_repeated(
        self, group: str, steps_completed: int, metrics: dict[str, Any]
    ) -> None:
        steps, names = self._last_reported.get(group, (-1, set[str]()))
        if steps != steps_completed:
            names = set()
        if repeated := ", ".join(sorted(names & metrics.keys())):
            raise InvalidValue(
                f"{group} metrics at batch {steps_completed} were reported twice: {repeated}. Use "
                "another group, other names or the number of batches completed by now"
            )
        self._last_reported[group] = steps_completed, names | metrics.keys()


def _check_steps(steps_completed: object) -> None:
    if isinstance(steps_completed, bool) or not isinstance(steps_completed, int):
        raise InvalidType(f"steps_completed is {steps_completed!r}: expected an int")
    if steps_completed < 0:
        raise InvalidValue(f"steps_completed is {steps_completed}: expected at least 0")


def _without_bytes(steps_completed: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics but those that are bytes, which a line in the log names."""
    if not isinstance(metrics, dict):
        return metrics
    names = [name for name, value in metrics.items() if isinstance(value, _BYTES)]
    if names:
        print(
            f"[detcloud] validation metrics at batch {steps_completed} are left out, since they "
            f"are bytes: {', '.join(map(str, names))}",
            flush=True,
        )
    return {name: value for name, value in metrics.items() if name not in names}


def _to_plain_metrics(group: str, steps_completed: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics with tensors and arrays as numbers and lists."""
    if not isinstance(metrics, dict):
        raise InvalidType(
            f"{group} metrics at batch {steps_completed} are {metrics!r:.80}: expected an object "
            "with the metrics' names"
        )
    for name, value in metrics.items():
        if value is None and group == "validation":
            raise InvalidCall(
                f"{group} metric {name!r} at batch {steps_completed} is None: leave it out "
                "or give it a value"
            )
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in metrics.items()
    }
