"""Reports of metrics, progress and early exits."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detcloud.core.event_upload import EventUploader
from detcloud.core.tensorboard import EventWriter
from detcloud.shared.errors import DetcloudError, InvalidCall, InvalidType, InvalidValue
from detcloud.shared.json_values import to_float, to_json_value, to_python_value
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import Directives, Reporter

# The number of validations whose metrics are kept for checkpoints that are still being stored.
VALIDATIONS_KEPT = 16
# The cluster ignores larger metadata.
METADATA_BYTES_MAX = 16 * 1024
# The cluster stores only smaller steps.
STEPS_END = 1 << 53
_BYTES = bytes | bytearray


class EarlyExitReason(Enum):
    """The reason why training code ends its own trial."""

    INVALID_HP = "INVALID_HP"
    """The hyperparameters cannot work. Searches may draw others."""
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    """The code needs no more training."""

    @classmethod
    def _missing_(cls, value: object) -> EarlyExitReason | None:
        """Return the reason for Determined's own value, for example `EXITED_REASON_INVALID_HP`.

        Return None for unknown values, so that EarlyExitReason(value) raises ValueError.
        """
        name = value.removeprefix("EXITED_REASON_") if isinstance(value, str) else ""
        return cls.__members__.get(name)


class TensorboardMode(Enum):
    """The writer of event files: detcloud for every report, or only the training code."""

    AUTO = "AUTO"
    """The chief writes every reported number as event files."""
    MANUAL = "MANUAL"
    """Only your code writes event files."""


class TrainContext:
    """Reports metrics, progress and early exits, without waiting for the cluster.

    A report is a line of the rank's report file, which the agent reads; without a cluster, the
    chief only prints metrics. Metrics of ranks other than the chief are stored separately by rank,
    and the search ignores them.
    """

    def __init__(
        self,
        report: Reporter,
        read: Callable[[], Directives],
        events: EventWriter | None,
        metadata: dict[str, Any] | None = None,
        metric: str = "",
    ) -> None:
        """Create the context. An `events` of None marks a worker, whose metrics are kept by rank.

        `read` returns the newest directives, the cluster's instructions, which include the best
        validation. `metric` is the name of the searcher's metric.
        """
        self._metric = metric
        self._validated: dict[int, float] = {}
        self._report = report
        self._read = read
        self._events = events
        self._last_reported: dict[str, tuple[int, set[str]]] = {}
        # On a worker: whether the log has explained where the reports are, and whether all ranks
        # share the loop that makes the reports, so that only the chief's are stored.
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
        """Report metrics of the group `training`, averages over the last batches.

        The call returns at once, whatever the state of the cluster.

        Args:
            steps_completed: the number of batches since the trial's start.
            metrics: the metrics by name. Values are numbers, strings, lists, tensors or None.
            batch_metrics: the metrics of each batch. Only the length is used, if `batches` is None.
            batches: the number of batches that the metrics are the averages of.

        Raises:
            InvalidType: `steps_completed` is no int, or `metrics` no dict.
            InvalidValue: `steps_completed` is out of range, or a name was just reported.
            DetcloudError: JSON cannot contain a value, the report exceeds 256 KiB or cannot be
                written, or a background checkpoint has failed.
        """
        if batches is None and batch_metrics is not None:
            batches = len(batch_metrics)
        extra = {} if batches is None else {"batches": batches}
        self._report_group("training", steps_completed, metrics, **extra)

    @accept_names(latest_batch="steps_completed")
    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of the group `validation`, which must contain the searcher's metric.

        Values of type bytes are omitted with a line in the log. The next checkpoint of this batch
        is ranked by the searcher's metric.

        Args:
            steps_completed: the number of batches since the trial's start.
            metrics: the metrics by name. Values are numbers, strings, lists or tensors.

        Raises:
            InvalidCall: a value is None.
            InvalidType: `steps_completed` is no int, or `metrics` no dict.
            InvalidValue: `steps_completed` is out of range, or a name was just reported.
            DetcloudError: JSON cannot contain a value, the report exceeds 256 KiB or cannot be
                written, or a background checkpoint has failed.
        """
        self._report_group("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of a group of your own.

        Several reports of a group may share a `steps_completed` if their names differ. Metrics of
        other ranks than the chief are stored by rank. In the mode `AUTO`, the chief also writes the
        numbers as event files of TensorBoard.

        Args:
            group: the name of the group, without a dot.
            steps_completed: the number of batches since the trial's start.
            metrics: the metrics by name. Values are numbers, strings, lists, tensors or None.

        Raises:
            InvalidValue: the group or `steps_completed` is invalid, or a name was just reported.
            InvalidType: `steps_completed` is no int, or `metrics` no dict.
            DetcloudError: JSON cannot contain a value, the report exceeds 256 KiB or cannot be
                written, or a background checkpoint has failed.
        """
        if not group or "." in group:
            raise InvalidValue(f"metric group {group!r}: a name without '.' was expected")
        self._report_group(group, steps_completed, metrics)

    def report_new_metrics(
        self, group: str, steps_completed: int, metrics: Mapping[str, Any]
    ) -> None:
        """Report the metrics whose names were not reported yet for this group and batch.

        Use this for frameworks that log some numbers twice. Values of None and bytes are omitted.
        On ranks other than the chief nothing is stored.

        Args:
            group: the name of the group, without a dot.
            steps_completed: the number of batches since the trial's start.
            metrics: the metrics by name.

        Raises:
            InvalidValue: the group or `steps_completed` is invalid.
            InvalidType: `steps_completed` is no int.
            DetcloudError: JSON cannot contain a value, the report exceeds 256 KiB or cannot be
                written, or a background checkpoint has failed.
        """
        reported = self._names_reported(group, steps_completed)
        self._is_shared = True
        fresh = {
            name: value
            for name, value in metrics.items()
            if name not in reported and value is not None and not isinstance(value, _BYTES)
        }
        if fresh:
            self.report_metrics(group, steps_completed, fresh)

    def report_progress(self, progress: float) -> None:
        """Report the completed part of the trial.

        Without `searcher.max_length`, this part is also the progress of the search. Only the
        chief's progress counts. Every other rank prints once that its progress is ignored.

        Args:
            progress: a number or a scalar tensor in [0, 1].

        Raises:
            InvalidValue: `progress` is no number in [0, 1].
            DetcloudError: the report cannot be written, or a background checkpoint has failed.
        """
        value = progress.item() if hasattr(progress, "item") else progress
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidValue(f"progress is {progress!r}: expected a number in [0, 1]")
        self._report("progress", value=float(value))

    def get_experiment_best_validation(self) -> float | None:
        """Return the best reported value of the searcher's metric in the experiment.

        The cluster's newest directives have the value, so that the call sends no request. Return
        None before the first value, and without a cluster.

        Raises:
            DetcloudError: the file of directives is malformed.
        """
        return self._read().best_validation

    def metric_at(self, steps_completed: int) -> float | None:
        """Return the searcher's metric of this process's validation at batch `steps_completed`.

        Return None for an unknown batch; only the last VALIDATIONS_KEPT validations are kept.
        """
        return self._validated.get(steps_completed)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Replace the trial's metadata, and return a copy of the stored data.

        `detcloud trial describe` shows the metadata, and later runs of the trial can read it. Any
        rank may call this, but `get_metadata` of another rank does not return the new data in this
        run.

        Args:
            metadata: JSON data of at most 16 KiB.

        Raises:
            DetcloudError: `metadata` is no dict of JSON data or too large, the report cannot be
                written, or a background checkpoint has failed.
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
        """Return a copy of the trial's metadata: the data that this process or an earlier run has
        set.

        The copy is empty if no data was set.
        """
        return copy.deepcopy(self._metadata)

    def report_early_exit(self, reason: EarlyExitReason | str) -> None:
        """Report that the code ends the trial. The code must still return.

        Any rank may report this for all ranks. The first reason of this process counts. A different
        reason in a later call is only printed, but INVALID_HP replaces USER_REQUESTED_STOP.

        Args:
            reason: a member of `EarlyExitReason` or its name.

        Raises:
            InvalidValue: the reason is unknown.
            DetcloudError: the report cannot be written, or a background checkpoint has failed.
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
        """Return the folder that TensorBoard shows for this trial, and create a missing folder.

        Your own writers may write event files to this folder. In the mode `AUTO` the folder
        contains every reported number, under the tag GROUP/NAME. On ranks other than the chief, the
        folder is temporary and deleted at the end.

        Raises:
            OSError: the folder cannot be created.
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
        """Upload new content of the folder of `get_tensorboard_path` soon.

        All files of the folder are uploaded periodically and at the end, also without this call. A
        checkpoint store in a folder needs no upload.

        Args:
            selector: ignored; exists for scripts written for Determined.
            mangler: ignored; exists for scripts written for Determined.

        Raises:
            InvalidCall: the mode is `AUTO`.
        """
        if self.tensorboard_mode is not TensorboardMode.MANUAL:
            raise InvalidCall(
                "upload_tensorboard_files needs core.init(tensorboard_mode=TensorboardMode.MANUAL)"
            )
        if self.uploader is not None:
            self.uploader.upload_soon()

    def close(self) -> None:
        """Close the event file, upload the remaining files and delete a worker's temporary
        folder. An error skips none of these steps.
        """
        with ExitStack() as stack:
            if self._worker_folder is not None:
                stack.callback(self._worker_folder.cleanup)
            if self.uploader is not None:
                stack.callback(self.uploader.close)
            if self._events is not None:
                self._events.close()

    def allow_repeats(self) -> None:
        """Begin a loop that all ranks share, and forget the names that were reported before.

        The loop may report the metrics of the latest batch once more. A second report of a name
        after this call is an error as before. From now on, metrics of ranks other than the chief
        are only checked and never stored.
        """
        self._last_reported.clear()
        self._is_shared = True

    def set_status(self, status: str) -> None:
        """Print the trial's status to the log on stderr."""
        print(f"[detcloud] status: {status}", file=sys.stderr, flush=True)

    def _report_group(
        self, group: str, steps_completed: int, metrics: dict[str, Any], **extra: int
    ) -> None:
        """Check and report metrics of a group. In the AUTO mode, also write TensorBoard events.

        `extra` are fields to add to the report. In the group `validation`, omit values of type
        bytes with a printed line, and keep the searcher's metric for `metric_at`.

        A worker, a rank other than the chief, writes no events. If all ranks share the loop
        (`allow_repeats`), a worker only checks and remembers the metrics. Otherwise a worker
        reports too, and prints once where its metrics are shown.

        Raises InvalidType if `steps_completed` is no int or `metrics` no dict. Raises InvalidValue
        if `steps_completed` is out of range, or for a name that was reported for the group's latest
        batch. Raises InvalidCall for a validation metric of None. Raises DetcloudError for values
        that JSON cannot contain, and if the report cannot be written or exceeds 256 KiB. Raises the
        error of a failed background checkpoint.
        """
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
            self._validated[steps_completed] = to_float(value)
            for oldest in list(self._validated)[:-VALIDATIONS_KEPT]:
                del self._validated[oldest]
        if is_worker and self._is_shared:
            self._note_reported(group, steps_completed, plain)
            return
        self._report(
            "metrics", group=group, steps_completed=steps_completed, metrics=plain, **extra
        )
        self._note_reported(group, steps_completed, plain)
        if self._events is not None and self.tensorboard_mode is TensorboardMode.AUTO:
            self._events.add_scalars(group, steps_completed, plain)

    def _check_not_repeated(
        self, group: str, steps_completed: int, metrics: dict[str, Any]
    ) -> None:
        """Raise InvalidValue if a metric of this group was reported at this batch already.

        Only the latest batch for which the group has a report is compared; a repetition at an
        earlier batch raises nothing. Record nothing: `_note_reported` does.
        """
        names = self._names_reported(group, steps_completed)
        if repeated := ", ".join(sorted(names & metrics.keys())):
            raise InvalidValue(
                f"{group} metrics at batch {steps_completed} were reported twice: {repeated}. Use "
                "another group, other names or the number of batches completed by now"
            )

    def _names_reported(self, group: str, steps_completed: int) -> set[str]:
        """Return the names of the group's metrics that were reported at this batch.

        Return an empty set unless this batch is the group's latest.
        """
        steps, names = self._last_reported.get(group, (-1, set[str]()))
        return names if steps == steps_completed else set()

    def _note_reported(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Remember the names that were reported at this batch, the group's latest."""
        names = self._names_reported(group, steps_completed)
        self._last_reported[group] = steps_completed, names | metrics.keys()


def _check_steps(steps_completed: object) -> None:
    """Raise InvalidType unless the value is an int. Raise InvalidValue if it is out of range."""
    if isinstance(steps_completed, bool) or not isinstance(steps_completed, int):
        raise InvalidType(f"steps_completed is {steps_completed!r}: expected an int")
    if not 0 <= steps_completed < STEPS_END:
        is_short = abs(steps_completed) < 10**30
        text = str(steps_completed) if is_short else "an integer of over 30 digits"
        raise InvalidValue(f"steps_completed is {text}: expected at least 0 and less than 2**53")


def _without_bytes(steps_completed: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the validation metrics without bytes, and print the omitted names.

    Only values at the top level are omitted. A value that is no dict is returned unchanged, since
    `_to_plain_metrics` raises the error.
    """
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
    """Return the metrics with tensors, arrays and numbers of other libraries as Python values.

    Raises InvalidType if `metrics` is no dict, InvalidCall for a validation metric of None, and
    DetcloudError for a tensor that cannot be read. Other values that JSON cannot contain stay.
    """
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
        name: to_python_value(value, f"{group} metric {name!r:.80} at batch {steps_completed}")
        for name, value in metrics.items()
    }
