"""Reading checkpoints of Determined 0.12 to 0.38, with parts and names converted to ours.

- `state_dict.pth` was in other folders at first.
- Up to 0.12.3 a state had one model and no random state. cloudpickle wrote it up to 0.17.
- The random state has an array of NumPy, and the states of callbacks may have any object. torch's
  safe reader refuses both; `restricted_pickle` reads them and runs nothing.
- Up to 0.17.7 the facts for loading were in `metadata.json`, later in `load_data.json`.
"""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from detcloud.pytorch import generators, restricted_pickle
from detcloud.pytorch.metrics import MetricAverage
from detcloud.pytorch.optimization import MODELS, OPTIMIZERS, SCHEDULERS, rename_former_parts
from detcloud.pytorch.restricted_pickle import Placeholder, find_placeholder
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import LOAD_FILE, METADATA_FILE, STATE_FILE

# The newest place first.
STATE_PLACES = (STATE_FILE, f"determined/{STATE_FILE}", f"pedl/{STATE_FILE}", "checkpoint.pt")
PLAIN_UNPICKLING = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""The variable of torch with which a user allows files to run code during loading."""
_RANDOM = "rng_state"


def state_path(folder: Path) -> Path:
    """Return the first existing place of a checkpoint's state, or the current place."""
    places = (folder / place for place in STATE_PLACES)
    return next((place for place in places if place.exists()), folder / STATE_FILE)


def read_state(path: Path, **options: Any) -> Any:
    """Read a state without running code of the file. `options` are arguments of torch.load.

    Tensors are loaded to the CPU by default. Objects of unknown classes in states of Determined
    become placeholders. Only `weights_only=False`, or the variable
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD, lets the file run code. Raises DetcloudError if the file
    cannot be read.
    """
    options = {"map_location": "cpu", **options}
    is_forced = os.environ.get(PLAIN_UNPICKLING, "").lower() in ("1", "y", "yes", "true")
    options.setdefault("weights_only", not is_forced)
    try:
        return torch.load(path, **options)
    except Exception as error:
        if not options["weights_only"]:
            raise DetcloudError(f"{path.name} cannot be read: {error}") from error
        state = _read_restricted(path, options)
        if state is None:
            raise DetcloudError(f"{path.name} cannot be read: {error}") from error
    return state


def to_current_parts(state: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the state of a checkpoint of Determined, completed with the parts that ours have.

    `steps` is the batch of the checkpoint. A state of ours, or without models, is returned with
    only the names of parts changed.
    """
    named = rename_former_parts(state)
    if "position" in named or MODELS not in named:
        return named
    return {
        OPTIMIZERS: [],
        SCHEDULERS: [],
        "gradients": [{} for _ in named[MODELS]],
        "average": MetricAverage().state_dict(),
        **named,
        "callbacks": named.get("callbacks") or {},
        "position": {"steps": steps, "workload_start": steps, "saved": steps},
        "generators": _generator_state(named.get(_RANDOM)),
    }


def check_readable(state: dict[str, Any], *parts: str) -> None:
    """Raise DetcloudError if a part of the state contains an object that was not imported.

    `parts` are the names to check; missing parts are skipped.
    """
    for part in parts:
        found = find_placeholder(state.get(part), part)
        if found is not None:
            place, placeholder = found
            raise DetcloudError(
                f"{STATE_FILE} has a {placeholder.name} at {place}, which only code of the"
                " checkpoint can read. If you trust the checkpoint, set"
                f" {PLAIN_UNPICKLING}=1, or give load_trial_from_checkpoint_path"
                " weights_only=False: it may then run any code"
            )


def read_load_data(folder: Path) -> dict[str, Any]:
    """Return the facts for creating a checkpoint's trial, from `load_data.json`.

    The facts include `experiment_config`, `hparams` and `trial_cls_spec`, the trial's class. If the
    file is missing or no JSON object, use the metadata of Determined's early checkpoints. Return an
    empty dict if the metadata are missing too or lack a configuration. Raises DetcloudError if a
    file is not JSON.
    """
    load_data = _read_object(folder / LOAD_FILE)
    if load_data is not None:
        return load_data
    metadata = _read_object(folder / METADATA_FILE) or {}
    config = metadata.get("experiment_config")
    if not isinstance(config, dict):
        return {}
    entrypoint = config.get("entrypoint")
    return {
        "experiment_config": config,
        "hparams": metadata.get("hparams") or _constants(config.get("hyperparameters")),
        # In these releases, every entrypoint was a class.
        "trial_cls_spec": entrypoint if isinstance(entrypoint, str) else "",
    }


def _read_restricted(path: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return a state of Determined, with a Placeholder for each object of an unknown class.

    `options` are arguments of torch.load. Return None if the file is missing or is no such state.
    """
    if not path.is_file() or _may_run_code(path):
        return None
    options = {**options, "weights_only": False, "pickle_module": restricted_pickle}
    try:
        state = torch.load(path, **options)
    except Exception:
        return None
    is_original = isinstance(state, dict) and MODELS in rename_former_parts(state)
    return state if is_original else None


def _may_run_code(path: Path) -> bool:
    """Return whether torch would read the file otherwise than as a pickle.

    Such files are TorchScript, and archives of torch's first releases.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return any(Path(name).name == "constants.pkl" for name in archive.namelist())
    return tarfile.is_tarfile(path)


def _generator_state(random_state: dict[str, Any] | None) -> dict[str, Any]:
    """Convert Determined's random state to the form of `generators.capture_state`.

    Without a random state, return the present generators' state.
    """
    if not isinstance(random_state, dict):
        return generators.capture_state()
    version, words, gauss = random_state["random_rng_state"]
    name, keys, *rest = random_state["np_rng_state"]
    gpu = random_state.get("gpu_rng_state")
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, [int(key) for key in keys], *rest],
        "torch": random_state["cpu_rng_state"],
        "cuda": [] if gpu is None or isinstance(gpu, Placeholder) else [gpu],
    }


def _read_object(place: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file. Return None without the file or if the JSON is no object.

    Raises DetcloudError if the file is not JSON.
    """
    if not place.exists():
        return None
    try:
        content = json.loads(place.read_bytes())
    except ValueError as error:
        raise DetcloudError(f"{place} is not JSON: {error}") from None
    return content if isinstance(content, dict) else None


def _constants(hyperparameters: Any) -> dict[str, Any]:
    """Return the constant hyperparameters of a configuration. Ranges are left out."""
    if not isinstance(hyperparameters, dict):
        return {}
    return {
        name: value["val"] if isinstance(value, dict) else value
        for name, value in hyperparameters.items()
        if not isinstance(value, dict) or value.get("type") == "const"
    }
