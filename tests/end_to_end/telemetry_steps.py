"""Steps with a collector that the deployed clusters of all clouds have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.patience import wait_until

if TYPE_CHECKING:
    from tests.emulators.otlp_receiver import OtlpReceiver

KEY: Final = "Basic canary-79"
PHASES: Final = ("queue", "start", "first_step")


def telemetry_setting(receiver: OtlpReceiver) -> dict[str, str]:
    """Return the setting of a stack that sends to the collector, with a key in the headers."""
    setting = {"endpoint": receiver.url, "headers": {"authorization": KEY}}
    return {"detcloud:telemetry": json.dumps(setting)}


def check_trace_of_command(receiver: OtlpReceiver, trial: int, cluster_id: str) -> None:
    """Wait for the spans of the trial's run, and check that `detcloud create` is the parent.

    The cluster's metrics and its key must have arrived as well.
    """
    names = {f"{phase} of trial {trial}" for phase in (*PHASES, "run")}
    wait_until(lambda: names <= {span.name for span in receiver.spans}, 90)
    submitted = receiver.find_span("detcloud create")
    run = receiver.find_span(f"run of trial {trial}")
    assert (run.trace, run.parent) == (submitted.trace, submitted.span)
    for phase in PHASES:
        span = receiver.find_span(f"{phase} of trial {trial}")
        assert (span.trace, span.parent) == (submitted.trace, run.span)
        assert span.attributes["detcloud.trial"] == trial
        assert span.attributes["detcloud.phase"] == phase
    assert run.resource["detcloud.cluster"] == cluster_id
    assert "detcloud_slots" in receiver.metrics
    sent = {request["authorization"] for request in receiver.headers if "authorization" in request}
    assert sent == {KEY}


def await_exports(receiver: OtlpReceiver) -> None:
    """Wait until a tick has exported all spans that are stored at present.

    A tick that already exports may have read the spans before.
    """
    before = receiver.requests.count("/v1/metrics")
    wait_until(lambda: receiver.requests.count("/v1/metrics") >= before + 2, 90)


def await_refused_export(receiver: OtlpReceiver) -> None:
    """Let the collector refuse, and wait for the next request."""
    receiver.status = 500
    requests = len(receiver.requests)
    wait_until(lambda: len(receiver.requests) > requests, 90)
