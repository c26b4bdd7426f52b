"""A Compute Engine instance from the startup script to the notice, with a cluster's real API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.agents.agent_code import agent_code
from control_plane.fleet.notices import read_notices
from control_plane.fleet.records import InstanceRow, InstanceState, IntentRow, Market, Offering
from control_plane.gcp.google_certificates import GoogleCertificates
from control_plane.gcp.instance_identity import GoogleIdentityVerifier
from lambdas.gcp.boot import startup_script
from tests.emulators.booted_disks import Disks
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys, certificate_server
from tests.hostile.live_server import Live
from tests.patience import wait_until
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, build_cluster, put_instance
from tests.unit.api.exchange import call

pytestmark = pytest.mark.end_to_end

OFFERING = Offering("n1/a/spot", "n1-standard-4", "us-central1-a", Market.SPOT, 1)


@pytest.fixture
def machine() -> MachineMetadata:
    return MachineMetadata("detcloud-vision-a1b2", GoogleKeys())


@pytest.fixture
def cluster(machine: MachineMetadata, tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster that has launched the machine."""
    with certificate_server(machine.keys) as certificates:
        verifier = GoogleIdentityVerifier(
            "cluster-1", machine.project, machine.account, GoogleCertificates(certificates)
        )
        made = build_cluster(tmp_path / "cluster", verifiers={"gcp": verifier})
        row = InstanceRow(machine.name, "default", OFFERING, InstanceState.STARTING, NOW_MS, "i-1")
        row = replace(row, uid=str(machine.numeric_id), zone=machine.zone)
        put_instance(made, row, "gcp")
        yield made


class QuietFiles(SimpleHTTPRequestHandler):
    """The files of a folder."""

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def code_place(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / agent_code().sha256).write_bytes(agent_code().content)
    handler = partial(QuietFiles, directory=str(tmp_path / "bucket"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_machine_proves_identity_joins_and_reports_the_end(
    machine: MachineMetadata, cluster: Cluster, code_place: str, tmp_path: Path
) -> None:
    with ExitStack() as cleanup:
        live = Live(cluster)
        live.start()
        cleanup.callback(live.stop)
        host = cleanup.enter_context(metadata_server(machine))
        disks = Disks(tmp_path / "disks", {})
        cleanup.callback(disks.kill, machine.name)
        section = '{"cpu_slots_allowed": true}'
        launch = IntentRow("i-1", "cluster-1", "default", OFFERING, 1, "t" * 40, 1_000, section)
        make = startup_script(f"http://127.0.0.1:{live.port}", "cluster-1", code_place)
        # The script ends after the agent's first answer from the cluster.
        is_on = disks.boot(machine.name, make(launch), {"GCE_METADATA_HOST": host})
        assert is_on, disks.log(machine.name)
        answer = call(cluster.app, "GET", f"{V1}/agents", token=TOKENS[Role.ADMIN])
        [agent] = answer.json["items"]
        assert (agent["name"], agent["resource_pool"]) == (machine.name, "default")
        assert len(agent["slots"]) == 1
        machine.set_preempted()
        notice = wait_until(lambda: next(iter(read_notices(cluster.services.table)), None))
        assert notice is not None
        assert notice.instance == machine.name
        assert notice.deadline_ms is not None
