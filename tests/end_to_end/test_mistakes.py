"""Messages for a newcomer's mistakes, and the files of a model directory that reach a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model

pytestmark = pytest.mark.end_to_end

WRONG = """\
name: wrong
entrypoint: model_def:Trial
hyperparameters:
  global_batch_size: 64
  rate: {type: double, minval: 2, maxval: 1}
searcher:
  name: randon
  metric: loss
  max_length: {batches: 10}
max_restarts: many
"""


def test_mistakes_in_a_configuration_are_reported_with_line_numbers(
    laptop: Laptop, tmp_path: Path
) -> None:
    config, model = write_model(tmp_path)
    config.write_text(WRONG)
    refused = laptop.run("create", config, model, code=3)
    lines = refused.stderr.splitlines()
    assert lines[1] == f"error: {config} was refused: the configuration is not valid"
    places = [line.split(": ")[0] for line in lines[2:]]
    assert places == [f"{config}:{number}" for number in (5, 7, 10)]
    assert laptop.json("list") == []
    # The check without a cluster names the same lines.
    checked = laptop.run("config", "check", config, code=1)
    assert [line.split(": ")[0] for line in checked.stdout.splitlines()] == places


def test_crash_shows_the_traceback_and_ends_in_error(laptop: Laptop, tmp_path: Path) -> None:
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 10}}
    given = write_model(tmp_path, fails_at=3, max_restarts=1, searcher=searcher)
    config, model = given
    done = laptop.run(
        "create", config, model, "--config", "hyperparameters.x=0.5", "--follow", code=1
    )
    assert "experiment 1 failed" in done.stdout
    log = laptop.run("trial", "logs", 1).stdout
    # A restart is allowed, so the trial ran twice, from the start since no checkpoint was stored.
    assert log.count("starts at 0") == log.count("ArithmeticError: batch 3 went wrong") == 2
    assert log.count("Traceback (most recent call last)") == 2
    trial = laptop.json("trial", "describe", 1)
    assert (trial["state"], trial["restarts"]) == ("ERROR", 2)
    assert "batch 3 went wrong" in trial["message"]
    assert laptop.run("wait", 1, code=1).stdout == "experiment 1 failed\n"


@pytest.mark.parametrize(
    ("entrypoint", "line"),
    [
        ("python3 train.py", "ModuleNotFoundError: No module named 'nope'"),
        pytest.param("true && python3 gone.py", "can't open file", marks=pytest.mark.nightly),
        ("broken:Trial", "SyntaxError"),
        pytest.param("gone:Trial", "there is no module 'gone'", marks=pytest.mark.nightly),
    ],
)
def test_unloadable_code_runs_once(
    laptop: Laptop, tmp_path: Path, entrypoint: str, line: str
) -> None:
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 10}}
    config, model = write_model(
        tmp_path, entrypoint=entrypoint, max_restarts=5, searcher=searcher, hyperparameters={}
    )
    (model / "train.py").write_text("import nope\n")
    (model / "broken.py").write_text("import os\ndef f(:\n")
    done = laptop.run("create", config, model, "--follow", code=1)
    number = laptop.json("list")[0]["id"]
    assert f"experiment {number} failed" in done.stdout
    trial = laptop.json("experiment", "list-trials", number)[0]
    assert (trial["state"], trial["restarts"]) == ("ERROR", 1)
    assert line in laptop.run("trial", "logs", trial["id"]).stdout
    assert ("does not have" in done.stderr) == (entrypoint == "gone:Trial")


def test_script_missing_from_the_folder_is_refused(laptop: Laptop, tmp_path: Path) -> None:
    config, model = write_model(tmp_path, entrypoint="python3 gone.py")
    refused = laptop.run("create", config, model, code=3)
    assert "gone.py" in refused.stderr
    assert laptop.json("list") == []


def test_model_directory_over_95_mib_is_refused(laptop: Laptop, tmp_path: Path) -> None:
    config, model = write_model(tmp_path)
    with (model / "weights.bin").open("wb") as file:
        file.truncate(95 * 1024 * 1024)
    # 95 MiB of zeros and the script.
    refused = laptop.run("create", config, model, code=1)
    assert "95.0 MiB" in refused.stderr
    assert ".detignore" in refused.stderr
    assert laptop.json("list") == []
    (model / ".detignore").write_text("*.bin\n")
    laptop.run("create", config, model, "--follow")


def test_startup_hook_runs_and_ignored_files_stay_behind(laptop: Laptop, tmp_path: Path) -> None:
    config, model = write_model(tmp_path)
    (model / "startup-hook.sh").write_text("echo hooked\ntouch prepared.txt\n")
    (model / ".detignore").write_text("*.csv\n!keep.csv\nnotes/\n")
    for name in ("data.csv", "keep.csv", "__pycache__/train.pyc", "notes/today.txt", "lib/a.py"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("x")
    laptop.run("create", config, model, "--follow")
    log = laptop.run("trial", "logs", 1).stdout.splitlines()
    assert log[0] == "hooked"
    assert log[1] == "files keep.csv lib prepared.txt startup-hook.sh train.py"


def test_failing_startup_hook_is_a_failure_of_the_trial(laptop: Laptop, tmp_path: Path) -> None:
    config, model = write_model(tmp_path, max_restarts=0)
    (model / "startup-hook.sh").write_text("echo no such package >&2\nexit 3\n")
    laptop.run("create", config, model, "--follow", code=1)
    trial = laptop.json("trial", "describe", 1)
    assert trial["state"] == "ERROR"
    assert trial["message"].startswith("startup-hook.sh failed with exit code 3")
    assert "no such package" in trial["message"]


# Validates with the metrics in the hyperparameter `found`.
REPORTS = """\
import torch
from torch.utils.data import TensorDataset
from detcloud import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.found = context.get_hparam("found")
        self.context, self.model = context, context.wrap_model(torch.nn.Linear(1, 1))
        parameters = self.model.parameters()
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(parameters, lr=0.1))
    def build_training_data_loader(self):
        return pytorch.DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=4)
    build_validation_data_loader = build_training_data_loader
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).sum()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_full_dataset(self, loader):
        return self.found
"""
LACKS = "the validation at batch 2 lacks the searcher's metric 'loss'; it has: accuracy."
IS_TEXT = "the searcher's metric 'loss' at batch 2 is 'low': it must be one number"


@pytest.mark.parametrize(
    ("found", "why", "in_steps"),
    [
        ({"accuracy": 1.0}, LACKS, True),
        ({"loss": "low"}, IS_TEXT, False),
        pytest.param({"accuracy": 1.0}, LACKS, False, marks=pytest.mark.nightly),
        pytest.param({"loss": "low"}, IS_TEXT, True, marks=pytest.mark.nightly),
    ],
)
def test_search_with_rungs_reports_a_missing_or_invalid_metric(
    laptop: Laptop, tmp_path: Path, found: dict[str, object], why: str, in_steps: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_def.py").write_text(REPORTS)
    length = {"target_trial_steps": 2} if in_steps else {"max_length": {"batches": 4}}
    halving = {"name": "async_halving", "num_rungs": 2, "divisor": 2, "max_trials": 3}
    config: dict[str, Any] = {
        "entrypoint": "model_def:Trial",
        "hyperparameters": {
            "global_batch_size": 4,
            "found": {"type": "const", "val": found},
        },
        "searcher": {**halving, **length, "metric": "loss"},
        "max_restarts": 0,
        **({"batches_per_step": 2} if in_steps else {}),
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    laptop.run("create", path, model, "--follow", code=1)
    described = laptop.json("describe", 1)
    assert described["state"] == "ERROR"
    assert why in described["message"]
    # In the step era the first trial ends the search, which names the trial. In the length era each
    # trial fails alone, and so all trials fail.
    assert described["message"].startswith("trial ") == in_steps
    assert in_steps or described["trials"]["errored"] == 3
