"""Determined's experiments over the experiments of `detcloud.Client`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from detcloud.client import Experiment as ClusterExperiment
from detcloud.compatibility.checkpoints import Checkpoint, CheckpointSortBy
from detcloud.compatibility.handles import Handle, OrderBy, is_ascending
from detcloud.compatibility.projects import ProjectId
from detcloud.compatibility.trials import Trial, TrialSortBy, first_item, order_of, sort_trials


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
        return islice(sort_trials(self._found.trials(), sort_by, order_by), limit)

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
