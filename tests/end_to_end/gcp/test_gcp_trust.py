"""Trust in a cluster on Google Cloud: proofs and tokens of an instance in the hands of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_plane.fleet.records import instances_partition
from control_plane.state.table import Key
from detcloud.agent.gcp.instance_identity import request_identity
from detcloud.agent.gcp.metadata import GceMetadata
from detcloud.agent.identity_proof import IdentityProof
from detcloud.agent.join_token import IdentityRefused, obtain_join_token
from tests.emulators.gce.machine import Machine
from tests.emulators.gce.metadata import metadata_server
from tests.end_to_end.cluster_steps import (
    POOL,
    SHORT,
    running,
    wait_until,
)
from tests.end_to_end.gcp.cluster import create
from tests.end_to_end.instance_tokens import Overheard, check_proof_scope, check_token_scope
from tests.end_to_end.laptop import Laptop

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

pytestmark = pytest.mark.nightly

OTHER_NAME = "detcloud-vision--vm-0123456789ab-012345-0"


@pytest.fixture
def machine(deployment: GcpDeployment, person: Laptop, tmp_path: Path) -> Iterator[Machine]:
    """Yield a launched machine without an agent; the test acts as the agent."""
    deployment.project.sleepers = 1
    experiment = create(deployment, person, SHORT, tmp_path)
    (launched,) = running(deployment)
    yield launched
    person.run("experiment", "kill", experiment)
    end(deployment, launched)


def end(deployment: GcpDeployment, machine: Machine) -> None:
    """Shut down a machine of the first pool, and wait until the cluster notices."""
    deployment.project.shut_down(machine.name)
    row = Key(instances_partition(POOL), machine.name)
    wait_until(lambda: deployment.table.get(row) is None, 60, f"the end of {machine.name}")


def prove(deployment: GcpDeployment, host: str, kept: Path) -> str:
    """Return the join token, after proving the machine's identity with the metadata at `host`.

    The token is stored in `kept`. Raises IdentityRefused.
    """
    metadata, cluster = GceMetadata(host), deployment.outputs["cluster"]

    def make_proof(digest: str) -> IdentityProof:
        return request_identity(cluster, digest, metadata)

    return obtain_join_token(
        kept, deployment.url, POOL, make_proof, lambda line: None, connect=Overheard
    )


def test_credentials_of_a_machine_are_not_transferable_and_expire_at_the_end(
    deployment: GcpDeployment,
    person: Laptop,
    machine: Machine,
    tmp_path: Path,
) -> None:
    with metadata_server(deployment.machines.describe_metadata(machine)) as host:
        joins = prove(deployment, host, tmp_path / "join.token")
        proof = Overheard.bodies[-1]

        check_proof_scope(deployment, proof, machine.name, OTHER_NAME)
        assert not alarms(deployment, machine)
        # A reader of the machine's metadata can prove a second token, but too late and with an
        # alarm.
        with pytest.raises(IdentityRefused, match="has already proved its identity"):
            prove(deployment, host, tmp_path / "thiefs.token")
        assert len(alarms(deployment, machine)) == 1

    check_token_scope(
        deployment, person, joins, machine.name, OTHER_NAME, lambda: end(deployment, machine)
    )


def alarms(deployment: GcpDeployment, machine: Machine) -> list[object]:
    """Return the lines of the API's log that alert the team."""
    lines = deployment.log_lines("api")
    return [
        line["message"]
        for line in lines
        if line["severity"] == "CRITICAL" and machine.name in str(line["message"])
    ]
