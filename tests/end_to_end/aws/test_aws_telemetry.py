"""Traces and metrics of a deployed cluster, at a collector that decodes OTLP."""

from pathlib import Path

import pytest

from tests.conftest import require
from tests.emulators.deployment import Account, running, stack
from tests.end_to_end.aws.cluster import POOLS
from tests.end_to_end.cluster_steps import POOL, SHORT, create, wait_for
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.telemetry_steps import (
    await_refused_export,
    check_trace_of_command,
    telemetry_setting,
)
from tests.patience import wait_until

require("opentelemetry.exporter.otlp.proto.http")

from tests.emulators.otlp_receiver import serve_otlp  # noqa: E402

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]


def test_trace_of_a_command_crosses_the_functions_to_the_first_step(
    company: Account, tmp_path: Path
) -> None:
    with serve_otlp() as receiver:
        made = stack(company, "traced", POOLS, telemetry_setting(receiver))
        with running(made) as cluster:
            wait_until(lambda: ("pools", POOL) in cluster.rows(), 60)
            variables = {"DETCLOUD_URL": cluster.url, "DETCLOUD_TOKEN": cluster.token}
            # The command sends its span without the key of the cluster.
            variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
            person = Laptop(tmp_path / "home", **variables)
            experiment = create(person, SHORT, tmp_path)
            trial = wait_for(cluster, person, experiment)["id"]
            check_trace_of_command(receiver, trial, "detcloud-traced")
            await_refused_export(receiver)
            # A collector that refuses fails no function.
            assert cluster.logged_errors() == []
            logs = [line for name in ("tick", "api") for line in cluster.log_messages(name)]
            assert not [line for line in logs if "canary" in line]
