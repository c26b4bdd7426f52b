"""A model directory with trials of milliseconds a batch that need no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Tests name lines of this script by number, which any change would move.
TRAIN = """\
import json, os, sys, time
from detcloud import core

pause, fails_at = float(sys.argv[1]), int(sys.argv[2])

with core.init() as context:
    steps = context.info.steps_completed
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            assert steps in (0, json.loads((folder / "state.json").read_text()))
    print("files", *sorted(os.listdir()), flush=True)
    print("starts at", steps, flush=True)
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            time.sleep(pause)
            steps += 1
            if steps == fails_at:
                raise ArithmeticError(f"batch {steps} went wrong")
            context.train.report_training_metrics(steps, {"loss": 1 / steps})
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps(steps))
        if steps < operation.length:
            break
        loss = context.info.hparams["x"] ** 2
        context.train.report_validation_metrics(steps, {"loss": loss})
        operation.complete(loss)
    print("stops at", steps, flush=True)
"""
BATCHES = 10


def population_search(size: int, length: dict[str, int]) -> dict[str, Any]:
    """Return a population-based searcher of three rounds, which replaces a trial between rounds."""
    return {
        "name": "pbt",
        "metric": "loss",
        "population_size": size,
        "num_rounds": 3,
        "length_per_round": length,
        "replace_function": {"truncate_fraction": 0.34},
        "explore_function": {"resample_probability": 0.2, "perturb_factor": 0.2},
    }


def write_model(
    folder: Path, pause_seconds: float = 0.0, fails_at: int = 0, **fields: Any
) -> tuple[Path, Path]:
    """Write CONFIG and MODEL_DIR for a search of two trials with 10 batches; return both paths.

    A batch takes `pause_seconds`; the batch `fails_at` raises. `fields` are the configuration's.
    """
    model = folder / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    config = {
        "name": "tiny",
        "entrypoint": ["python", "train.py", str(pause_seconds), str(fails_at)],
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_trials": 2,
            "max_length": {"batches": BATCHES},
        },
        "reproducibility": {"experiment_seed": 7},
        **fields,
    }
    path = folder / "config.yaml"
    # A field per line, so that problems name different lines. JSON is YAML.
    path.write_text(json.dumps(config, indent=1))
    return path, model
