"""Determined's experiments and trials over the experiments and trials of `detcloud.Client`.

An experiment returns trials, and a trial returns its experiment. A single module therefore has both
classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from detcloud.client import Experiment as ClusterExperiment
from detcloud.client import Trial as ClusterTrial
from detcloud.client.log import LogFilter
from detcloud.client.ranking import rank_checkpoints
from detcloud.compatibility.checkpoints import Checkpoint, CheckpointSortBy
from detcloud.compatibility.handles import Handle, OrderBy, is_ascending
from detcloud.compatibility.log_lines import split_lines
from detcloud.compatibility.projects import ProjectId
from detcloud.compatibility.trial_metrics import (
    TRAINING,
    VALIDATION,
    TrialMetrics,
    to_trial_metrics,
)
from detcloud.compatibility.trials import (
    LogLevel,
    TrialSortBy,
    TrialState,
    first_item,
    order_of,
    refuse_options,
    sort_trials,
)
from detcloud.shared.errors import DetcloudError

# Determined's names of the groups in a trial's summary.
SUMMARY_GROUPS = {TRAINING: "avg_metrics", VALIDATION: "validation_metrics"}


class ExperimentState(Enum):
    """The states of experiments."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_ERROR = "STOPPING_ERROR"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"
    # Determined's states within ACTIVE, which detcloud never returns.
    QUEUED = "QUEUED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DELETE_FAILED = "DELETE_FAILED"


ExperimentOrderBy = OrderBy


class Trial(Handle):
    """A training run with fixed hyperparameters."""

    _found: ClusterTrial

    @property
    def state(self) -> TrialState:
        return TrialState(self._found.state)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that training code and users set.

        A handle from a list has no metadata and reads all fields from the cluster.
        """
        if "metadata" not in self._found.data:
            self._found.refresh()
        return self._found.metadata

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """The summaries of numeric metrics as a dict by group and name.

        A summary has `count`, `last`, `max`, `min`, `mean`, `sum` and `type`. Two groups are named
        `avg_metrics` and `validation_metrics`. Each access reads the cluster.
        """
        summary: dict[str, Any] = {}
        for one in self._found.metric_summaries():
            group = summary.setdefault(SUMMARY_GROUPS.get(one["group"], one["group"]), {})
            group[one["name"]] = {
                "count": one["count"],
                "last": one["last"],
                "max": one["maximum"],
                "min": one["minimum"],
                "mean": one["mean"],
                "sum": one["mean"] * one["count"],
                "type": "number",
            }
        return summary

    def kill(self) -> None:
        """End the trial, which has 15 seconds to store a checkpoint. The search continues."""
        self._found.kill()

    def get_experiment(self) -> Experiment:
        """Return the experiment of this trial."""
        return Experiment(self._found.experiment())

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        rank_ids: Sequence[int] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: str | int | None = None,
        timestamp_after: str | int | None = None,
        search_text: str | None = None,
        **unsupported: object,
    ) -> Iterator[str]:
        """Yield the lines of the log, including line ends.

        Args:
            follow: wait for new lines until the trial has ended.
            head: only the first lines.
            tail: only the last lines.
            rank_ids: only lines of these processes.
            min_level: only lines of this level and higher levels.
            timestamp_before: only earlier lines; a time in ISO 8601 or in epoch seconds.
            timestamp_after: only lines from this time on, in the same form.
            search_text: only lines with this text, in upper or lower case.

        Raises:
            DetcloudError: a filter of Determined that detcloud does not have.
            ValueError: a negative number of lines, two of `follow`, `head` and `tail`, or an
                invalid time.
        """
        refuse_options("Trial.iter_logs", unsupported, "min_level, rank_ids or search_text")
        _check_line_limits(follow, head, tail)
        wanted = LogFilter(
            since_ms=_epoch_ms(timestamp_after),
            until_ms=_epoch_ms(timestamp_before),
            level=None if min_level is None else min_level.value,
            search=search_text,
        )
        lines = self._iter_lines(wanted, rank_ids, follow)
        if tail is None:
            return islice(lines, head)
        # A late import, because most scripts read no log.
        from collections import deque

        return iter(deque(lines, maxlen=tail))

    logs = iter_logs

    def _iter_lines(
        self, wanted: LogFilter, rank_ids: Sequence[int] | None, follow: bool
    ) -> Iterator[str]:
        if wanted == LogFilter() and rank_ids is None:
            yield from split_lines(self._found.logs(follow=follow))
            return
        for line in self._found.log_lines(wanted, follow=follow):
            if rank_ids is None or line["rank"] in rank_ids:
                yield f"{line['text']}\n"

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Yield the reports of a group of metrics, or of all groups with None, the oldest first.

        With None, the reports come group by group.
        """
        for report in self._found.metrics(group):
            yield to_trial_metrics(self._found.id, report)

    stream_metrics = iter_metrics

    def stream_training_metrics(self) -> Iterator[TrialMetrics]:
        """Yield the reports of training metrics, the oldest first."""
        return self.iter_metrics(TRAINING)

    def stream_validation_metrics(self) -> Iterator[TrialMetrics]:
        """Yield the reports of validation metrics, the oldest first."""
        return self.iter_metrics(VALIDATION)

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: Any = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Return at most `max_results` checkpoints, damaged and deleted ones included.

        Args:
            sort_by: None, SEARCHER_METRIC or the name of a validation metric ranks the checkpoints
                that have the metric, the best first. Another field sorts all checkpoints.
            order_by: for a metric, ascending means that small values are best; None for the
                searcher's setting. For a field, None is ascending.

        Raises DetcloudError for a metric that is not the searcher's if `order_by` is None.
        """
        found = list(self._found.checkpoints())
        if (
            isinstance(sort_by, CheckpointSortBy)
            and sort_by is not CheckpointSortBy.SEARCHER_METRIC
        ):
            descends = order_by is not None and not is_ascending(order_by)
            found = sorted(found, key=attrgetter(sort_by.value), reverse=descends)
        else:
            smaller = None if order_by is None else is_ascending(order_by)
            name = sort_by if isinstance(sort_by, str) else None
            experiment = self._found.experiment()
            found = rank_checkpoints(experiment, found, name, smaller, stored_only=False)
        return [Checkpoint(one) for one in found[:max_results]]

    get_checkpoints = list_checkpoints

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best stored checkpoint, by the searcher's metric or `sort_by`.

        Raises DetcloudError without a stored checkpoint that has the metric, and if `sort_by` is
        not the searcher's metric and `smaller_is_better` is None.
        """
        ranked = self.list_checkpoints(sort_by, order_of(smaller_is_better))
        stored = [one for one in ranked if one.state == "COMPLETED"]
        return first_item(stored, f"trial {self._found.id} has no checkpoint with a validation")

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Return the latest stored checkpoint, the best stored checkpoint, or the checkpoint of a
        UUID.

        `sort_by` and `smaller_is_better` apply to `best`, as in `top_checkpoint`.

        Raises:
            DetcloudError: not exactly one of `latest`, `best` and `uuid` is given, or the trial has
                no such checkpoint.
        """
        if (latest, best, uuid is not None).count(True) != 1:
            raise DetcloudError("select_checkpoint needs exactly one of latest, best and uuid")
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        found = self._found.checkpoints()
        if uuid is not None:
            named = [Checkpoint(one) for one in found if one.uuid == uuid]
            return first_item(named, f"trial {self._found.id} has no checkpoint {uuid}")
        stored = [Checkpoint(one) for one in found if one.state == "COMPLETED"]
        return first_item(stored[::-1], f"trial {self._found.id} has no checkpoint")


class Experiment(Handle):
    """An experiment: a configuration and the search over hyperparameters."""

    instead: ClassVar[Mapping[str, str]] = {
        "notes": "use Experiment.description; detcloud keeps no notes of experiments",
        "set_notes": "use Experiment.set_description(TEXT); detcloud keeps no notes of experiments",
        "get_pachyderm_config": "use Experiment.config['integrations']",
    }

    _found: ClusterExperiment

    @property
    def state(self) -> ExperimentState:
        return ExperimentState(self._found.state)

    @property
    def project_id(self) -> ProjectId:
        """The names of the workspace and the project.

        Other functions accept this value as an id.
        """
        return ProjectId(self._found.workspace, self._found.project)

    @property
    def workspace_id(self) -> str:
        """The name of the workspace."""
        return self._found.workspace

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until the experiment has ended, and return the state. `interval` is in seconds."""
        return ExperimentState(self._found.wait(interval))

    def set_name(self, name: str) -> None:
        self._found.set(name=name)

    def set_description(self, description: str) -> None:
        self._found.set(description=description)

    def set_labels(self, labels: Iterable[str]) -> None:
        self._found.set(labels=sorted(set(labels)))

    def add_label(self, label: str) -> None:
        self.set_labels([*self._found.labels, label])

    def remove_label(self, label: str) -> None:
        self.set_labels(one for one in self._found.labels if one != label)

    def move_to_project(self, workspace_name: str, project_name: str) -> None:
        """Move the experiment to a project. Names of new workspaces and projects are accepted."""
        self._found.move(workspace_name, project_name)

    def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: Any = None
    ) -> list[Trial]:
        """Return all trials, by id or sorted as `iter_trials`."""
        return list(self.iter_trials(sort_by, order_by))

    get_trials = list_trials

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: Any = None,
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """Yield at most `limit` trials, by id or sorted by another field.

        Trials without a value come last. `order_by` None is ascending.
        """
        if sort_by is TrialSortBy.ID and (order_by is None or is_ascending(order_by)):
            return islice(map(Trial, self._found.trials()), limit)
        return islice(map(Trial, sort_trials(self._found.trials(), sort_by, order_by)), limit)

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Wait until the experiment has a trial, and return the first. `interval` is in seconds."""
        import time

        while not (trials := list(self._found.trials(1))):
            time.sleep(interval)
        return Trial(trials[0])

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: Any = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Return at most `max_results` checkpoints, by default ranked by the searcher's metric.

        Args:
            sort_by: None, SEARCHER_METRIC or the name of a validation metric ranks COMPLETED
                checkpoints that have the metric. Another field sorts all checkpoints, deleted ones
                included.
            order_by: for a metric, ascending means that small values are best; None for the
                searcher's setting. For a field, None is ascending.

        Raises DetcloudError for a metric that is not the searcher's if `order_by` is None.
        """
        smaller = None if order_by is None else is_ascending(order_by)
        if sort_by is CheckpointSortBy.SEARCHER_METRIC:
            sort_by = None
        if isinstance(sort_by, CheckpointSortBy):
            found = sorted(
                self._found.checkpoints(),
                key=attrgetter(sort_by.value),
                reverse=smaller is False,
            )
            return [Checkpoint(one) for one in found[:max_results]]
        ranked = self._found.best_checkpoints(sort_by, smaller)
        return [Checkpoint(one) for one in ranked[:max_results]]

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best stored checkpoint, by the searcher's metric or `sort_by`.

        Raises DetcloudError without a stored checkpoint that has the metric, and if `sort_by` is
        not the searcher's metric and `smaller_is_better` is None.
        """
        found = self.list_checkpoints(sort_by, order_of(smaller_is_better))
        return first_item(found, f"experiment {self._found.id} has no checkpoint with a validation")

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the best checkpoint of each of the `limit` best trials, the best first.

        Errors are those of `list_checkpoints`.
        """
        ranked = self.list_checkpoints(sort_by, order_of(smaller_is_better))
        best: dict[int, Checkpoint] = {}
        for checkpoint in ranked:
            best.setdefault(checkpoint.trial_id, checkpoint)
        return list(best.values())[:limit]

    def download_code(self, output_dir: str | None = None) -> str:
        """Unpack the model code into a new folder `experiment_ID_model_def`, and return the path.

        The folder is created in `output_dir`, or in the working folder. Raises DetcloudError if the
        folder exists.
        """
        folder = Path(output_dir or ".") / f"experiment_{self._found.id}_model_def"
        return str(self._found.download_model_def(folder))


ExperimentReference, TrialReference = Experiment, Trial


def _check_line_limits(follow: bool, head: int | None, tail: int | None) -> None:
    for name, limit in (("head", head), ("tail", tail)):
        if limit is not None and limit < 0:
            raise ValueError(f"{name}={limit} must be 0 or more")
    if [follow, head is not None, tail is not None].count(True) > 1:
        raise ValueError("give only one of follow, head and tail")


def _epoch_ms(time: str | int | None) -> int | None:
    if time is None:
        return None
    if isinstance(time, str):
        return round(datetime.fromisoformat(time).timestamp() * 1000)
    return time * 1000
