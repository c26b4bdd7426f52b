"""The functions of Determined's `pytorch.dsat` that scripts call even without autotuning."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detcloud.compatibility.util_functions import merge_dicts
from detcloud.shared.errors import DetcloudError

OVERWRITES = "overwrite_deepspeed_args"
# Flags of the Hugging Face Trainer that must agree with fields of DeepSpeed's configuration.
_TRAINER_FLAGS = {
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
}


@contextmanager
def dsat_reporting_context(
    core_context: object, op: object = None, steps_completed: int | None = None
) -> Iterator[None]:
    """Run the block, and do nothing else. Only autotuning, which detcloud lacks, would report."""
    yield


def get_ds_config_from_hparams(
    hparams: Mapping[str, Any], base_dir: str | Path = "."
) -> dict[str, Any]:
    """Return the configuration of DeepSpeed with the hyperparameters' overwrites.

    The hyperparameter `deepspeed_config` names a JSON file, relative to `base_dir`. Values of
    `overwrite_deepspeed_args` replace values of the file. The file is not changed. Raises
    DetcloudError without `deepspeed_config`, and OSError or ValueError if the file cannot be read.
    """
    if "deepspeed_config" not in hparams:
        known = ", ".join(sorted(hparams)) or "none"
        raise DetcloudError(
            f"hyperparameter deepspeed_config does not exist; there are: {known}. It names the file"
        )
    config = json.loads(Path(base_dir, hparams["deepspeed_config"]).read_text(encoding="utf-8"))
    return merge_dicts(config, hparams.get(OVERWRITES) or {})


def get_hf_args_with_overwrites(args: Sequence[str], hparams: Mapping[str, Any]) -> list[str]:
    """Return a script's arguments, adapted to the hyperparameter `overwrite_deepspeed_args`.

    The values are written into the file that follows `--deepspeed` in `args`, and arguments of the
    Hugging Face Trainer are set to fit. Without the hyperparameter, return a copy of `args`. Raises
    DetcloudError if `--deepspeed FILE` is missing, OSError or ValueError for the file.
    """
    changed = list(args)
    if not hparams.get(OVERWRITES):
        return changed
    if "--deepspeed" not in changed[:-1]:
        raise DetcloudError(f"hyperparameter {OVERWRITES} is set, but there is no --deepspeed FILE")
    place = Path(changed[changed.index("--deepspeed") + 1])
    config = merge_dicts(json.loads(place.read_text(encoding="utf-8")), hparams[OVERWRITES])
    # Every process of a node writes equal content, so an atomic replacement is safe.
    written = place.with_name(f"{place.name}.{os.getpid()}")
    written.write_text(json.dumps(config), encoding="utf-8")
    written.replace(place)
    for name, flag in _TRAINER_FLAGS.items():
        value = config.get(name, "auto")
        if value == "auto":
            continue
        if flag in changed[:-1]:
            changed[changed.index(flag) + 1] = str(value)
        else:
            changed += [flag, str(value)]
    return changed
