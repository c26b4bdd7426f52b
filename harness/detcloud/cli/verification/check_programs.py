"""The programs and the settings of a self-test's experiments."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import detcloud
from detcloud.cli.verification.plan import PlannedPool
from detcloud.client import Client, Experiment
from detcloud.shared.errors import DetcloudError

HERE: Final = Path(__file__).parent
STAND_IN: Final = HERE / "pool_check"
NOTICE: Final = HERE / "notice_check"
_LABEL: Final = "deploy-verify"
_CONFIG: Final = "config.yaml"
_GPU_CHECK: Final = "gpu_check"
# notice_check/train.py reads the variable.
_PORT_VARIABLE: Final = "CHECK_PORT"


def find_check_folder(chosen: Path | None) -> Path:
    """Return the folder with the check of a pool: config.yaml and the program.

    The folder is `chosen`, or else the GPU check of the installed package or of the checkout, or
    else a small stand-in.

    Raises:
        DetcloudError: `chosen` has no config.yaml.
    """
    if chosen is not None:
        if not (chosen / _CONFIG).is_file():
            raise DetcloudError(f"{chosen} has no {_CONFIG}")
        return chosen
    package = Path(detcloud.__file__).parent
    places = (package / "_server" / _GPU_CHECK, package.parents[1] / "examples" / _GPU_CHECK)
    return next((place for place in places if (place / _CONFIG).is_file()), STAND_IN)


def new_label() -> str:
    """Return a new label for the experiments of a self-test."""
    return f"{_LABEL}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class CheckSettings:
    """The settings that all experiments of a self-test share."""

    label: str
    variables: tuple[str, ...] = ()
    """Environment variables as NAME=VALUE."""


def submit_check(
    client: Client, folder: Path, pool: PlannedPool, settings: CheckSettings
) -> Experiment:
    """Submit the check of a pool, and return the experiment.

    In a pool whose machines may have no GPU, the program gets `--cpu` on such a machine.
    """
    overrides = _overrides(pool, pool.slots, settings)
    if pool.has_cpu_slots:
        program = "python3 gpu_check.py"
        command = f"if nvidia-smi -L 2>/dev/null | grep -q GPU; then exec {program}; fi; "
        words = ["sh", "-c", f"{command}exec {program} --cpu"]
        overrides.append(f"entrypoint={_yaml(words)}")
    return client.create_experiment(folder / _CONFIG, folder, overrides=overrides)


def submit_notice_check(
    client: Client, pool: PlannedPool, settings: CheckSettings, port: int
) -> Experiment:
    """Submit a trial with a slot that resumes after a notice, and return the experiment.

    The trial's program echoes bytes at `port` of the machine's loopback address.
    """
    own = (f"{_PORT_VARIABLE}={port}",)
    overrides = _overrides(pool, 1, replace(settings, variables=(*settings.variables, *own)))
    return client.create_experiment(NOTICE / _CONFIG, NOTICE, overrides=overrides)


def _overrides(pool: PlannedPool, slots: int, settings: CheckSettings) -> list[str]:
    """Return the settings of an experiment in a pool."""
    overrides = [
        f"resources.resource_pool={_yaml(pool.pool)}",
        f"resources.slots_per_trial={slots}",
        f"labels={_yaml([settings.label])}",
    ]
    if settings.variables:
        overrides.append(f"environment.environment_variables={_yaml(settings.variables)}")
    return overrides


def _yaml(value: Any) -> str:
    """Return a value as JSON, which is YAML too."""
    return json.dumps(value)
