"""A trace from the command line to the code of a trial, received by a collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import require
from tests.end_to_end.laptop import start_cluster
from tests.patience import wait_until

require("opentelemetry.exporter.otlp.proto.http")

from tests.emulators.otlp_receiver import serve_otlp  # noqa: E402

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

TRAIN = """
import os
from detcloud import core

print("parent", os.environ["TRACEPARENT"], flush=True)
with core.init() as context:
    for operation in context.searcher.operations():
        context.train.report_training_metrics(1, {"loss": 1.0})
        context.train.report_validation_metrics(operation.length, {"loss": 1.0})
        operation.complete(1.0)
"""
CONFIG = """
name: traced
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 2}}
"""
PHASES = {"queue", "start", "code", "restore", "first_step", "run"}


def test_trace_of_a_command_reaches_the_code_of_the_trial(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(CONFIG)
    with serve_otlp() as receiver:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        with start_cluster(tmp_path, 1, **variables) as laptop:
            laptop.run("create", tmp_path / "config.yaml", model)
            laptop.await_completion(1)
            names = {f"{phase} of trial 1" for phase in PHASES}
            wait_until(lambda: names <= {span.name for span in receiver.spans}, 60)
            submitted = receiver.find_span("detcloud create")
            run = receiver.find_span("run of trial 1")
            assert (run.trace, run.parent) == (submitted.trace, submitted.span)
            for phase in PHASES - {"run"}:
                span = receiver.find_span(f"{phase} of trial 1")
                assert (span.trace, span.parent) == (submitted.trace, run.span)
                assert submitted.started_ns <= span.started_ns <= span.ended_ns <= run.ended_ns
            assert f"parent 00-{run.trace}-{run.span}-0" in laptop.log(1)
            wait_until(lambda: "detcloud_slots" in receiver.metrics)
            laptop.replay(1)
