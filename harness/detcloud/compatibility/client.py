"""Determined's `experimental.client` over `detcloud.Client`, for scripts outside of trials.

Names that detcloud does not support raise an error with the replacement. A trial has no credentials
of the cluster, so this module refuses to work in a trial.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detcloud.client import Client
from detcloud.compatibility.checkpoints import Checkpoint
from detcloud.compatibility.client_errors import raise_by_name
from detcloud.compatibility.experiments import Experiment, ExperimentState, Trial
from detcloud.compatibility.handles import OrderBy, missing_name_error
from detcloud.compatibility.models import Model, ModelSortBy
from detcloud.compatibility.projects import (
    ExperimentSortBy,
    ProjectId,
    Workspace,
    find_workspace,
    read_workspaces,
    remember_workspace,
)
from detcloud.compatibility.trial_metrics import TRAINING, VALIDATION, TrialMetrics
from detcloud.compatibility.trials import refuse_options
from detcloud.compatibility.users import User, current_user, find_user, read_users
from detcloud.shared.errors import DetcloudError
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.trial_directory import TrialDirectory

_NO_OAUTH = "use `detcloud token create USER`; detcloud has tokens and no OAuth clients"
INSTEAD = {
    "create_user": "use `detcloud token create USER`, which makes the name a user",
    "get_user_by_id": "use get_user_by_name(NAME); a user's name is also the id",
    "logout": "use `detcloud token logout`",
    "get_model_by_id": "use get_model(NAME); a model's name is also the id",
    "delete_workspace": "use detcloud.Client().experiment(ID).move(WORKSPACE, PROJECT) for each "
    "experiment; a workspace without experiments does not exist",
    "list_oauth_clients": _NO_OAUTH,
    "add_oauth_client": _NO_OAUTH,
    "remove_oauth_client": _NO_OAUTH,
}


class Cluster:
    """A cluster, by the name `Determined` in scripts.

    Every method that sends a request raises an ApiError if the cluster refuses, and Unreachable
    without an answer. Methods `get_...` of a single object have Determined's errors for the
    statuses 401, 403 and 404: UnauthenticatedException, ForbiddenException and NotFoundException.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *_certificate: object,
        **_options: object,
    ) -> None:
        """Connect to the cluster with the token of `detcloud token login` or DETCLOUD_TOKEN.

        Args:
            master: the address; None for the cluster of the commands.
            user: ignored, because the token decides.
            password: refused: detcloud has tokens and no passwords.
            _certificate: ignored.
            _options: ignored.

        Raises:
            DetcloudError: the code runs in a trial, a password is given, or no cluster or token is
                known.
        """
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
        """Submit an experiment, and return the handle. Arguments as `Client.create_experiment`.

        `project_id` is the `id` of a Project. Raises DetcloudError for a number, because projects
        have only names, and for files that cannot be read or packed.
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
        experiment_ids: Sequence[int] | None = None,
        labels: Sequence[str] | None = None,
        users: Sequence[str] | None = None,
        states: Sequence[ExperimentState] | None = None,
        name: str | None = None,
        **others: Any,
    ) -> list[Experiment]:
        """Return the experiments that match all filters, by default the newest first.

        Archived experiments are left out.

        Args:
            sort_by: the field of the order.
            order_by: the direction of the order.
            experiment_ids: only experiments with one of these ids.
            labels: only experiments with one of these labels.
            users: only experiments of one of these users.
            states: only experiments in one of these states.
            name: only experiments with this text in the name.
            others: `workspace` and `project`, by name, or `project_id`.

        Raises DetcloudError for other options, and for a `project_id` that is a number.
        """
        names = _project_names(others.pop("project_id", None))
        groups = {kind: others.pop(kind, names.get(kind)) for kind in ("workspace", "project")}
        refuse_options("list_experiments", others, "detcloud.Client().experiments")
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
            if (not users or one.user in users)
            and (not labels or set(labels) & set(one.labels))
            and (experiment_ids is None or one.id in experiment_ids)
        ]

    @raise_by_name
    def get_trial(self, trial_id: int) -> Trial:
        return Trial(self._client.trial(trial_id))

    @raise_by_name
    def get_checkpoint(self, uuid: str) -> Checkpoint:
        return Checkpoint(self._client.checkpoint(uuid))

    def iter_trials_metrics(self, trial_ids: Iterable[int], group: str) -> Iterator[TrialMetrics]:
        """Yield the reports of a group of metrics, trial by trial in the given order."""
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
        """Create a model without versions, and return the model.

        An existing name is a `conflict`.
        """
        texts = {"description": description, "workspace": workspace_name}
        fields = {**texts, "metadata": metadata, "labels": labels}
        given = {key: value for key, value in fields.items() if value is not None}
        return Model(self._client.create_model(name, **given))

    @raise_by_name
    @accept_names(name="identifier")
    def get_model(self, identifier: str) -> Model:
        """Return the model with this name.

        Raises DetcloudError for a number: models have no ids.
        """
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
        """Return the models that are not archived and match all filters.

        `name` is a part of the name, `workspace_names` the allowed workspaces. Raises DetcloudError
        for further options.
        """
        refuse_options("list_models", others, "detcloud.Client().models")
        found = self._client.models(
            name=name,
            workspaces=workspace_names or (),
            sort_by=sort_by.value,
            descending=order_by.value == OrderBy.DESC.value,
        )
        return [Model(one) for one in found]

    get_models = list_models

    def list_workspaces(self) -> list[Workspace]:
        """Return the workspaces that have experiments, and those that this process created."""
        return read_workspaces(self._client)

    @raise_by_name
    def get_workspace(self, name: str) -> Workspace:
        """Return the workspace with this name.

        Raises NotFoundException if it is not in the list.
        """
        return find_workspace(self._client, name)

    def create_workspace(self, name: str) -> Workspace:
        """Return a workspace with this name, and list it in this process.

        The cluster has the workspace once an experiment is in it.
        """
        return remember_workspace(self._client, name)

    def get_model_labels(self) -> list[str]:
        """Return the labels of all models that are not archived, the most frequent first, then by
        name.
        """
        counts: dict[str, int] = {}
        for model in self._client.models():
            for label in model.labels:
                counts[label] = counts.get(label, 0) + 1
        return sorted(counts, key=lambda label: (-counts[label], label))

    def get_session_username(self) -> str:
        return str(self._client.whoami()["user"])

    def whoami(self) -> User:
        """Return the user of the token in use."""
        return current_user(self._client)

    @raise_by_name
    def get_user_by_name(self, user_name: str) -> User:
        """Return the user with this name. Raises NotFoundException if no visible token is that
        user's.

        An admin sees all tokens, another user only own tokens.
        """
        return find_user(self._client, user_name)

    def list_users(self, active: bool | None = None) -> list[User]:
        """Return the users of all tokens that the caller may see: for an admin all, else the
        caller.

        With `active` True or False, return only users with, or without, a valid token.
        """
        return [one for one in read_users(self._client) if active in (None, one.active)]

    def __getattr__(self, name: str) -> Any:
        raise missing_name_error("Determined", name, INSTEAD)


_cluster: Cluster | None = None


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *_certificate: object,
    **_options: object,
) -> None:
    """Choose the cluster for this module's functions.

    Without a call, the functions use the cluster of the commands.

    Args:
        master: as for `Determined`.
        user: as for `Determined`.
        password: as for `Determined`.
        _certificate: ignored.
        _options: ignored.

    Raises:
        DetcloudError: as for `Determined`.
    """
    global _cluster
    _cluster = Cluster(master, user, password)


def _on_cluster(name: str) -> Callable[..., Any]:
    """Return a function that calls this method of the cluster that `login` chose, or of the
    default.

    The default cluster is connected at the first call.
    """

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
get_model_labels = _on_cluster("get_model_labels")
get_session_username = _on_cluster("get_session_username")
get_user_by_name = _on_cluster("get_user_by_name")
list_users = _on_cluster("list_users")
whoami = _on_cluster("whoami")
iter_trials_metrics = _on_cluster("iter_trials_metrics")
stream_trials_metrics = _on_cluster("stream_trials_metrics")
stream_trials_training_metrics = _on_cluster("stream_trials_training_metrics")
stream_trials_validation_metrics = _on_cluster("stream_trials_validation_metrics")


def _project_names(project_id: object) -> dict[str, str]:
    """Return the names of workspace and project of an id, or an empty dict for None.

    Raises DetcloudError for anything else.
    """
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
