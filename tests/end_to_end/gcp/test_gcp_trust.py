"""Trust in a cluster on Google Cloud: what an instance proves and holds, in the hands of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_plane.access.tokens import token_digest
from control_plane.fleet.records import instances_partition
from control_plane.state.table import Key
from detcloud.agent import join_token
from detcloud.agent.gcp.instance_identity import request_identity
from detcloud.agent.gcp.metadata import GceMetadata
from detcloud.agent.join_token import IdentityProof, IdentityRefused, obtain_join_token
from tests.emulators.gce.machine import Machine
from tests.emulators.gce.metadata import metadata_server
from tests.end_to_end.cluster_steps import (
    IMPATIENT,
    POOL,
    SHORT,
    running,
    status_of,
    wait_until,
)
from tests.end_to_end.gcp.cluster import create
from tests.end_to_end.instance_tokens import (
    Overheard,
    assigned_allocation,
    enrol,
    experiment_of,
    sync,
    user_requests,
)
from tests.end_to_end.laptop import Laptop

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

pytestmark = pytest.mark.nightly

OTHER_NAME = "detcloud-vision--vm-0123456789ab-012345-0"


@pytest.fixture
def machine(deployment: GcpDeployment, person: Laptop, tmp_path: Path) -> Iterator[Machine]:
    """One that was launched for work and runs nothing: the test speaks for it."""
    deployment.project.sleepers = 1
    experiment = create(deployment, person, SHORT, tmp_path)
    (launched,) = running(deployment)
    yield launched
    person.run("experiment", "kill", experiment)
    end(deployment, launched)


def end(deployment: GcpDeployment, machine: Machine) -> None:
    """A machine of the first pool switches itself off, and its cluster knows it."""
    deployment.project.shut_down(machine.name)
    row = Key(instances_partition(POOL), machine.name)
    wait_until(lambda: deployment.table.get(row) is None, 60, f"the end of {machine.name}")


def prove(deployment: GcpDeployment, host: str, kept: Path) -> str:
    """The join token in a file, proved by the metadata at `host`. Raises IdentityRefused."""
    metadata, cluster = GceMetadata(host), deployment.outputs["cluster"]

    def make_proof(digest: str) -> IdentityProof:
        return request_identity(cluster, digest, metadata)

    return obtain_join_token(kept, deployment.url, POOL, make_proof, lambda line: None)


def test_what_a_machine_has_is_good_for_it_alone_and_ends_with_it(
    deployment: GcpDeployment,
    person: Laptop,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_token, "Transport", Overheard)
    with metadata_server(deployment.machines.describe_metadata(machine)) as host:
        joins = prove(deployment, host, tmp_path / "join.token")
        proof = Overheard.bodies[-1]

        # Who saw the proof gains nothing by it: neither for a token of theirs, nor for another
        # name, nor where it is of another machine.
        with deployment.client("dct_nobodys") as thief:

            def send(name: str, **other: str) -> int:
                path = f"/instances/{name}/identity"
                return status_of(lambda: thief.put(path, {**proof, **other}))

            assert send(machine.name) == 200
            assert send(machine.name, token_sha256=token_digest("dct_the-thiefs")) == 403
            assert send(OTHER_NAME) == 403
        assert not alarms(deployment, machine)
        # Who reads the machine's metadata can prove a token of theirs: too late, and not unnoticed.
        with pytest.raises(IdentityRefused, match="has already proved its identity"):
            prove(deployment, host, tmp_path / "thiefs.token")
        assert len(alarms(deployment, machine)) == 1

    assert status_of(lambda: enrol(deployment, joins, OTHER_NAME, POOL)) == 403
    assert status_of(lambda: enrol(deployment, joins, machine.name, IMPATIENT)) == 403
    enrolled = enrol(deployment, joins, machine.name, POOL)
    with deployment.client(enrolled["token"]) as agent:
        assert set(map(status_of, user_requests(agent))) == {403}
        allocation = assigned_allocation(agent, enrolled)

        def keys(of: str) -> int:
            path = f"/agents/{machine.name}/storage-credentials"
            return status_of(lambda: agent.post(path, {"allocation": of}))

        assert (keys(allocation), keys("999.1")) == (200, 403)
        person.run("experiment", "kill", experiment_of(deployment))
        end(deployment, machine)
        wait_until(lambda: status_of(lambda: sync(agent, enrolled)) == 409, 10, "its lease's end")
        wait_until(lambda: keys(allocation) == 403, 10, "the end of what it may ask for")
    assert status_of(lambda: enrol(deployment, joins, machine.name, POOL)) == 403


def alarms(deployment: GcpDeployment, machine: Machine) -> list[object]:
    """Lines of the API's log for which its team is woken."""
    lines = deployment.log_lines("api")
    return [
        it["message"]
        for it in lines
        if it["severity"] == "CRITICAL" and machine.name in str(it["message"])
    ]
