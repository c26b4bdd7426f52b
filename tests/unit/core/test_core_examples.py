"""The examples of docs/python/core.md run without a cluster."""

from pathlib import Path

import pytest

from tests.examples_of_docs import run_examples


def test_examples_of_the_core_api_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = run_examples("core.py")
    assert (tmp_path / "restored" / "notes.txt").read_text() == "the first try"
    assert names["steps"] == 100
    output = capfd.readouterr().out
    # 0.5 squared, as reported in the examples.
    assert "validation at batch 100: loss=0.25" in output
    assert "training at batch 200: seconds=3.5" in output
