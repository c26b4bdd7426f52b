"""`idle_timeout` of an experiment: a trial that neither prints nor reports anything is canceled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop

pytestmark = pytest.mark.end_to_end

CONFIG = """
name: idle
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 2}
resources: {slots_per_trial: 0}
idle_timeout: 4s
"""
# The output lasts longer than the timeout. The checkpoint is saved after the end of the timeout.
TRAIN = """
import time
from detcloud import core

with core.init() as context:
    for second in range(6):
        print("works", second, flush=True)
        time.sleep(1)
    while not context.preempt.should_preempt():
        time.sleep(0.2)
    with context.checkpoint.store_path({"steps_completed": 1}) as (folder, _):
        (folder / "weights").write_text("1")
"""


def test_idle_trial_is_canceled_after_its_checkpoint(laptop: Laptop, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    config = tmp_path / "idle.yaml"
    config.write_text(CONFIG)
    laptop.run("create", config, model)
    laptop.run("wait", 1, code=1, seconds=60)
    with laptop.cluster() as cluster:
        experiment = cluster.experiment(1)
        [listed] = experiment.trials()
        trial = cluster.trial(listed.id).data
        assert (experiment.data["state"], trial["state"]) == ("CANCELED", "CANCELED")
        message = f"trial {listed.id} was canceled: it was idle for 4 s (idle_timeout)"
        assert (experiment.data["message"], trial["message"]) == (message, message)
        assert trial["latest_checkpoint"] is not None
    log = laptop.run("trial", "logs", 1).stdout
    assert "works 5" in log
    assert "this trial has printed and reported nothing for 2 s" in log
    history = laptop.run("history", 1).stdout
    assert "was ended by its agent: it was idle for 4 s (idle_timeout)" in history
