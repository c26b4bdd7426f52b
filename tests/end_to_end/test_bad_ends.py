"""A trial that fails after training and reporting is complete runs again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_installed
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.noisy_model import LENGTH, write_noisy_model
from tests.end_to_end.noisy_scripts import SCRIPTS, write_noisy_script
from tests.end_to_end.test_gang_weights import GangSetup, weights
from tests.end_to_end.tiny_model import BATCHES, write_model

pytestmark = pytest.mark.end_to_end

SINGLE = {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}}
TRIAL_SECONDS_MAX = 600.0


def failing_once(command: str, mark: Path) -> str:
    """Return a command that exits with 3 after the first success."""
    return f"{command} && {{ test -e {mark} || {{ touch {mark}; exit 3; }}; }}"


def trial_of(laptop: Laptop, experiment: int) -> Mapping[str, Any]:
    """Return the only trial of the experiment."""
    with laptop.cluster() as cluster:
        [listed] = cluster.experiment(experiment).trials()
        return cluster.trial(listed.id).data


def test_failure_after_the_training_is_a_restart_from_the_end(
    laptop: Laptop, tmp_path: Path
) -> None:
    train = "python train.py 0 0"
    entrypoint = failing_once(train, tmp_path / "mark")
    config, model = write_model(tmp_path, entrypoint=entrypoint, searcher=SINGLE, max_restarts=1)
    single = ("--config", "hyperparameters.x=0.5", "--follow")
    laptop.run("create", config, model, *single)
    trial = trial_of(laptop, 1)
    assert (trial["state"], trial["restarts"]) == ("COMPLETED", 1)
    log = laptop.run("trial", "logs", 1).stdout
    assert [line for line in log.splitlines() if "starts" in line] == [
        "starts at 0",
        "starts at 10",
    ]
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"entrypoint": f"{train}; exit 3"})
    )
    laptop.run("create", config, model, *single, code=1)
    trial = trial_of(laptop, 2)
    assert (trial["state"], trial["restarts"]) == ("ERROR", 2)
    assert "ended with exit code 3 after it reported a good end" in trial["message"]


@pytest.mark.nightly
@pytest.mark.parametrize("api", ["batches", *SCRIPTS])
def test_run_without_training_leaves_the_weights_unchanged(
    laptop: Laptop, tmp_path: Path, api: str
) -> None:
    require_installed("torch")
    if api in SCRIPTS and api != "core":
        require_installed(api)
    setup = GangSetup(1, 1, api)
    is_script = api in SCRIPTS
    if is_script:
        config, model = write_noisy_script(tmp_path, api, 1)
    else:
        config, model = write_noisy_model(tmp_path, 1)
    laptop.run("up", "--slots", 1)
    laptop.run("create", config, model)
    laptop.run("wait", 1, seconds=TRIAL_SECONDS_MAX)
    fields = json.loads(config.read_text())
    trial_class = "python3 -m detcloud.launch.torch_distributed --trial"
    entrypoint = fields["entrypoint"]
    command = entrypoint if is_script else f"{trial_class} {entrypoint}"
    fields["entrypoint"] = failing_once(command, tmp_path / "mark")
    config.write_text(json.dumps(fields))
    laptop.run("create", config, model)
    laptop.run("wait", 2, seconds=TRIAL_SECONDS_MAX)
    trial = trial_of(laptop, 2)
    log = laptop.run("trial", "logs", trial["id"]).stdout
    assert (trial["state"], trial["restarts"], trial["steps_completed"]) == (
        ("COMPLETED", 1, LENGTH)
    ), log
    found, expected = weights(laptop, 2, setup), weights(laptop, 1, setup)
    assert all(found[name].equal(value) for name, value in expected.items()), log
