"""The handle of an experiment, without the methods that return other handles."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast

from detcloud.client.fork_records import Family, Pace
from detcloud.client.importance_records import Importance
from detcloud.client.records import (
    Activity,
    CollectionPreview,
    ExperimentMetrics,
    HistoryEntry,
    NoticeCounts,
    ReplayedActor,
    Rungs,
    UnrecordedCheckpoint,
)
from detcloud.client.replacement_records import ExperimentReplacements
from detcloud.client.resource import Field, Resource

ENDED_STATES = frozenset({"COMPLETED", "CANCELED", "ERROR", "DELETING", "DELETE_FAILED"})
REPLAY_PAGE = 20


class UnsetType:
    """The type of UNSET: the default of a setting that None would change."""


UNSET: Final = UnsetType()


class ExperimentHandle(Resource):
    """The fields of an experiment, and the methods that return no other handle."""

    id = Field[int]("The id, unique in the cluster.")
    kind = Field[str]("The kind of job: `experiment`, `command`, `notebook` or `shell`.")
    name = Field[str]("The name of the experiment.")
    description = Field[str]("The free-form description of the experiment; empty without one.")
    state = Field[str](
        "The state: ACTIVE, PAUSED, STOPPING_..., COMPLETED, CANCELED, ERROR or DELETE..."
    )
    condition = Field[str](
        "The word for the state as the page and the command line show it, such as running, queued "
        "or finished."
    )
    user = Field[str]("The user who submitted the experiment.")
    workspace = Field[str]("The workspace of the experiment's project.")
    project = Field[str]("The project of the experiment.")
    resource_pool = Field[str]("The name of the experiment's present resource pool.")
    preferred_pools = Field[list[str]](
        "The pools that the job may move between, in order; empty if the pool is fixed."
    )
    waits_since_ms = Field[int | None](
        "The begin of the wait in the preferred pools, epoch milliseconds; None before a move."
    )
    pool_moved_ms = Field[int | None](
        "The time of the last move to another pool, epoch milliseconds; None before a move."
    )
    pool_move_reason = Field[str](
        "The reason for the last move to another pool; empty before a move."
    )
    searcher = Field[str]("The name of the search algorithm.")
    metric = Field[str]("The name of the validation metric that the search compares.")
    smaller_is_better = Field[bool]("Whether the search minimises the metric.")
    continuable = Field[bool]("Whether the search can be continued after its end.")
    progress = Field[float | None]("The completed share of the search, 0 to 1; None if unknown.")
    best_metric = Field[float | None](
        "The best validation metric so far; None before the first validation."
    )
    best_trial_id = Field[int | None](
        "The id of the trial with the best metric; None before the first validation."
    )
    created_ms = Field[int]("The time of the submission, in epoch milliseconds.")
    ended_ms = Field[int | None]("The time of the end, in epoch milliseconds; None before the end.")
    message = Field[str | None](
        "The reason for the present state; empty if the state needs no reason."
    )
    labels = Field[list[str]]("The labels of the experiment; empty without any.")
    metadata = Field[dict[str, Any]](
        "The metadata as JSON, by which experiments can be found; empty without any."
    )
    job_id = Field[str]("The UUID of the experiment's job in the queue.")
    archived = Field[bool]("Whether lists leave out the experiment.")
    seed = Field[int]("The seed of the search.")
    notices = Field[NoticeCounts]("The numbers of reactions to interruption notices, by result.")
    cost = Field[float]("The cost so far, in dollars.")
    max_cost = Field[float | None]("The limit of the cost, in dollars; None without a limit.")
    max_slots = Field[int | None]("The limit of simultaneously used slots; None without a limit.")
    weight = Field[float]("The weight of the experiment under the fair-share scheduler.")
    priority = Field[int | None](
        "The priority in a priority pool, 1 to 99; None for the pool's default."
    )
    warnings = Field[list[str]]("The warnings of the submission; empty in all later answers.")
    save_experiment_best = Field[int]("The number of best checkpoints of the experiment to keep.")
    save_trial_best = Field[int]("The number of best checkpoints of each trial to keep.")
    save_trial_latest = Field[int]("The number of latest checkpoints of each trial to keep.")
    code_sha256 = Field[str]("The SHA-256 digest of the model code.")
    forked_from = Field[int | None]("The id of the forked experiment; None if this is no fork.")
    schedule_id = Field[int | None]("The schedule of the submission; None if a user submitted.")

    @property
    def has_ended(self) -> bool:
        """Whether the state is COMPLETED, CANCELED, ERROR, DELETING or DELETE_FAILED.

        The value comes from the cluster's latest answer. Call `refresh` first for the present
        state.
        """
        return self.state in ENDED_STATES

    # Released scripts use this name.
    ended = has_ended

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with every default. Secrets are masked.

        A handle from a list first reads all fields from the cluster again.
        """
        self._load_config()
        config: dict[str, Any] = self.data["config"]
        return config

    @property
    def submitted_config(self) -> dict[str, Any]:
        """The settings that the user and the template set, without defaults. Secrets are masked.

        For experiments of older clusters, the settings that differ from the defaults. A handle from
        a list first reads all fields from the cluster again.
        """
        from detcloud.client.forks import submitted_config

        self._load_config()
        return submitted_config(self.data)

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again."""
        self.data = self._client.get(self._path())

    def pause(self) -> None:
        """Pause the experiment: the trials store a checkpoint and release the slots.

        The trials have `preemption_timeout` for the checkpoint. Commands, notebooks and shells
        cannot be paused, nor can an experiment that is ending or has ended.
        """
        self._command("pause")

    def activate(self) -> None:
        """Resume a paused experiment from the latest checkpoint of each trial.

        Nothing changes if the experiment is active. An ApiError `conflict` is raised if the
        experiment has reached its cost limit, is ending or has ended: see `continue_`.
        """
        self._command("activate")

    def cancel(self) -> None:
        """End the experiment after the trials have stored a checkpoint.

        The trials have `preemption_timeout` for the checkpoint. Nothing changes if the experiment
        is ending or has ended. In the step era, for configurations with lengths in steps, canceling
        such an experiment is a `conflict`, unless it is being canceled.
        """
        self._command("cancel")

    def kill(self) -> None:
        """End the experiment now. Its trials have at most 15 seconds to store a checkpoint.

        An experiment that is being canceled is killed instead. Nothing changes if the experiment is
        ending otherwise or has ended. In the step era, for configurations with lengths in steps,
        killing an ended experiment is `not_found`.
        """
        self._command("kill")

    def archive(self) -> None:
        """Leave an ended experiment out of lists, unless a list asks for archived experiments."""
        self._command("archive")

    def unarchive(self) -> None:
        """Show an archived experiment in lists again."""
        self._command("unarchive")

    def continue_(self, overrides: Sequence[str] = ()) -> None:
        """Make an ended experiment ACTIVE again, and resume trials that did not complete.

        Args:
            overrides: changes such as `max_restarts=9`. Only `max_restarts` and the length of a
                `single` search (`searcher.max_length`, `searcher.max_steps`) can be raised.

        Raises:
            detcloud.shared.http.ApiError: the experiment is not COMPLETED, CANCELED or ERROR, is
                archived or not `continuable`, or all trials completed and the overrides do not
                lengthen the search.
        """
        self._command("continue", {"overrides": list(overrides)})

    def delete(self) -> None:
        """Delete an ended experiment with all checkpoints, logs and metrics.

        The state is DELETING until everything is deleted. After that, requests for the experiment
        fail with `not_found`.

        Raises:
            detcloud.shared.http.ApiError: the experiment has not ended, or something keeps one of
                its checkpoints: a pin, a model version or another experiment.
        """
        self.data = self._client.delete(self._path())

    def delete_tensorboard_files(self) -> None:
        """Delete the TensorBoard files of an ended experiment. Nothing else is deleted."""
        self.data = self._client.delete(self._path("tensorboard"))

    def set(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        labels: Iterable[str] | None = None,
        max_slots: int | UnsetType | None = UNSET,
        max_cost: float | UnsetType | None = UNSET,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
    ) -> None:
        """Change the given settings. A setting that is not given stays as it is.

        A change of a `save_...` setting immediately deletes checkpoints that are no longer kept.
        `preview_collection` lists these checkpoints.

        Args:
            name: the new name.
            description: the new description.
            labels: the new labels, which replace all present labels.
            max_slots: the most slots at a time; None removes the limit.
            max_cost: the most dollars to spend; None removes the limit.
            save_experiment_best: the number of the experiment's best checkpoints to keep.
            save_trial_best: the number of each trial's best checkpoints to keep.
            save_trial_latest: the number of each trial's latest checkpoints to keep.
        """
        fields = {
            "name": name,
            "description": description,
            "labels": None if labels is None else list(labels),
            "save_experiment_best": save_experiment_best,
            "save_trial_best": save_trial_best,
            "save_trial_latest": save_trial_latest,
        }
        body: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
        if not isinstance(max_slots, UnsetType):
            body["max_slots"] = max_slots
        if not isinstance(max_cost, UnsetType):
            body["max_cost"] = max_cost
        self.data = self._client.patch(self._path(), body)

    def move(self, workspace: str, project: str) -> None:
        """Move the experiment to another project. New names are accepted.

        Args:
            workspace: the name of the workspace.
            project: the name of the project.
        """
        body = {"workspace": workspace, "project": project}
        self.data = self._client.patch(self._path(), body)

    def set_metadata(
        self, metadata: Mapping[str, Any], *, expected_revision: str | None = None
    ) -> None:
        """Replace all metadata of the experiment.

        Args:
            metadata: JSON data, at most 30 values and 4 KiB.
            expected_revision: the `revision` of the experiment that the change is based on. None
                replaces the metadata whatever has changed since.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the experiment has another revision.
        """
        body = {"metadata": dict(metadata), "revision": expected_revision}
        self.data = self._client.patch(self._path(), body)

    def set_weight(self, weight: float) -> None:
        """Change the experiment's share of a fair-share pool."""
        self.data = self._client.patch(self._path(), {"weight": weight})

    def set_priority(self, priority: int) -> None:
        """Change the priority in a priority pool: 1 (first) to 99.

        Among jobs of equal priority, the position is by time of submission, even after a move.
        """
        self.data = self._client.patch(self._path(), {"priority": priority})

    def preview_collection(
        self,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
    ) -> CollectionPreview:
        """Return the checkpoints that other settings would delete, without deleting any.

        Args:
            save_experiment_best: as for `set`. None for the present setting.
            save_trial_best: as for `set`. None for the present setting.
            save_trial_latest: as for `set`. None for the present setting.
        """
        preview: CollectionPreview = self._client.get(
            self._path("checkpoint-gc"),
            save_experiment_best=save_experiment_best,
            save_trial_best=save_trial_best,
            save_trial_latest=save_trial_latest,
        )
        return preview

    def preview_deletion(self) -> CollectionPreview:
        """Return the checkpoints that deleting the experiment would delete, without deleting any.

        If something keeps one of the experiment's checkpoints, `delete` is refused.
        """
        preview: CollectionPreview = self._client.get(
            self._path("checkpoint-gc"), delete_experiment=True
        )
        return preview

    def unrecorded_checkpoints(self) -> Iterator[UnrecordedCheckpoint]:
        """Yield the folders among the experiment's checkpoints that the cluster has no record of.

        Such folders come from uploads in progress, and from runs that had lost their trial to
        another agent.
        """
        for item in self._client.items(self._path("unrecorded-checkpoints")):
            yield cast("UnrecordedCheckpoint", item)

    def metrics(
        self,
        name: str | None = None,
        *,
        group: str | None = None,
        points_max: int | None = None,
        trials_max: int | None = None,
    ) -> ExperimentMetrics:
        """Return a curve of a metric for each of the best trials, the best trial first.

        Args:
            name: the metric's name; None for the searcher's metric.
            group: the metric's group; None for `validation`.
            points_max: the most points of a curve, 3 to 1,000; None for 200.
            trials_max: the most trials, 1 to 200; None for 10.
        """
        metrics: ExperimentMetrics = self._client.get(
            self._path("metrics"), group=group, name=name, points=points_max, trials=trials_max
        )
        return metrics

    def rungs(self, trials_max: int | None = None) -> Rungs:
        """Return the brackets of the search, or the rounds of population-based training.

        Other searchers have no brackets.

        Args:
            trials_max: the most trials to list for each rung, 0 to 200; None for 50.
        """
        rungs: Rungs = self._client.get(self._path("rungs"), trials=trials_max)
        return rungs

    def activity(self) -> Activity:
        """Return the activity: a sentence, the reason of a wait and the expected end.

        Raises:
            DetcloudError: the request failed. An older cluster answers `not_found`.
        """
        activity: Activity = self._client.get(self._path("activity"))
        return activity

    def importance(self, metric: str | None = None, at: int | None = None) -> Importance:
        """Return the importance of each hyperparameter for a metric, by fANOVA.

        Only results after the same length of training are compared.

        Args:
            metric: the name of a validation metric; None for the searcher's metric.
            at: the length of training, in the unit of the result; None for the largest length at
                which enough trials have a result.
        """
        importance: Importance = self._client.get(self._path("importance"), metric=metric, at=at)
        return importance

    def family(self) -> Family:
        """Return this experiment with all originals, siblings and forks.

        Siblings are forks of the same original. Each fork has its differences from the original. At
        most 20 siblings and 20 forks are included.

        Raises:
            DetcloudError: the request failed. An older cluster answers `not_found`.
        """
        family: Family = self._client.get(self._path("family"))
        return family

    def pace(self) -> Pace:
        """Return the measured time and cost of a unit of training.

        Raises:
            DetcloudError: the request failed. An older cluster answers `not_found`.
        """
        pace: Pace = self._client.get(self._path("pace"))
        return pace

    def replacements(self) -> ExperimentReplacements:
        """Return the time in which the trials did not train after a loss of slots, summed up.

        The sums cover the latest 1,000 replacements.
        """
        sums: ExperimentReplacements = self._client.get(self._path("replacements"))
        return sums

    def history(self, actor: str | None = None) -> Iterator[HistoryEntry]:
        """Yield the changes of the experiment and of the trials, oldest first.

        Trials' changes are omitted if the experiment has too many trials for the cluster to merge.

        Args:
            actor: the experiment or a trial, such as `experiment#3` or `trial#7`, to yield only
                the changes of this actor. None for the experiment and the trials.

        Raises:
            DetcloudError: a request to the cluster failed, or `actor` is not part of the
                experiment.
        """
        return self._client.records(self._path("history"), HistoryEntry, actor=actor)

    def replay(self) -> Iterator[ReplayedActor]:
        """Replay all journals on the cluster, and yield the differences of each actor from the
        state.
        """
        return self._client.records(self._path("replay"), ReplayedActor, page_items=REPLAY_PAGE)

    def download_model_def(
        self, destination: str | Path, on_progress: Callable[[int, int], None] | None = None
    ) -> Path:
        """Download the model code, unpack the code into a new folder, and return the folder.

        Args:
            destination: a path that does not exist yet.
            on_progress: called with the bytes received and 0, because the total is not known.

        Raises:
            DetcloudError: the folder exists or cannot be written, the archive is unsafe, or its
                SHA-256 is not that of the submitted code.
        """
        from detcloud.client.download import download_model_code

        download_model_code(self._client, self.code_sha256, Path(destination), on_progress)
        return Path(destination)

    def wait(
        self,
        polling_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        on_look: Callable[[Self], None] = lambda experiment: None,
        timeout_seconds: float = math.inf,
    ) -> str:
        """Wait until the experiment has ended, and return the final state.

        Return immediately if this handle's state is final already.

        Args:
            polling_seconds: the pause between two requests.
            sleep: the function that pauses.
            on_look: called with this handle before each pause, not after the end.
            timeout_seconds: the longest sum of pauses.

        Raises:
            TimeoutError: the experiment has not ended after `timeout_seconds`. It is not stopped.
        """
        slept_seconds = 0.0
        while not self.has_ended:
            if slept_seconds >= timeout_seconds:
                raise TimeoutError(
                    f"experiment {self.id} is {self.state} after {timeout_seconds:g} s"
                )
            on_look(self)
            sleep(polling_seconds)
            slept_seconds += polling_seconds
            self.refresh()
        return self.state

    def _load_config(self) -> None:
        """Read all fields from the cluster if the handle has no configuration."""
        if "config" not in self.data:
            self.refresh()

    def _path(self, below: str = "") -> str:
        return f"/experiments/{self.id}{f'/{below}' if below else ''}"

    def _command(self, name: str, body: dict[str, Any] | None = None) -> None:
        self.data = self._client.post(self._path(name), body)
