"""A real cluster with trials that start from a damaged checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Checkpoint, Client, Experiment, Trial
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# Each weight follows from the previous weight, so that repeated batches must give equal weights.
# The program saves every second batch and waits for the file `go` before batch WAIT + 1.
TRAIN = """
import json, pathlib, sys, time
from detcloud import core

wait, go = int(sys.argv[1]), pathlib.Path(sys.argv[2])

with core.init() as context:
    steps, weight = context.info.steps_completed, 1
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            weight = json.loads((folder / "weight.json").read_text())

    def save():
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            (folder / "weight.json").write_text(json.dumps(weight))

    print("begins at", steps, "with", weight, flush=True)
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            if steps == wait and not go.exists():
                time.sleep(0.02)
                continue
            steps, weight = steps + 1, weight * 48271 % 2147483647
            if steps % 2 == 0 and steps < operation.length:
                context.train.report_validation_metrics(steps, {"loss": weight})
                save()
        if steps < operation.length:
            break
        context.train.report_validation_metrics(steps, {"loss": weight})
        operation.complete(weight)
"""
BATCHES = 8
WAIT = 6


def weight_after(batches: int) -> int:
    """Return the weight after `batches`, computed as in the script."""
    weight = 1
    for _ in range(batches):
        weight = weight * 48271 % 2147483647
    return weight


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path_factory.mktemp("damage") / "home")
    one.start()
    yield one
    one.end()


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Client:
    return cluster.client()


def submit(client: Client, folder: Path, **searcher: Any) -> Experiment:
    """Submit a trial of 8 batches that waits after the 6th."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "train.py").write_text(TRAIN)
    fields = {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}, **searcher}
    return client.create_experiment(
        {
            "name": "damage",
            "entrypoint": ["python", "train.py", str(WAIT), str(folder / "go")],
            "searcher": fields,
            "max_restarts": 0,
        },
        model,
    )


def has_ended(experiment: Experiment) -> bool:
    experiment.refresh()
    return experiment.has_ended


def pause_at_wait(experiment: Experiment) -> tuple[Trial, list[Checkpoint]]:
    """Pause the trial after batch 6; return the trial and its checkpoints of batches 2, 4 and 6."""
    [trial] = wait_until(lambda: list(experiment.trials()))
    wait_until(lambda: len(list(trial.checkpoints())) == 3)
    experiment.pause()

    def has_left() -> bool:
        trial.refresh()
        return trial.data["allocation"] is None

    wait_until(has_left)
    return trial, sorted(trial.checkpoints(), key=lambda one: int(one.data["steps_completed"]))


def file_of(cluster: EmbeddedCluster, checkpoint: Checkpoint, name: str) -> Path:
    # Not below the agent's folder, parts of which the agent removes meanwhile.
    [path] = (cluster.home / "checkpoints").rglob(f"{checkpoint.uuid}/{name}")
    return path


def finish(experiment: Experiment, folder: Path) -> Trial:
    (folder / "go").touch()
    experiment.activate()
    wait_until(lambda: has_ended(experiment))
    [trial] = experiment.trials()
    return trial


def test_trial_with_a_truncated_latest_checkpoint_resumes_from_the_previous(
    cluster: EmbeddedCluster, client: Client, tmp_path: Path
) -> None:
    experiment = submit(client, tmp_path)
    _, (first, second, third) = pause_at_wait(experiment)
    os.truncate(file_of(cluster, third, "weight.json"), 2)
    trial = finish(experiment, tmp_path)
    assert (experiment.state, trial.data["restarts"]) == ("COMPLETED", 0)
    assert trial.data["metric"] == weight_after(BATCHES)
    # Batches 5 and 6 were trained again, and each validation is shown once.
    reports = [
        (metric["steps_completed"], metric["metrics"]) for metric in trial.metrics("validation")
    ]
    assert reports == [(steps, {"loss": weight_after(steps)}) for steps in (2, 4, 6, 8)]
    [damage] = trial.recent_damages
    assert (damage["uuid"], damage["instead"], damage["instead_steps"]) == (
        third.uuid,
        second.uuid,
        4,
    )
    states = {one.uuid: one.state for one in trial.checkpoints()}
    assert (states[first.uuid], states[third.uuid]) == ("COMPLETED", "DAMAGED")
    log = str(trial.log_chunk()["text"])
    assert f"[detcloud] checkpoint {third.uuid} is damaged: weight.json is not the file" in log
    assert f"from checkpoint {second.uuid} at batch 4, since checkpoint {third.uuid}" in log
    assert f"begins at 4 with {weight_after(4)}" in log
    history = [entry["text"] for entry in experiment.history()]
    assert any("which allocation" in text and "is damaged" in text for text in history)


def test_trial_without_an_intact_checkpoint_starts_over(
    cluster: EmbeddedCluster, client: Client, tmp_path: Path
) -> None:
    experiment = submit(client, tmp_path)
    _, checkpoints = pause_at_wait(experiment)
    for checkpoint in checkpoints:
        file_of(cluster, checkpoint, "manifest.json").unlink()
    trial = finish(experiment, tmp_path)
    assert (experiment.state, trial.data["restarts"]) == ("COMPLETED", 0)
    assert trial.data["metric"] == weight_after(BATCHES)
    lost = [
        (recent_damage["steps_completed"], recent_damage["instead_steps"])
        for recent_damage in trial.recent_damages
    ]
    assert lost == [(6, 4), (4, 2), (2, 0)]
    assert str(trial.log_chunk()["text"]).count("begins at 0 with 1\n") == 2


def test_damaged_checkpoint_of_a_source_trial_fails_the_new_trial(
    cluster: EmbeddedCluster, client: Client, tmp_path: Path
) -> None:
    source = submit(client, tmp_path)
    trial, checkpoints = pause_at_wait(source)
    source.kill()
    wait_until(lambda: has_ended(source))
    newest = checkpoints[-1]
    file_of(cluster, newest, "weight.json").write_text("1")
    experiment = submit(client, tmp_path, source_trial_id=trial.id)
    wait_until(lambda: has_ended(experiment))
    [started] = experiment.trials()
    assert (experiment.state, started.state, started.data["restarts"]) == ("ERROR", "ERROR", 0)
    assert f"checkpoint {newest.uuid}, from which it begins, is damaged" in started.data["message"]
    assert client.checkpoint(newest.uuid).state == "COMPLETED"


# Saves every second batch, fails after batch 6 of its first run, and cannot load that checkpoint.
UNLOADABLE = """
import json
from detcloud import core

with core.init() as context:
    steps = context.info.steps_completed
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            if json.loads((folder / "weight.json").read_text()) == 6:
                raise RuntimeError("size mismatch for layer 6")
    print("begins at", steps, flush=True)
    is_first = steps == 0
    for operation in context.searcher.operations():
        while steps < operation.length:
            steps += 2
            context.train.report_validation_metrics(steps, {"loss": steps})
            with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
                (folder / "weight.json").write_text(json.dumps(steps))
            if is_first and steps == 6:
                raise ValueError("a batch that is no batch")
        operation.complete(steps)
"""


def test_unloadable_checkpoint_costs_a_restart(client: Client, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(UNLOADABLE)
    fields = {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}}
    experiment = client.create_experiment(
        {
            "name": "unloadable",
            "entrypoint": ["python", "train.py"],
            "searcher": fields,
            "max_restarts": 3,
        },
        model,
    )
    wait_until(lambda: has_ended(experiment))
    [trial] = experiment.trials()
    # One restart for the error of batch 6, and one for the first of two failures to load.
    assert (trial.state, trial.data["restarts"]) == ("COMPLETED", 2)
    (damage,) = trial.data["recent_damages"]
    assert damage["cause"] == "it cannot be loaded: RuntimeError: size mismatch for layer 6"
    assert (damage["steps_completed"], damage["instead_steps"]) == (6, 4)
    log = "\n".join(trial.logs())
    assert "begins at 4" in log
    # Two failed runs log the cause, and the next run logs why it begins at batch 4.
    assert log.count("cannot be loaded: RuntimeError: size mismatch for layer 6") == 3
