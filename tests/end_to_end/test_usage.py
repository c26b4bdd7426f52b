"""The use of slots on a laptop: measured processes, the report, and the end of unused trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import SIZE, open_window
from tests.end_to_end.laptop import Laptop

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

CLUSTER = """
resource_pools:
  - pool_name: default
    provider:
      type: local
      max_instances: 1
      offerings: [{instance_type: small, slots: 1, price_per_hour: 36}]
"""
CONFIG = """
name: NAME
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 1}
resources: {slots_per_trial: 1}
hyperparameters: {works: WORKS}
low_use: {time: 8s, action: ACTION}
max_restarts: 0
"""
TRAIN = """
import time
from detcloud import core

with core.init() as context:
    end = time.monotonic() + 25
    while time.monotonic() < end and not context.preempt.should_preempt():
        if context.info.hparams["works"]:
            sum(range(1_000_000))
        else:
            time.sleep(0.2)
    with context.checkpoint.store_path({"steps_completed": 1}) as (folder, _):
        (folder / "weights").write_text("1")
    if not context.preempt.should_preempt():
        for operation in context.searcher.operations():
            context.train.report_validation_metrics(operation.length, {"loss": 1.0})
            operation.complete(1.0)
"""


def create(laptop: Laptop, folder: Path, name: str, *, works: bool, action: str) -> None:
    text = CONFIG.replace("NAME", name).replace("ACTION", action)
    config = folder / f"{name}.yaml"
    config.write_text(text.replace("WORKS", str(works).lower()))
    laptop.run("create", config, folder / "model")


def test_unused_trial_ends_and_the_money_is_reported(
    laptop: Laptop, chromium: Any, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(TRAIN)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    laptop.run("up", "--slots", 1, "--config", tmp_path / "cluster.yaml")
    create(laptop, tmp_path, "sleeps", works=False, action="end")
    laptop.run("wait", 1, code=1, seconds=90)
    create(laptop, tmp_path, "works", works=True, action="end")
    laptop.run("wait", 2, seconds=90)
    with laptop.cluster() as cluster:
        sleeps, works = cluster.trial(1).data, cluster.trial(2).data
    assert (sleeps["state"], works["state"]) == ("CANCELED", "COMPLETED")
    assert "(low_use)" in sleeps["message"]
    assert sleeps["latest_checkpoint"] is not None
    # A program with a single thread uses one of the cores, which all belong to the only slot.
    assert sleeps["use"]["percent"] < 5 < works["use"]["percent"]
    assert works["use"]["memory_percent"] > 0
    assert "its slots computed" in laptop.run("history", 1).stdout
    report = laptop.json("usage", "--by", "experiment")
    lines = {item["name"]: item for item in report["items"]}
    assert lines["1"]["low_cost"] > lines["1"]["cost"] / 2 > 0
    assert lines["2"]["low_cost"] < lines["2"]["cost"] / 2
    total = laptop.json("usage", "--by", "pool")["total"]
    assert total["wasted"] == pytest.approx(total["idle_cost"] + total["low_cost"])
    assert "Mean use" in laptop.run("trial", "describe", 1).stdout
    laptop.replay(1)
    laptop.replay(2)
    check_page(chromium, laptop)


def check_page(chromium: Any, laptop: Laptop) -> None:
    """Check the view of the usage at the sizes of a screen and a phone."""
    for size in (SIZE, {"width": 390, "height": 800}):
        with open_window(chromium, laptop, viewport=size) as browser:
            browser.sign_in()
            browser.go("usage", "Usage")
            browser.wait_for_text("slot hours, mean use")
            assert len(browser.table_rows("mean use of each day")) == 1
            first, second = browser.table_rows("wasters")
            assert "sleeps" in first
            assert "works" in second
            browser.check_view(size["width"])
