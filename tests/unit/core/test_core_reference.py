"""The Core API's part of docs/training-reference.md has the code's signatures; its examples run."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from detcloud import core
from tests.unit.core.documented_calls import differences, documented_examples, parameters_text

SECTION = "Core API"
OWNERS = {
    "core": core,
    "context": core.Context,
    "context.searcher": core.SearcherContext,
    "operation": core.SearcherOperation,
    "context.preempt": core.PreemptContext,
    "context.checkpoint": core.CheckpointContext,
    "context.train": core.TrainContext,
    "context.profiler": core.ProfilerContext,
    "context.distributed": core.DistributedContext,
}


def test_documented_signatures_are_those_of_the_code() -> None:
    assert differences(SECTION, OWNERS) == []


def test_documented_examples_run_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = documented_examples(SECTION)
    assert len(examples) > 10
    names: dict[str, Any] = {}
    with core.init(checkpoint_dir=tmp_path / "store") as context:
        for example in examples:
            exec(compile(example, "training-reference.md", "exec"), names)
            # The example of `core.init` closes its own context.
            names["context"] = context
    assert (tmp_path / "restored" / "notes.txt").read_text() == "the first try"


def test_changed_default_is_a_difference() -> None:
    class ChangedOperation(core.SearcherOperation):
        def complete(self, metric: Any = None) -> None:
            pass

    assert differences(SECTION, {**OWNERS, "operation": ChangedOperation}) == [
        "operation.complete(metric) is (metric=None) in the code"
    ]


def test_members_of_enums_are_written_as_in_code() -> None:
    signature = inspect.signature(core.Context.alert)
    assert parameters_text(signature) == "(title='', description='', level=AlertLevel.INFO)"
