"""Searches with lengths in epochs, where only the trials know the batches of an epoch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import population_search, write_model
from tests.patience import PROCESS_SECONDS_MAX

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

EPOCH_BATCHES = 7
# The loss falls with the epochs of the weights, including epochs of earlier trials.
TRAIN = f"""\
import json
from detcloud import core

with core.init() as context:
    info, epochs, weight = context.info, 0, 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            epochs, weight = json.loads((folder / "state.json").read_text())
        epochs = epochs if info.latest_checkpoint.trial_id == info.trial_id else 0
    print(f"starts at epoch {{epochs}} with {{weight}}", flush=True)
    for operation in context.searcher.operations():
        assert operation.unit == "epochs" and operation.length == operation.length_units
        while epochs < operation.length and not context.preempt.should_preempt():
            epochs, weight = epochs + 1, weight + 1
            operation.report_progress(epochs)
        steps = {EPOCH_BATCHES} * epochs
        with context.checkpoint.store_path({{"steps_completed": steps}}) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps([epochs, weight]))
        if epochs < operation.length:
            break
        loss = info.hparams["x"] / weight
        context.train.report_validation_metrics(steps, {{"loss": loss}})
        operation.complete(loss)
"""
# Rungs at 2, 4 and 8 epochs.
ASHA = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 3,
    "divisor": 2,
    "max_trials": 6,
    "max_length": {"epochs": 8},
}
# Three rounds of two epochs for three trials; trunc(0.34 * 3) = 1 trial is replaced.
PBT = population_search(3, {"epochs": 2})
CUSTOM = {"name": "custom", "metric": "loss", "unit": "epochs"}
# Three trials train an epoch, and the best of them three more.
METHOD = """\
import sys
from uuid import uuid4
from detcloud import searcher

class Best(searcher.SearchMethod):
    def __init__(self):
        self.results = {}

    def initial_operations(self, state):
        trials = [(uuid4(), x) for x in (0.3, 0.1, 0.2)]
        created = [searcher.Create(trial, {"x": x}) for trial, x in trials]
        return [*created, *(searcher.ValidateAfter(trial, 1) for trial, x in trials)]

    def on_validation_completed(self, state, request_id, metric, train_length):
        if train_length == 4:
            assert (metric, state.trial_progress[request_id]) == (0.1 / 4, 4)
            return [searcher.Close(request_id)]
        self.results[request_id] = metric
        if len(self.results) < 3:
            return []
        best = min(self.results, key=self.results.get)
        others = [searcher.Close(trial) for trial in self.results if trial != best]
        return [*others, searcher.ValidateAfter(best, 4)]

    def on_trial_closed(self, state, request_id):
        return [searcher.Shutdown()] if len(state.trials_closed) == 3 else []

    def on_trial_created(self, state, request_id):
        return []

    def on_trial_exited_early(self, state, request_id, exited_reason):
        return [searcher.Shutdown(failure=True)]

    def progress(self, state):
        return len(state.trials_closed) / 3

runner = searcher.LocalSearchRunner(Best(), "search")
print("experiment", runner.run(sys.argv[1], sys.argv[2]), flush=True)
"""


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster for all searches of this module."""
    with start_cluster(tmp_path_factory.mktemp("epochs"), 2) as one:
        yield one


def create(laptop: Laptop, folder: Path, searcher: dict[str, Any], **fields: Any) -> int:
    """Run a search to the end and replay the experiment; return the experiment's id."""
    files = _write_epochs(folder, {**searcher, "metric": "loss"}, **fields)
    number = int(laptop.run("create", *files).stdout.split()[-1])
    _wait(laptop, number)
    return number


def test_halving_with_three_rungs_counts_in_epochs(laptop: Laptop, tmp_path: Path) -> None:
    number = create(laptop, tmp_path, ASHA)
    with laptop.cluster() as cluster:
        rungs = cluster.experiment(number).rungs()
    [bracket] = rungs["brackets"]
    assert (rungs["unit"], [item["length"] for item in bracket["rungs"]]) == ("epochs", [2, 4, 8])
    reached = [item["reached"] for item in bracket["rungs"]]
    # At least half of the 6 trials is promoted, and half of these again; more if the best come
    # last.
    assert reached[0] == 6
    assert reached[1] >= 3
    assert reached[2] >= 1
    steps = [int(trial["steps_completed"]) for trial in laptop.trials(number)]
    assert {step % EPOCH_BATCHES for step in steps} == {0}
    epochs = [step // EPOCH_BATCHES for step in steps]
    assert [sum(epoch >= rung for epoch in epochs) for rung in (2, 4, 8)] == reached


def test_population_trains_rounds_in_epochs(laptop: Laptop, tmp_path: Path) -> None:
    number = create(laptop, tmp_path, PBT)
    trials = laptop.trials(number)
    # A copy after each of the first two rounds.
    assert len(trials) == 3 + 2
    # 3 trials in 3 rounds of 2 epochs.
    assert sum(trial["steps_completed"] for trial in trials) == EPOCH_BATCHES * 3 * 3 * 2
    copies = [laptop.log(trial["id"]) for trial in trials[3:]]
    assert "starts at epoch 0 with 2\n" in copies[0]
    assert "starts at epoch 0 with 4\n" in copies[1]


def test_custom_search_method_counts_in_epochs(laptop: Laptop, tmp_path: Path) -> None:
    files = _write_epochs(tmp_path, CUSTOM, hyperparameters={})
    (tmp_path / "search.py").write_text(METHOD)
    done = subprocess.run(
        [sys.executable, tmp_path / "search.py", *files],
        env=laptop.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PROCESS_SECONDS_MAX,
    )
    assert done.stdout.startswith("experiment "), done
    number = int(done.stdout.split()[-1])
    _wait(laptop, number)
    steps = [trial["steps_completed"] for trial in laptop.trials(number)]
    assert steps == [EPOCH_BATCHES * epochs for epochs in (1, 4, 1)]


def test_trial_from_a_checkpoint_counts_own_epochs_and_can_be_continued(
    laptop: Laptop, tmp_path: Path
) -> None:
    single = {"name": "single", "max_length": {"epochs": 2}}
    first = create(laptop, tmp_path, single, hyperparameters={"x": 1.0})
    [parent] = laptop.trials(first)
    source = {**single, "source_trial_id": parent["id"]}
    forked = create(laptop, tmp_path / "fork", source, hyperparameters={"x": 1.0})
    laptop.run("experiment", "continue", forked, "--config", "searcher.max_length.epochs=5")
    _wait(laptop, forked)
    [trial] = laptop.trials(forked)
    assert (trial["steps_completed"], trial["target_epochs"]) == (5 * EPOCH_BATCHES, 5)
    begun = [line for line in laptop.log(trial["id"]).splitlines() if "starts at" in line]
    assert [line.rpartition("starts at ")[2] for line in begun] == [
        "epoch 0 with 2",
        "epoch 2 with 4",
    ]


def _write_epochs(folder: Path, searcher: dict[str, Any], **fields: Any) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    entrypoint = ["python", "train.py"]
    config, model = write_model(folder, searcher=searcher, entrypoint=entrypoint, **fields)
    (model / "train.py").write_text(TRAIN)
    return config, model


def _wait(laptop: Laptop, number: int) -> None:
    laptop.await_completion(number)
    assert laptop.json("describe", number)["progress"] == 1
    laptop.replay(number)
