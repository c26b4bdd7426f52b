"""Determined's `experimental.client` over `detcloud.Client`, outside of trials.

What the cluster of detcloud has is there; any other method says what to write instead. A trial
holds no credential of the cluster, so that nothing of this works in one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from detcloud.client import Client
from detcloud.client import Experiment as ClusterExperiment
from detcloud.client import Trial as ClusterTrial
from detcloud.compatibility.client_errors import raise_by_name
from detcloud.compatibility.handles import Checkpoint, CheckpointSortBy, Handle, OrderBy
from detcloud.compatibility.models import Model, ModelSortBy
from detcloud.compatibility.projects import (
    ExperimentSortBy,
    ProjectId,
    Workspace,
    find_workspace,
    read_workspaces,
    remember_workspace,
)
from detcloud.compatibility.trial_metrics import (
    TRAINING,
    VALIDATION,
    TrialMetrics,
    to_trial_metrics,
)
from detcloud.shared.errors import DetcloudError
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import TrialDirectory

Item = TypeVar("Item")


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
    # An ACTIVE experiment is in one of these too in Determined.
    QUEUED = "QUEUED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DELETE_FAILED = "DELETE_FAILED"


class Trial(Handle):
    """One setting of hyperparameters that is trained."""

    _found: ClusterTrial

    def kill(self) -> None:
        self._found.kill()

    def get_experiment(self) -> Experiment:
        """The trial's experiment."""
        experiment: Experiment = get_experiment(self._found.experiment_id)
        return experiment

    def iter_logs(self, follow: bool = False, **filters: object) -> Iterator[str]:
        """The lines of the log; DetcloudError for a filter."""
        _refuse_filters("Trial.iter_logs", filters, "detcloud.Client().trial(ID).log_lines")
        return _lines(self._found.logs(follow=follow))

    logs = iter_logs

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """The reports of metrics, by group and then oldest first."""
        for report in self._found.metrics(group):
            yield to_trial_metrics(self._found.id, report)

    stream_metrics = iter_metrics

    def stream_training_metrics(self) -> Iterator[TrialMetrics]:
        """`iter_metrics` of training."""
        return self.iter_metrics(TRAINING)

    def stream_validation_metrics(self) -> Iterator[TrialMetrics]:
        """`iter_metrics` of validation."""
        return self.iter_metrics(VALIDATION)

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """The trial's checkpoints, as those of its experiment are listed."""
        experiment = get_experiment(self._found.experiment_id)
        ranked = experiment.list_checkpoints(sort_by, order_by)
        ours = (one for one in ranked if one.trial_id == self._found.id)
        return list(islice(ours, max_results))

    get_checkpoints = list_checkpoints

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """The best of `list_checkpoints`."""
        found = self.list_checkpoints(sort_by, _order(smaller_is_better))
        return _first_item(found, f"trial {self._found.id} has no checkpoint with a validation")

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """The latest checkpoint, the best one, or that of a UUID: exactly one of them is given."""
        if (latest, best, uuid is not None).count(True) != 1:
            raise DetcloudError("select_checkpoint needs exactly one of latest, best and uuid")
        if uuid is not None:
            named: Checkpoint = get_checkpoint(uuid)
            return named
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        stored = [Checkpoint(one) for one in self._found.checkpoints() if one.state == "COMPLETED"]
        return _first_item(stored[::-1], f"trial {self._found.id} has no checkpoint")


class Experiment(Handle):
    """A configuration and the search over its hyperparameters."""

    _found: ClusterExperiment

    @property
    def state(self) -> ExperimentState:
        return ExperimentState(self._found.state)

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until the experiment has ended; the state in which it did."""
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

    def list_trials(self, **order: object) -> list[Trial]:
        """The trials; DetcloudError for an order."""
        return list(self.iter_trials(**order))

    def iter_trials(self, **order: object) -> Iterator[Trial]:
        _refuse_filters("Experiment.iter_trials", order, "sorted(...) over the trials")
        return map(Trial, self._found.trials())

    get_trials = list_trials

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Wait until there is a trial; the first one."""
        import time

        while not (trials := list(self._found.trials(1))):
            time.sleep(interval)
        return Trial(trials[0])

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Checkpoints with a validation, by the searcher's metric or that of the name `sort_by`,
        the best first; of another field, all of them.
        """
        smaller = None if order_by is None else order_by.value == OrderBy.ASC.value
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
        """The best of `list_checkpoints`."""
        found = self.list_checkpoints(sort_by, _order(smaller_is_better))
        return _first_item(
            found, f"experiment {self._found.id} has no checkpoint with a validation"
        )

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """The best checkpoint of each of the `limit` best trials."""
        ranked = self.list_checkpoints(sort_by, _order(smaller_is_better))
        best: dict[int, Checkpoint] = {}
        for checkpoint in ranked:
            best.setdefault(checkpoint.trial_id, checkpoint)
        return list(best.values())[:limit]

    def download_code(self, output_dir: str | None = None) -> str:
        """Unpack the model code into a new folder; its path."""
        folder = Path(output_dir or ".") / f"experiment_{self._found.id}_model_def"
        return str(self._found.download_model_def(folder))


ExperimentReference, TrialReference = Experiment, Trial


class Cluster:
    """A cluster. `master` is its address; the credentials are those of `detcloud token login`."""

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *_certificate: object,
        **_options: object,
    ) -> None:
        """Raises DetcloudError in a trial, and for a password: clusters have tokens."""
        _check_outside_of_trials()
        if password is not None:
            raise DetcloudError(
                "a password was given, but detcloud uses tokens; use `detcloud token"
                " login`, or DETCLOUD_URL and DETCLOUD_TOKEN"
            )
        self._client = Client(master)

    def create_experiment(
        self,
        config: str | Path | dict[str, Any],
        model_dir: str | Path | None = None,
        includes: Iterable[str | Path] | None = None,
        project_id: ProjectId | None = None,
        template: str | None = None,
    ) -> Experiment:
        """Submit an experiment, into the project with `project_id`, which is a `Project.id`.

        Raises DetcloudError for a number, since projects have names.
        """
        names = _project_names(project_id)
        created = self._client.create_experiment(
            config,
            model_dir,
            overrides=[f"{kind}={json.dumps(name)}" for kind, name in names.items()],
            includes=tuple(includes or ()),
            template=template,
        )
        return Experiment(created)

    @raise_by_name
    def get_experiment(self, experiment_id: int) -> Experiment:
        return Experiment(self._client.experiment(experiment_id))

    def list_experiments(
        self,
        *,
        sort_by: ExperimentSortBy = ExperimentSortBy.ID,
        order_by: OrderBy = OrderBy.DESC,
        labels: Sequence[str] | None = None,
        users: Sequence[str] | None = None,
        states: Sequence[ExperimentState] | None = None,
        name: str | None = None,
        **others: Any,
    ) -> list[Experiment]:
        """The experiments of one of the users and with one of the labels, newest first or sorted;
        also those of a `workspace` and a `project`, by their names, or of a `project_id`.
        """
        names = _project_names(others.pop("project_id", None))
        groups = {kind: others.pop(kind, names.get(kind)) for kind in ("workspace", "project")}
        _refuse_filters("list_experiments", others, "detcloud.Client().experiments")
        found = self._client.experiments(
            states=[one.value for one in states or ()],
            name=name,
            sort_by=sort_by.value,
            order_by=order_by.value,
            workspace=groups["workspace"],
            project=groups["project"],
        )
        return [
            Experiment(one)
            for one in found
            if (not users or one.user in users) and (not labels or set(labels) & set(one.labels))
        ]

    @raise_by_name
    def get_trial(self, trial_id: int) -> Trial:
        return Trial(self._client.trial(trial_id))

    @raise_by_name
    def get_checkpoint(self, uuid: str) -> Checkpoint:
        return Checkpoint(self._client.checkpoint(uuid))

    def iter_trials_metrics(self, trial_ids: Iterable[int], group: str) -> Iterator[TrialMetrics]:
        """The reports of a group of several trials, trial by trial."""
        for trial_id in trial_ids:
            yield from self.get_trial(trial_id).iter_metrics(group)

    stream_trials_metrics = iter_trials_metrics

    def stream_trials_training_metrics(self, trial_ids: Iterable[int]) -> Iterator[TrialMetrics]:
        return self.iter_trials_metrics(trial_ids, TRAINING)

    def stream_trials_validation_metrics(self, trial_ids: Iterable[int]) -> Iterator[TrialMetrics]:
        return self.iter_trials_metrics(trial_ids, VALIDATION)

    def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: dict[str, Any] | None = None,
        labels: list[str] | None = None,
        workspace_name: str | None = None,
    ) -> Model:
        """Make a model without versions."""
        texts = {"description": description, "workspace": workspace_name}
        fields = {**texts, "metadata": metadata, "labels": labels}
        given = {key: value for key, value in fields.items() if value is not None}
        return Model(self._client.create_model(name, **given))

    @raise_by_name
    @accept_names(name="identifier")
    def get_model(self, identifier: str) -> Model:
        """The model of that name; DetcloudError for a number, since models have names alone."""
        if not isinstance(identifier, str):
            raise DetcloudError(
                f"models have no ids in detcloud; use the name instead of {identifier!r}"
            )
        return Model(self._client.model(identifier))

    def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASC,
        name: str | None = None,
        workspace_names: list[str] | None = None,
        **others: object,
    ) -> list[Model]:
        """The models that are not archived, with `name` in their names."""
        _refuse_filters("list_models", others, "detcloud.Client().models")
        found = self._client.models(
            name=name,
            workspaces=workspace_names or (),
            sort_by=sort_by.value,
            descending=order_by.value == OrderBy.DESC.value,
        )
        return [Model(one) for one in found]

    get_models = list_models

    def list_workspaces(self) -> list[Workspace]:
        """The workspaces that experiments are in."""
        return read_workspaces(self._client)

    @raise_by_name
    def get_workspace(self, name: str) -> Workspace:
        """The workspace of that name; DetcloudError where no experiment is in one."""
        return find_workspace(self._client, name)

    def create_workspace(self, name: str) -> Workspace:
        """The workspace of that name, which the cluster knows once an experiment is in it."""
        return remember_workspace(self._client, name)

    def get_session_username(self) -> str:
        return str(self._client.whoami()["user"])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Determined.{name} is not supported by detcloud: detcloud "
            "has no passwords; use detcloud.Client or the detcloud command"
        )


_cluster: Cluster | None = None


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *_certificate: object,
    **_options: object,
) -> None:
    """Choose the cluster of this module's functions; without it they take the commands' own."""
    global _cluster
    _cluster = Cluster(master, user, password)


def _on_cluster(name: str) -> Callable[..., Any]:
    """The method of that name, of the cluster that `login` chose or that the commands have."""

    def call(*arguments: Any, **options: Any) -> Any:
        if _cluster is None:
            login()
        return getattr(_cluster, name)(*arguments, **options)

    call.__name__ = name
    call.__doc__ = getattr(Cluster, name).__doc__
    return call


create_experiment = _on_cluster("create_experiment")
get_experiment = _on_cluster("get_experiment")
list_experiments = _on_cluster("list_experiments")
get_trial = _on_cluster("get_trial")
get_checkpoint = _on_cluster("get_checkpoint")
create_model = _on_cluster("create_model")
get_model = _on_cluster("get_model")
get_models = _on_cluster("get_models")
list_models = _on_cluster("list_models")
list_workspaces = _on_cluster("list_workspaces")
get_workspace = _on_cluster("get_workspace")
create_workspace = _on_cluster("create_workspace")
get_session_username = _on_cluster("get_session_username")
iter_trials_metrics = _on_cluster("iter_trials_metrics")
stream_trials_metrics = _on_cluster("stream_trials_metrics")
stream_trials_training_metrics = _on_cluster("stream_trials_training_metrics")
stream_trials_validation_metrics = _on_cluster("stream_trials_validation_metrics")


def _project_names(project_id: object) -> dict[str, str]:
    """The names of a project by its id, none without one; DetcloudError for what is no id."""
    if project_id is None:
        return {}
    if not isinstance(project_id, ProjectId):
        raise DetcloudError(
            f"project_id={project_id!r:.40}: projects have no numbers here; give the `id` of a"
            " Project, or the names `workspace` and `project`"
        )
    return {"workspace": project_id.workspace, "project": project_id.project}


def _check_outside_of_trials() -> None:
    if TrialDirectory.from_environment() is not None:
        raise DetcloudError(
            "a trial holds no credential of the cluster, so determined.experimental.client cannot"
            " be used in one: give it a checkpoint with searcher.source_checkpoint_uuid, which"
            " core_context.checkpoint restores, or run the script outside of a trial"
        )


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """The lines in pieces of a text, with their ends."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


def _refuse_filters(place: str, filters: dict[str, object], instead: str) -> None:
    if given := ", ".join(sorted(name for name, value in filters.items() if value is not None)):
        raise DetcloudError(f"{place} takes no {given} here: use {instead}")


def _order(smaller_is_better: bool | None) -> OrderBy | None:
    if smaller_is_better is None:
        return None
    return OrderBy.ASC if smaller_is_better else OrderBy.DESC


def _first_item(found: Sequence[Item], missing: str) -> Item:
    if not found:
        raise DetcloudError(missing)
    return found[0]
