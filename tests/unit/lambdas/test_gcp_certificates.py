"""Functions on Google Cloud verify instances with certificates from a configured URL."""

import pytest

from control_plane.agents.identity import Proof
from tests.conftest import require
from tests.emulators.gce.metadata import MachineMetadata
from tests.emulators.google_keys import GoogleKeys, certificate_server

CLUSTER, DIGEST = "detcloud-vision", "d" * 64


def test_verifier_reads_certificates_from_the_configured_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require("google.auth")
    from lambdas.gcp.adapters import GcpAdapters

    machine = MachineMetadata("detcloud-vision-a1b2", GoogleKeys())
    monkeypatch.setenv("DETCLOUD_CLUSTER", CLUSTER)
    monkeypatch.setenv("DETCLOUD_PROJECT", machine.project)
    monkeypatch.setenv("DETCLOUD_INSTANCE_ACCOUNT", machine.account)
    token = machine.keys.sign(machine.claims(f"detcloud/{CLUSTER}/{DIGEST}"))
    with certificate_server(machine.keys) as url:
        monkeypatch.setenv("DETCLOUD_CERTIFICATES_URL", url)
        verifier = GcpAdapters().find_verifier("gcp")
        assert verifier is not None
        assert (
            verifier.verify_proof(Proof(DIGEST, {"identity_token": token}, "")).id == machine.name
        )
    assert machine.keys.requests == 1
