import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from detcloud import DetcloudError
from detcloud.compatibility import client
from detcloud.compatibility.checkpoints import CheckpointSortBy, CheckpointState
from detcloud.compatibility.client_errors import MasterNotFoundException, NotFoundException
from detcloud.compatibility.experiments import ExperimentState
from detcloud.compatibility.handles import OrderBy
from detcloud.compatibility.models import ModelVersion
from detcloud.compatibility.projects import ExperimentSortBy
from detcloud.shared.http import ApiError, Unreachable
from tests.unit.core.trial_files import enter, make_trial

STORED = [("a", 7, 0.3), ("b", 8, 0.1), ("c", 7, 0.2)]


class StoredCheckpoint(SimpleNamespace):
    def download(self, folder: Path) -> None:
        folder.mkdir()

    def trial(self) -> Any:
        return Cluster().trial(self.trial_id)

    def experiment(self) -> Any:
        return Cluster().experiment(3)


def report(group: str, steps: int, value: float) -> dict[str, Any]:
    """Return a metrics report as the cluster answers."""
    times = {"steps_completed": steps, "time_ms": 1000 * steps}
    return {"group": group, **times, "metrics": {"loss": value}}


class Cluster:
    """Substitute for detcloud.Client: experiment 3 with trials 7 and 8; `requests` has calls.

    `deleted_partly` has the UUIDs of partially deleted checkpoints.
    """

    requests: list[Any]
    deleted_partly: ClassVar[set[str]] = set()

    def __init__(self, url: str | None = None) -> None:
        self.url = url
        Cluster.requests = []

    def create_experiment(self, *arguments: Any, **options: Any) -> Any:
        Cluster.requests.append((*arguments, options))
        return self.experiment(3)

    def experiment(self, experiment_id: int) -> Any:
        return SimpleNamespace(
            id=experiment_id,
            state="COMPLETED",
            metric="loss",
            smaller_is_better=True,
            config={"name": "first"},
            checkpoints=lambda: iter(self.checkpoints()),
            user="ann",
            labels=["nlp"],
            name="first",
            wait=lambda interval: "COMPLETED",
            trials=lambda limit=None: iter([self.trial(7), self.trial(8)]),
            best_checkpoints=lambda sort_by, smaller: sorted(
                self.checkpoints(),
                key=lambda checkpoint: checkpoint.metric,
                reverse=smaller is False,
            ),
        )

    def experiments(self, **filters: Any) -> Iterator[Any]:
        Cluster.requests.append({key: value for key, value in filters.items() if value is not None})
        return iter([self.experiment(3), self.experiment(4)])

    def workspaces(self) -> list[Any]:
        return [{"workspace": "Vision", "projects": 1, "experiments": 2, "open": 1, "archived": 0}]

    def projects(self, workspace: str) -> list[Any]:
        counts = {"experiments": 2, "open": 1, "archived": 0}
        return [{"workspace": workspace, "project": "Digits", **counts}]

    def trial(self, trial_id: int) -> Any:
        stored = [known for known in self.checkpoints() if known.trial_id == trial_id]
        return SimpleNamespace(
            id=trial_id,
            experiment_id=3,
            hparams={"lr": trial_id},
            checkpoints=lambda: stored,
            experiment=lambda: self.experiment(3),
            metrics=lambda group: iter(report(group, steps, trial_id) for steps in (10, 20)),
        )

    def checkpoint(self, uuid: str) -> Any:
        matches = [known for known in self.checkpoints() if known.uuid == uuid]
        if not matches:
            raise ApiError(404, "not_found", f"there is no checkpoint {uuid}")
        return matches[0]

    def checkpoints(self) -> list[Any]:
        return [
            StoredCheckpoint(
                uuid=uuid,
                trial_id=trial,
                experiment_id=3,
                metric=metric,
                state="PARTIALLY_DELETED" if uuid in self.deleted_partly else "COMPLETED",
                created_ms=number,
                steps_completed=number * 10,
                metadata={"steps_completed": number * 10},
            )
            for number, (uuid, trial, metric) in enumerate(STORED, 1)
        ]


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "Client", Cluster)
    monkeypatch.setattr(client, "_cluster", None)
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Cluster.deleted_partly.clear()


def test_create_experiment_returns_an_experiment_that_can_be_awaited() -> None:
    experiment = client.create_experiment({"name": "x"}, "code", ["more"], template="t")
    options = {"overrides": [], "includes": ("more",), "template": "t"}
    assert Cluster.requests == [({"name": "x"}, "code", options)]
    assert experiment.wait(interval=0.1) is ExperimentState.COMPLETED
    assert experiment.state is ExperimentState.COMPLETED
    assert (experiment.id, experiment.name) == (3, "first")
    assert [trial.id for trial in experiment.get_trials()] == [7, 8]
    assert experiment.await_first_trial().id == 7


def test_best_checkpoints_of_an_experiment() -> None:
    experiment = client.get_experiment(3)
    assert experiment.top_checkpoint().uuid == "b"
    assert experiment.top_checkpoint("loss", smaller_is_better=False).uuid == "a"
    # Trial 7 stored both c and a.
    assert [checkpoint.uuid for checkpoint in experiment.list_checkpoints()] == ["b", "c", "a"]
    assert [checkpoint.uuid for checkpoint in experiment.top_n_checkpoints(5)] == ["b", "c"]
    assert [checkpoint.uuid for checkpoint in experiment.list_checkpoints(max_results=1)] == ["b"]


def test_checkpoints_of_a_trial_are_selected_and_downloaded() -> None:
    trial = client.get_trial(7)
    assert trial.top_checkpoint().uuid == "c"
    assert trial.select_checkpoint(latest=True).uuid == "c"
    assert trial.select_checkpoint(uuid="a").uuid == "a"
    assert trial.get_experiment().id == 3
    with pytest.raises(DetcloudError, match="exactly one of"):
        trial.select_checkpoint(latest=True, best=True)
    path = trial.top_checkpoint().download()
    assert path == "checkpoints/c"
    # An existing folder is not downloaded again.
    assert trial.top_checkpoint().download() == path
    assert Path(path).is_dir()


def test_experiments_are_listed() -> None:
    listed = client.list_experiments(
        users=["ann"], labels=["nlp"], states=[ExperimentState.PAUSED], name="f"
    )
    assert [experiment.id for experiment in listed] == [3, 4]
    newest = {"sort_by": "id", "order_by": "desc"}
    assert Cluster.requests == [{"states": ["PAUSED"], "name": "f", **newest}]
    assert client.list_experiments(users=["bob"]) == []
    for call in (client.list_experiments, client.create_experiment):
        with pytest.raises(DetcloudError, match="project_id=7: projects have no numbers here"):
            call(*(() if call is client.list_experiments else ({}, "code")), project_id=7)


def test_experiments_are_sorted_and_grouped() -> None:
    client.list_experiments(
        sort_by=ExperimentSortBy.SEARCHER_METRIC_VAL,
        order_by=OrderBy.ASC,
        workspace="Vision",
        project="Digits",
    )
    order = {"sort_by": "metric", "order_by": "asc"}
    assert Cluster.requests == [{"states": [], "workspace": "Vision", "project": "Digits", **order}]
    (workspace,) = client.list_workspaces()
    assert client.get_workspace("Vision") == workspace
    (project,) = workspace.list_projects()
    assert (project.name, project.workspace_name, project.n_experiments) == ("Digits", "Vision", 2)
    with pytest.raises(DetcloudError, match="no experiment is in a workspace 'Text'; there is Vis"):
        client.get_workspace("Text")
    with pytest.raises(AttributeError, match="'Workspace' object has no attribute 'archive'"):
        workspace.archive()


def test_created_workspaces_and_projects_exist_without_experiments() -> None:
    with pytest.raises(NotFoundException, match="no experiment is in a workspace 'Demo'"):
        client.get_workspace("Demo")
    created = client.create_workspace("Demo")
    assert client.get_workspace("Demo") == created
    assert [item.name for item in client.list_workspaces()] == ["Vision", "Demo"]
    assert (created.id, created.name) == ("Demo", "Demo")
    with pytest.raises(NotFoundException, match="in a project 'Set'; there is Digits"):
        created.get_project("Set")
    created.create_project("Set")
    project = client.get_workspace("Demo").get_project("Set")
    assert (project.workspace_name, project.n_experiments) == ("Demo", 0)
    client.list_experiments(project_id=project.id)
    assert Cluster.requests[-1]["workspace"] == "Demo"
    assert Cluster.requests[-1]["project"] == "Set"
    # A created project with experiments is listed once.
    created.create_project("Digits")
    assert [item.name for item in created.list_projects()] == ["Digits", "Set"]


def test_unsupported_members_name_a_replacement() -> None:
    client.login("http://cluster")
    with pytest.raises(AttributeError, match=r"Experiment\.set_notes is not supported by detcloud"):
        client.get_experiment(3).set_notes("x")
    with pytest.raises(AttributeError, match=r"Determined\.delete_workspace is not supported"):
        client.Cluster().delete_workspace("w")
    with pytest.raises(
        DetcloudError, match="models have no ids in detcloud; use the name instead of 7"
    ):
        client.get_model(7)
    with pytest.raises(DetcloudError, match="detcloud token login"):
        client.login(user="ann", password="secret")


def test_client_is_unavailable_within_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(make_trial(tmp_path), monkeypatch)
    with pytest.raises(DetcloudError, match="a trial holds no credential"):
        client.get_checkpoint("a")


def test_a_checkpoint_has_its_trial_and_validation() -> None:
    # Checkpoint b is the second: stored by trial 8 after 20 batches.
    best = client.get_experiment(3).top_checkpoint()
    assert (best.training.trial_id, best.training.experiment_id) == (8, 3)
    assert best.training.hparams == best.hparams == {"lr": 8}
    assert best.training.experiment_config == best.experiment_config == {"name": "first"}
    assert best.training.validation_metrics == {"avgMetrics": {"loss": 8}}
    assert best.validation == {"metrics": {"validationMetrics": {"loss": 8}}}
    assert best.batch_number == 20
    # Checkpoint c was stored after 30 batches, without a validation.
    assert client.get_checkpoint("c").validation is None
    best.write_metadata_file("metadata.json")
    assert json.loads(Path("metadata.json").read_text()) == {"steps_completed": 20}


def test_a_trial_lists_partially_deleted_checkpoints_but_selects_stored_ones() -> None:
    Cluster.deleted_partly.add("c")
    trial = client.get_trial(7)
    # Trial 7 stored a (0.3) and c (0.2); smaller is better.
    assert [(checkpoint.uuid, checkpoint.state) for checkpoint in trial.get_checkpoints()] == [
        ("c", CheckpointState.PARTIALLY_DELETED),
        ("a", CheckpointState.COMPLETED),
    ]
    assert trial.top_checkpoint().uuid == "a"


def test_checkpoints_are_sorted_by_a_field() -> None:
    experiment = client.get_experiment(3)
    by_steps = experiment.list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESCENDING)
    assert [checkpoint.uuid for checkpoint in by_steps] == ["c", "b", "a"]
    by_metric = experiment.list_checkpoints(sort_by=CheckpointSortBy.SEARCHER_METRIC)
    assert [checkpoint.uuid for checkpoint in by_metric] == ["b", "c", "a"]
    assert [checkpoint.uuid for checkpoint in client.get_trial(7).get_checkpoints("loss")] == [
        "c",
        "a",
    ]


def test_metrics_of_several_trials_are_streamed_in_order() -> None:
    streamed = list(client.stream_trials_validation_metrics([7, 8]))
    assert [(report.trial_id, report.total_batches, report.metrics) for report in streamed] == [
        (7, 10, {"loss": 7}),
        (7, 20, {"loss": 7}),
        (8, 10, {"loss": 8}),
        (8, 20, {"loss": 8}),
    ]
    assert {report.group for report in client.stream_trials_training_metrics([7])} == {"training"}
    assert next(client.get_trial(7).stream_training_metrics()).group == "training"


def test_missing_items_raise_not_found_exception() -> None:
    with pytest.raises(NotFoundException, match="there is no checkpoint z"):
        client.get_checkpoint("z")
    with pytest.raises(NotFoundException, match="no experiment is in a workspace 'Other'"):
        client.get_workspace("Other")
    assert MasterNotFoundException is Unreachable


def test_a_model_version_has_the_attributes_of_its_checkpoint() -> None:
    stored = client.get_checkpoint("b")
    checkpoint = Cluster().checkpoint("b")
    found: Any = SimpleNamespace(number=2, model="m", notes="n", checkpoint=lambda: checkpoint)
    version: Any = ModelVersion(found)
    assert (version.model_version, version.notes, version.uuid) == (2, "n", "b")
    assert version.validation == stored.validation
    assert version.experiment_config == {"name": "first"}
    with pytest.raises(AttributeError, match="'ModelVersion' object has no attribute 'other'"):
        _ = version.other
