"""The functions of Determined's `pytorch.dsat` that scripts call in every run, tuned or not."""

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
# What the Hugging Face Trainer is told besides, by the names in DeepSpeed's configuration.
_TRAINER_FLAGS = {
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
}


@contextmanager
def dsat_reporting_context(
    core_context: object, op: object = None, steps_completed: int | None = None
) -> Iterator[None]:
    """A block that reports nothing: only autotuning, which detcloud has not, ends within it."""
    yield


def get_ds_config_from_hparams(
    hparams: Mapping[str, Any], base_dir: str | Path = "."
) -> dict[str, Any]:
    """DeepSpeed's configuration: the file that the hyperparameter `deepspeed_config` names, with
    the values of `overwrite_deepspeed_args` laid over it.
    """
    if "deepspeed_config" not in hparams:
        known = ", ".join(sorted(hparams)) or "none"
        raise DetcloudError(
            f"hyperparameter deepspeed_config does not exist; there are: {known}. It names the file"
        )
    config = json.loads(Path(base_dir, hparams["deepspeed_config"]).read_text(encoding="utf-8"))
    return merge_dicts(config, hparams.get(OVERWRITES) or {})


def get_hf_args_with_overwrites(args: Sequence[str], hparams: Mapping[str, Any]) -> list[str]:
    """The arguments of a script with the Hugging Face Trainer that fit the hyperparameter
    `overwrite_deepspeed_args`, whose values are written into the file of `--deepspeed`.
    """
    changed = list(args)
    if not hparams.get(OVERWRITES):
        return changed
    if "--deepspeed" not in changed[:-1]:
        raise DetcloudError(f"hyperparameter {OVERWRITES} is set, but there is no --deepspeed FILE")
    place = Path(changed[changed.index("--deepspeed") + 1])
    config = merge_dicts(json.loads(place.read_text(encoding="utf-8")), hparams[OVERWRITES])
    # Every process of a node writes the same.
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
