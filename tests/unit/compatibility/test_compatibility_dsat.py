import json
from pathlib import Path
from typing import Any

import pytest

from detcloud.compatibility.dsat import (
    dsat_reporting_context,
    get_ds_config_from_hparams,
    get_hf_args_with_overwrites,
)
from detcloud.shared.errors import DetcloudError

CONFIG = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1, "a": 2}}
OVERWRITES = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}


def test_ds_config_merges_the_file_and_the_overwrites(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    hparams: dict[str, Any] = {"deepspeed_config": "ds.json"}
    assert get_ds_config_from_hparams(hparams, tmp_path) == CONFIG
    merged = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2, "a": 2}}
    hparams["overwrite_deepspeed_args"] = OVERWRITES
    assert get_ds_config_from_hparams(hparams, tmp_path) == merged
    with pytest.raises(DetcloudError, match="deepspeed_config does not exist; there are: lr"):
        get_ds_config_from_hparams({"lr": 1})


def test_hf_args_follow_the_overwrites(tmp_path: Path) -> None:
    place = tmp_path / "ds.json"
    place.write_text(json.dumps({**CONFIG, "gradient_accumulation_steps": 3}))
    args = ["--per_device_train_batch_size", "9", "--deepspeed", str(place)]
    assert get_hf_args_with_overwrites(args, {"lr": 1}) == args
    changed = get_hf_args_with_overwrites(args, {"overwrite_deepspeed_args": OVERWRITES})
    # The first flag exists and is changed; the second is missing and added.
    assert changed[:2] == ["--per_device_train_batch_size", "4"]
    assert changed[4:] == ["--gradient_accumulation_steps", "3"]
    assert json.loads(place.read_text())["zero_optimization"] == {"stage": 2, "a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["ds.json"]
    with pytest.raises(DetcloudError, match="there is no --deepspeed FILE"):
        get_hf_args_with_overwrites([], {"overwrite_deepspeed_args": OVERWRITES})


def test_dsat_context_lets_exceptions_pass() -> None:
    with pytest.raises(SystemExit), dsat_reporting_context(None, op=None):
        raise SystemExit(2)
