"""Trials that start from uploaded checkpoints of Determined."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import require
from tests.end_to_end.laptop import Laptop

require("torch")

from tests.unit.pytorch.original_writers import CODE, CONFIG, WIDTH, WRITERS  # noqa: E402

pytestmark = pytest.mark.end_to_end

PRINTED = 'print("weight", self.model.weight.flatten().tolist())'


def write_model(folder: Path) -> list[Path]:
    """Write the trial's code, which prints the weight before each step, and the configuration."""
    model = folder / "model"
    model.mkdir()
    step = "loss = self.model(batch).mean()"
    (model / "model_def.py").write_text(CODE.replace(step, f"{PRINTED}\n        {step}", 1))
    config = {**CONFIG, "hyperparameters": {"width": WIDTH, "global_batch_size": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    return [folder / "config.json", model]


def test_trials_start_from_uploaded_checkpoints_of_determined(
    laptop: Laptop, tmp_path: Path
) -> None:
    paths = write_model(tmp_path)
    laptop.run("up", "--slots", 1)
    laptop.run("create", *paths)
    laptop.await_completion(1)
    for experiment, release in enumerate(["0.12.13", "0.17", "0.38"], start=2):
        stored = WRITERS[release](tmp_path / release)
        uploaded = laptop.json("checkpoint", "upload", tmp_path / release, "--trial", 1)
        source = f"searcher.source_checkpoint_uuid={uploaded['uuid']}"
        laptop.run("create", *paths, "--config", source)
        laptop.run("wait", experiment)
        log = laptop.log(experiment)
        weights = re.findall(r"weight (\[.*\])", log)
        assert json.loads(weights[0]) == stored.flatten().tolist(), log
