"""The examples of docs/python/pytorch.md and docs/training-api.md run without a cluster."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, require
from tests.examples_of_docs import run_examples

require("torch")

GUIDE = ROOT / "docs" / "training-api.md"


def test_examples_of_the_pytorch_api_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The example of an event file.
    require("tensorboard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    run_examples("pytorch.py", "batch_processing.py")
    output = capfd.readouterr().out
    # 64 records in 2 batches of 32, for 2 epochs.
    assert "starts at batch 0 from checkpoint None" in output
    assert "validations=1 batches=4 epochs=2" in output
    assert "100 samples, computed once" in output


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
