"""Environment variables that describe the trial to code for Determined."""

import json
from typing import Any

from detcloud.compatibility.variables import (
    VARIABLE_BYTES_MAX,
    determined_variables,
    overlong_variables,
)

SPEC: dict[str, Any] = {
    "cluster_id": "c",
    "agent_id": "a",
    "experiment_id": 3,
    "trial_id": 4,
    "allocation_id": "4.2",
    "epoch": 2,
    "trial_seed": 17,
    "slots": [0, 1],
    "hparams": {"lr": 0.5},
    "config": {"data": {"quote": 'it\'s "so"'}},
    "steps_completed": 8,
    "latest_checkpoint": {"uuid": "c-1"},
}


def test_a_trial_has_the_variables_of_determined() -> None:
    variables = determined_variables(SPEC)
    assert json.loads(variables.pop("DET_EXPERIMENT_CONFIG")) == SPEC["config"]
    assert json.loads(variables.pop("DET_HPARAMS")) == {"lr": 0.5}
    assert variables == {
        "DET_CLUSTER_ID": "c",
        "DET_AGENT_ID": "a",
        "DET_SLOT_IDS": "[0, 1]",
        "DET_TASK_ID": "3.4",
        "DET_TASK_TYPE": "TRIAL",
        "DET_ALLOCATION_ID": "4.2",
        "DET_EXPERIMENT_ID": "3",
        "DET_TRIAL_ID": "4",
        "DET_TRIAL_RUN_ID": "2",
        "DET_TRIAL_SEED": "17",
        "DET_STEPS_COMPLETED": "8",
        "DET_LATEST_CHECKPOINT": "c-1",
    }


def test_a_new_trial_has_no_checkpoint_variable() -> None:
    assert "DET_LATEST_CHECKPOINT" not in determined_variables({**SPEC, "latest_checkpoint": None})


def test_setting_disables_determined_variables() -> None:
    off = {"environment": {"determined_compatibility": False}}
    assert determined_variables({**SPEC, "config": off}) == {}


def test_an_overlong_variable_is_omitted() -> None:
    spec = {**SPEC, "config": {"data": "x" * VARIABLE_BYTES_MAX}}
    assert "DET_EXPERIMENT_CONFIG" not in determined_variables(spec)
    assert overlong_variables(spec) == ["DET_EXPERIMENT_CONFIG"]
