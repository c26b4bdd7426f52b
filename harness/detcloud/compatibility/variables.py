"""The environment variables with facts about the trial, for code written for Determined."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from detcloud.compatibility.path import SETTING

# The system refuses to start a process with a longer variable.
VARIABLE_BYTES_MAX = 120 * 1024


def determined_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for a trial with this specification, which is in JSON form.

    Return an empty dict if the configuration disables compatibility. A variable that is too long is
    left out. No variable is secret, because the specification's configuration has no secrets.
    """
    return {name: value for name, value in _variables(spec).items() if not _is_too_long(value)}


def overlong_variables(spec: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of variables that `determined_variables` leaves out as too long."""
    return sorted(name for name, value in _variables(spec).items() if _is_too_long(value))


def _is_too_long(value: str) -> bool:
    return len(value.encode()) > VARIABLE_BYTES_MAX


def _variables(spec: Mapping[str, Any]) -> dict[str, str]:
    config = spec.get("config") or {}
    if (config.get("environment") or {}).get(SETTING, True) is False:
        return {}
    checkpoint = spec.get("latest_checkpoint") or {}
    experiment, trial = spec.get("experiment_id", 0), spec.get("trial_id", 0)
    values: dict[str, object] = {
        "DET_CLUSTER_ID": spec.get("cluster_id", ""),
        "DET_AGENT_ID": spec.get("agent_id", ""),
        "DET_SLOT_IDS": json.dumps(spec.get("slots") or []),
        "DET_TASK_ID": f"{experiment}.{trial}",
        "DET_TASK_TYPE": "TRIAL",
        "DET_ALLOCATION_ID": spec.get("allocation_id", ""),
        "DET_EXPERIMENT_ID": experiment,
        "DET_EXPERIMENT_CONFIG": json.dumps(config),
        "DET_TRIAL_ID": trial,
        "DET_TRIAL_RUN_ID": spec.get("epoch", 1),
        "DET_TRIAL_SEED": spec.get("trial_seed", 0),
        "DET_HPARAMS": json.dumps(spec.get("hparams") or {}),
        "DET_STEPS_COMPLETED": spec.get("steps_completed", 0),
        "DET_LATEST_CHECKPOINT": checkpoint.get("uuid"),
    }
    return {name: str(value) for name, value in values.items() if value is not None}
