"""Lengths in epochs on a real cluster, where only the trials know the batches of an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.slow_digits import copy_slow_digits
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# Rungs at 9 / 3 and 9 epochs.
ASHA = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 2,
    "divisor": 3,
    "max_trials": 4,
    "max_length": {"epochs": 9},
}
# A script for Determined with epochs of 7 batches.
EPOCHS = """\
import json
import determined as det

info = det.get_cluster_info()
with det.core.init() as core_context:
    epochs = 0
    if info.latest_checkpoint:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            epochs = json.loads((folder / "state.json").read_text())
    for op in core_context.searcher.operations():
        while epochs < op.length:
            epochs += 1
            op.report_progress(epochs)
        steps = {"steps_completed": epochs * 7}
        with core_context.checkpoint.store_path(steps) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps(epochs))
        loss = info.trial.hparams["x"] / epochs
        core_context.train.report_validation_metrics(epochs * 7, {"loss": loss})
        op.report_completed(loss)
"""
# The data loader has 23 batches of 64, for 1437 / 64 = 22.5.
EPOCH_BATCHES = 23


@pytest.mark.nightly
def test_epochs_need_no_number_of_records(laptop: Laptop, tmp_path: Path) -> None:
    code = copy_slow_digits(tmp_path, 0.05)
    changes = {
        "records_per_epoch": 0,
        "searcher.max_length.epochs": 3,
        "min_validation_period.epochs": 1,
        "scheduling_unit": 5,
    }
    words = [word for name, value in changes.items() for word in ("--config", f"{name}={value}")]
    laptop.run("create", code / "const.yaml", code, *words)
    wait_until(lambda: (_trials(laptop, 1) or [{}])[0].get("steps_completed", 0) >= 30)
    laptop.run("pause", 1)
    wait_until(lambda: not laptop.running())
    [trial] = _trials(laptop, 1)
    assert 30 <= trial["steps_completed"] < 3 * EPOCH_BATCHES
    assert (trial["target_steps"], trial["target_epochs"]) == (None, 3)
    assert 1 <= trial["epochs_completed"] < 3
    assert " 3 epochs " in laptop.run("trial", "list", 1).stdout
    assert 1 / 3 <= laptop.json("describe", 1)["progress"] < 1
    laptop.run("activate", 1)
    laptop.await_completion(1)
    [trial] = _trials(laptop, 1)
    assert (trial["steps_completed"], trial["restarts"]) == (3 * EPOCH_BATCHES, 0)
    assert trial["epochs_completed"] == 3
    log = laptop.run("trial", "logs", 1).stdout
    for epoch in (1, 2, 3):
        assert f"validation at batch {epoch * EPOCH_BATCHES}:" in log
    texts = [event["text"] for event in laptop.json("history", 1)]
    assert any("reached 3 epochs with" in text for text in texts), "\n".join(texts)

    config, model = write_model(tmp_path, searcher=ASHA, entrypoint=["python", "train.py"])
    (model / "train.py").write_text(EPOCHS)
    laptop.run("create", config, model)
    laptop.await_completion(2)
    trials = _trials(laptop, 2)
    assert Counter(trial["state"] for trial in trials) == {"COMPLETED": 4}
    assert {trial["steps_completed"] for trial in trials} == {3 * 7, 9 * 7}
    best = min(trials, key=lambda trial: float(trial["hparams"]["x"]))
    assert best["steps_completed"] == 9 * 7
    for experiment in (1, 2):
        laptop.replay(experiment)


def _trials(laptop: Laptop, experiment: int) -> list[dict[str, Any]]:
    return laptop.trials(experiment)
