"""The PyTorch part of docs/training-reference.md has the code's signatures; its examples run."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.unit.core.documented_calls import REFERENCE, differences, documented_examples

require("torch")

from detcloud import pytorch  # noqa: E402

SECTION = "PyTorch API"
GUIDE = REFERENCE.with_name("training-api.md")


def test_documented_signatures_are_those_of_the_code() -> None:
    owners = {
        "pytorch": pytorch,
        "pytorch.PyTorchTrialContext": pytorch.PyTorchTrialContext,
        "pytorch.MetricReducer": pytorch.MetricReducer,
        "pytorch.PyTorchCallback": pytorch.PyTorchCallback,
        "context.experimental": pytorch.PyTorchExperimentalContext,
        "pytorch.Trainer": pytorch.Trainer,
    }
    assert differences(SECTION, owners) == []


def test_documented_examples_run_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = documented_examples(SECTION)
    assert len(examples) > 10
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, "training-reference.md", "exec"), names)
    assert names["batch_size"] == 32


def test_documented_callback_counts_validations() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (source,) = [block for block in blocks if "CountValidations" in block]
    names: dict[str, Any] = {}
    exec(compile(source, "training-api.md", "exec"), names)
    callback = names["CountValidations"]()
    for metrics in ({}, {"validation_loss": 1.0}):
        callback.on_validation_end(metrics)
    # Two validations.
    assert metrics == {"validation_loss": 1.0, "validations": 2}
    restored = names["CountValidations"]()
    restored.load_state_dict(callback.state_dict())
    assert restored.count == 2
