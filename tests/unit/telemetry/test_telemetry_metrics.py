"""The metrics of the cluster at a collector."""

import subprocess
import sys

import pytest

from control_plane.monitoring.families import FAMILIES
from control_plane.telemetry.endpoint import PACKAGES
from control_plane.telemetry.exports import export_telemetry
from tests.emulators.otlp_receiver import OtlpReceiver
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster


def test_collector_gets_the_metrics_of_prometheus(cluster: Cluster, receiver: OtlpReceiver) -> None:
    cluster.create(CONFIG)
    Agent(cluster)
    export_telemetry(cluster.services, {})
    assert receiver.requests == ["/v1/metrics"]
    assert receiver.metrics.keys() <= {family.name for family in FAMILIES}
    slots = receiver.metrics["detcloud_slots"]
    assert slots[("pool", "default"), ("state", "used")] == 2
    assert receiver.metrics["detcloud_experiments_submitted_total"] == {(): 1}
    counters = {family.name for family in FAMILIES if family.kind == "counter"}
    assert receiver.monotonic == counters


def test_missing_packages_are_logged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "control_plane.telemetry.span_export", None)
    export_telemetry(cluster.services, {})
    assert PACKAGES in caplog.text


def test_start_of_a_cluster_without_a_collector_imports_no_opentelemetry() -> None:
    script = (
        "import sys, lambdas.builder, lambdas.tick_steps, control_plane.telemetry.exports, "
        "detcloud.cli.commands.create\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=True,
    )
    assert printed.stdout == "[]\n"
