"""A handle on one experiment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from detcloud.client.checkpoint import Checkpoint
from detcloud.client.curves import RecordedCurves, read_curves
from detcloud.client.ranking import rank_checkpoints
from detcloud.client.records import (
    CollectionPreview,
    ExperimentMetrics,
    HistoryEntry,
    NoticeCounts,
    ReplayedActor,
    Rungs,
    UnrecordedCheckpoint,
)
from detcloud.client.resource import Field, Resource
from detcloud.client.trial import Trial

ENDED_STATES = frozenset({"COMPLETED", "CANCELED", "ERROR", "DELETING", "DELETE_FAILED"})
REPLAY_PAGE = 20


class UnsetType:
    """The type of UNSET, which leaves a setting as it is where None has a meaning of its own."""


UNSET: Final = UnsetType()


class Experiment(Resource):
    """A search over hyperparameters: its trials and what they found."""

    id = Field[int]("The id, unique in the cluster.")
    kind = Field[str]("What it is: an `experiment`, `command`, `notebook` or `shell`.")
    name = Field[str]("The name.")
    description = Field[str]("The description, empty without one.")
    state = Field[str]("ACTIVE, PAUSED, STOPPING_..., COMPLETED, CANCELED, ERROR or DELETE...")
    user = Field[str]("Who submitted it.")
    workspace = Field[str]("The workspace of its project.")
    project = Field[str]("The project it is in.")
    resource_pool = Field[str]("The pool it runs in.")
    preferred_pools = Field[list[str]]("Pools it may move between, in order; empty for one alone.")
    waits_since_ms = Field[int | None]("Since when it has waited in these; None before a move.")
    pool_moved_ms = Field[int | None]("When it last went on to the next of them; None: never.")
    pool_move_reason = Field[str]("Why it did.")
    searcher = Field[str]("The search algorithm.")
    metric = Field[str]("The validation metric that the search compares.")
    smaller_is_better = Field[bool]("Whether it minimises the metric.")
    progress = Field[float | None]("The share of the search that is done, 0 to 1; None: unknown.")
    best_metric = Field[float | None]("The best validation so far; None before the first.")
    best_trial_id = Field[int | None]("The trial of that validation.")
    created_ms = Field[int]("When it was submitted, epoch milliseconds.")
    ended_ms = Field[int | None]("When it ended, epoch milliseconds.")
    message = Field[str | None]("Why it is in this state, where that needs saying.")
    labels = Field[list[str]]("The labels.")
    metadata = Field[dict[str, Any]]("Its metadata, as JSON; experiments can be found by it.")
    job_id = Field[str]("The UUID of its place in the queue.")
    archived = Field[bool]("Whether it is hidden from lists.")
    seed = Field[int]("The seed of the search.")
    notices = Field[NoticeCounts]("Notices that its trials' machines end, by how they went.")
    cost = Field[float]("Dollars it has cost so far.")
    max_cost = Field[float | None]("Dollars it may cost; None for no limit.")
    max_slots = Field[int | None]("Slots it may have at once; None for no limit.")
    weight = Field[float]("Its share under fair share.")
    priority = Field[int | None]("1 to 99 in a priority pool; None for the pool's default.")
    warnings = Field[list[str]]("Warnings of its creation; answered then and not later.")
    save_experiment_best = Field[int]("Best checkpoints of the experiment that are kept.")
    save_trial_best = Field[int]("Best checkpoints of each trial that are kept.")
    save_trial_latest = Field[int]("Latest checkpoints of each trial that are kept.")
    code_sha256 = Field[str]("The digest of its model code.")

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is trained."""
        return self.state in ENDED_STATES

    # The name that scripts know.
    ended = has_ended

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with every default, secrets masked."""
        if "config" not in self.data:
            self.refresh()
        config: dict[str, Any] = self.data["config"]
        return config

    def refresh(self) -> None:
        """Asks the cluster for the present state."""
        self.data = self._client.get(self._path())

    def pause(self) -> None:
        """Asks for a checkpoint of each trial and frees its slots."""
        self._command("pause")

    def activate(self) -> None:
        """Goes on from where `pause` stopped."""
        self._command("activate")

    def cancel(self) -> None:
        """Ends the experiment at the trials' next checkpoint."""
        self._command("cancel")

    def kill(self) -> None:
        """Ends the experiment at once."""
        self._command("kill")

    def archive(self) -> None:
        """Leaves an ended experiment out of lists."""
        self._command("archive")

    def unarchive(self) -> None:
        """Shows the experiment in lists again."""
        self._command("unarchive")

    def continue_(self, overrides: Sequence[str] = ()) -> None:
        """Makes an ended experiment ACTIVE again; trials that did not complete go on.

        Args:
            overrides: `a.b=value`; they may lengthen a `single` search and raise `max_restarts`.
        """
        self._command("continue", {"overrides": list(overrides)})

    def delete(self) -> None:
        """Deletes an ended experiment with its checkpoints, logs and metrics.

        The experiment is DELETING until that is done; then the cluster knows it no more.
        """
        self.data = self._client.delete(self._path())

    def delete_tensorboard_files(self) -> None:
        """Deletes an ended experiment's files for TensorBoard; the rest of it stays."""
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
        """Changes the settings that are given; None lifts `max_slots` or `max_cost` (dollars).

        A change of `save_...` deletes the checkpoints that are kept no more at once:
        `preview_collection` shows which.
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
        """Puts it into another project; both are names, and need not be there before."""
        body = {"workspace": workspace, "project": project}
        self.data = self._client.patch(self._path(), body)

    def set_metadata(
        self, metadata: Mapping[str, Any], *, expected_revision: str | None = None
    ) -> None:
        """Replaces its metadata: 30 values and 4 KB as JSON at most.

        Args:
            expected_revision: the `revision` that it has to have still; without it whatever was
                changed meanwhile is replaced.
        """
        body = {"metadata": dict(metadata), "revision": expected_revision}
        self.data = self._client.patch(self._path(), body)

    def set_weight(self, weight: float) -> None:
        """Changes its share in a fair-share pool."""
        self.data = self._client.patch(self._path(), {"weight": weight})

    def set_priority(self, priority: int) -> None:
        """Changes its priority; its place among equals is again that of its submission."""
        self.data = self._client.patch(self._path(), {"priority": priority})

    def preview_collection(
        self,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
    ) -> CollectionPreview:
        """Checkpoints that keeping only so many would delete; None is as configured."""
        preview: CollectionPreview = self._client.get(
            self._path("checkpoint-gc"),
            save_experiment_best=save_experiment_best,
            save_trial_best=save_trial_best,
            save_trial_latest=save_trial_latest,
        )
        return preview

    def preview_deletion(self) -> CollectionPreview:
        """Checkpoints that deleting the experiment would delete; it is refused if any is kept."""
        preview: CollectionPreview = self._client.get(
            self._path("checkpoint-gc"), delete_experiment=True
        )
        return preview

    def trials(
        self,
        limit: int | None = None,
        *,
        metadata: Mapping[str, object] | Sequence[str] | None = None,
    ) -> Iterator[Trial]:
        """The experiment's trials by number, all or the first `limit`.

        Args:
            metadata: only those whose code has set this, by path, such as `{"data.version": 3}`.
        """
        from detcloud.client.experiment_list import metadata_filters

        wanted = metadata_filters(metadata)
        items = self._client.items(self._path("trials"), limit, metadata=wanted)
        return (Trial(self._client, item) for item in items)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints of all its trials."""
        items = self._client.items(self._path("checkpoints"))
        return (Checkpoint(self._client, item) for item in items)

    def unrecorded_checkpoints(self) -> Iterator[UnrecordedCheckpoint]:
        """The folders among its checkpoints that the cluster has no record of, such as those of a
        run that had lost its trial to another agent, or an upload under way.
        """
        for item in self._client.items(self._path("unrecorded-checkpoints")):
            yield cast("UnrecordedCheckpoint", item)

    def best_checkpoints(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Stored checkpoints with a validation, the best first.

        Args:
            sort_by: a validation metric; the searcher's by default.
            smaller_is_better: as the searcher has it by default.
        """
        return rank_checkpoints(self, list(self.checkpoints()), sort_by, smaller_is_better)

    def metrics(
        self,
        name: str | None = None,
        *,
        group: str | None = None,
        points_max: int | None = None,
        trials_max: int | None = None,
    ) -> ExperimentMetrics:
        """Curves of one number of the best trials.

        Args:
            name: the searcher's metric by default.
            group: `validation` by default.
            points_max: points of a curve after thinning, 3 to 1,000; 200 by default.
            trials_max: 1 to 50; 10 by default.
        """
        metrics: ExperimentMetrics = self._client.get(
            self._path("metrics"), group=group, name=name, points=points_max, trials=trials_max
        )
        return metrics

    def rungs(self, trials_max: int | None = None) -> Rungs:
        """The brackets of its search with their rungs, or the rounds of population-based training.

        Args:
            trials_max: trials that are listed of each rung, 0 to 200; 50 by default.
        """
        rungs: Rungs = self._client.get(self._path("rungs"), trials=trials_max)
        return rungs

    def history(self, actor: str | None = None) -> Iterator[HistoryEntry]:
        """Events, oldest first; those of one `actor` such as `trial#7`, or of all."""
        return self._client.records(self._path("history"), HistoryEntry, actor=actor)

    def replay(self) -> Iterator[ReplayedActor]:
        """Has the cluster decide everything again from its journals; an item per actor."""
        return self._client.records(self._path("replay"), ReplayedActor, page_items=REPLAY_PAGE)

    def curves(self, on_trial: Callable[[int], None] = lambda read: None) -> RecordedCurves:
        """Every trial's validations and speed, for `detcloud simulate --curves`.

        `on_trial` gets the number of trials read so far.
        """
        return read_curves(self, on_trial)

    def download_model_def(
        self, destination: str | Path, on_progress: Callable[[int, int], None] | None = None
    ) -> Path:
        """Unpacks its model code into the new folder `destination`.

        Raises:
            DetcloudError: the folder exists, or what came is not what was submitted.
        """
        from detcloud.client.download import download_model_code

        download_model_code(self._client, self.code_sha256, Path(destination), on_progress)
        return Path(destination)

    def wait(
        self,
        polling_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        on_look: Callable[[Experiment], None] = lambda experiment: None,
        timeout_seconds: float = math.inf,
    ) -> str:
        """Returns the state in which the experiment ended; `on_look` gets it at every look.

        Raises:
            TimeoutError: it has not ended after `timeout_seconds`, and goes on.
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

    def _path(self, below: str = "") -> str:
        return f"/experiments/{self.id}{f'/{below}' if below else ''}"

    def _command(self, name: str, body: dict[str, Any] | None = None) -> None:
        self.data = self._client.post(self._path(name), body)
