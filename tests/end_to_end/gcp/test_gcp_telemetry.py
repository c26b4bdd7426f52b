"""Traces and metrics of a cluster on Google Cloud, at a collector that decodes OTLP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import require
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.google_front import google_front
from tests.end_to_end.cluster_steps import SHORT, wait_for, wait_until
from tests.end_to_end.gcp.cluster import POOLS, create
from tests.end_to_end.gcp.conftest import FUNCTIONS
from tests.end_to_end.gcp.permissions import refused_uses
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.telemetry_steps import (
    await_exports,
    await_refused_export,
    check_trace_of_command,
    telemetry_setting,
)

require("opentelemetry.exporter.otlp.proto.http")

from tests.emulators.otlp_receiver import serve_otlp  # noqa: E402

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]


def test_trace_of_a_command_crosses_googles_front_and_the_functions_to_the_first_step(
    firestore: Firestore, gcs_server: FakeGcs, tmp_path: Path
) -> None:
    from tests.emulators.deployment_gcp import deployment, running

    with serve_otlp() as receiver:
        made_of = (firestore, gcs_server, tmp_path / "gcp", "traced", POOLS, FUNCTIONS)
        (tmp_path / "gcp").mkdir()
        with (
            deployment(*made_of, telemetry_setting(receiver)) as made,
            running(made),
            google_front(made.url) as url,
        ):
            wait_until(lambda: bool(made.table.query("pools", " ", "~").rows), 60, "the pools")
            variables = {"DETCLOUD_URL": url, "DETCLOUD_TOKEN": made.token}
            # The command sends its span without the key of the cluster.
            variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
            person = Laptop(tmp_path / "home", **variables)
            traced = create(made, person, SHORT, tmp_path)
            trial = wait_for(made, person, traced)["id"]
            check_trace_of_command(receiver, trial, "detcloud-traced")
            # A submission without a collector has no trace, although Google's front adds a trace.
            untraced = Laptop(tmp_path / "other", DETCLOUD_URL=url, DETCLOUD_TOKEN=made.token)
            other = wait_for(made, untraced, create(made, untraced, SHORT, tmp_path))["id"]
            await_exports(receiver)
            assert not [span for span in receiver.spans if span.name.endswith(f"trial {other}")]
            await_refused_export(receiver)
            # A collector that refuses fails no function.
            assert made.logged_errors() == []
            logs = [json.dumps(line) for name in FUNCTIONS for line in made.log_lines(name)]
            assert not [line for line in logs if "canary" in line]
            assert refused_uses(made) == []
