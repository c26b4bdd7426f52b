"""`hang_detection`: a hanging trial prints its stacks, and starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop

pytestmark = pytest.mark.end_to_end

CONFIG = """
name: hanging
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 2}
resources: {slots_per_trial: 0}
hang_detection: {timeout: 3s, action: restart}
max_restarts: 1
"""
TRAIN = """
import time
from detcloud import core

def wait_for_data():
    while True:
        time.sleep(1)

with core.init() as context:
    print("starts", flush=True)
    if context.info.epoch == 1:
        wait_for_data()
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"loss": 1.0})
        operation.complete(1.0)
"""


def test_hanging_trial_prints_its_stacks_and_starts_again(laptop: Laptop, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    config = tmp_path / "hanging.yaml"
    config.write_text(CONFIG)
    laptop.run("create", config, model)
    laptop.run("wait", 1, seconds=120)
    with laptop.cluster() as cluster:
        trial = cluster.trial(1).data
    assert (trial["state"], trial["restarts"]) == ("COMPLETED", 1)
    log = laptop.run("trial", "logs", 1).stdout
    assert "Current thread" in log
    assert 'train.py", line 7 in wait_for_data' in log
    stacks = laptop.run("trial", "stacks", 1).stdout
    assert stacks.startswith("# rank 0, ")
    assert 'train.py", line 7 in wait_for_data' in stacks
    history = laptop.run("history", 1).stdout
    assert "the process is in train.py:7 wait_for_data" in history
    assert "stopped, because hang_detection restarts hanging runs" in history
