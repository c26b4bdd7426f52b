"""Traces and metrics of a deployed cluster, at a collector that decodes OTLP."""

import json
from pathlib import Path

import pytest

from tests.conftest import require
from tests.emulators.deployment import Account, running, stack
from tests.end_to_end.aws.cluster import POOLS
from tests.end_to_end.cluster_steps import POOL, SHORT, create, wait_for
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

require("opentelemetry.exporter.otlp.proto.http")

from tests.emulators.otlp_receiver import serve_otlp  # noqa: E402

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

PHASES = ("queue", "start", "first_step")


def test_trace_of_a_command_crosses_the_functions_to_the_first_step(
    company: Account, tmp_path: Path
) -> None:
    with serve_otlp() as receiver:
        headers = {"authorization": "Basic canary-79"}
        setting = json.dumps({"endpoint": receiver.url, "headers": headers})
        made = stack(company, "traced", POOLS, {"detcloud:telemetry": setting})
        with running(made) as cluster:
            wait_until(lambda: ("pools", POOL) in cluster.rows(), 60)
            variables = {"DETCLOUD_URL": cluster.url, "DETCLOUD_TOKEN": cluster.token}
            # The command sends its span without the key of the cluster.
            variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
            person = Laptop(tmp_path / "home", **variables)
            experiment = create(person, SHORT, tmp_path)
            trial = wait_for(cluster, person, experiment)["id"]
            names = {f"{phase} of trial {trial}" for phase in (*PHASES, "run")}
            wait_until(lambda: names <= {span.name for span in receiver.spans}, 90)
            submitted = receiver.find_span("detcloud create")
            run = receiver.find_span(f"run of trial {trial}")
            assert (run.trace, run.parent) == (submitted.trace, submitted.span)
            for phase in PHASES:
                span = receiver.find_span(f"{phase} of trial {trial}")
                assert (span.trace, span.parent) == (submitted.trace, run.span)
            assert run.resource["detcloud.cluster"] == "detcloud-traced"
            assert "detcloud_slots" in receiver.metrics
            sent = [
                request["authorization"]
                for request in receiver.headers
                if "authorization" in request
            ]
            assert set(sent) == {headers["authorization"]}
            # A collector that refuses fails no function.
            receiver.status = 500
            requests = len(receiver.requests)
            wait_until(lambda: len(receiver.requests) > requests, 90)
            assert cluster.logged_errors() == []
            logs = [line for name in ("tick", "api") for line in cluster.log_messages(name)]
            assert not [line for line in logs if "canary" in line]
