"""A cluster on Google Cloud's emulators for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require, require_installed
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.machine_network import MachineNetwork
from tests.end_to_end.cluster_steps import wait_until
from tests.end_to_end.gcp.cluster import PHOTOS, POOLS, SCRATCH
from tests.end_to_end.gcp.permissions import refused_uses
from tests.end_to_end.laptop import Laptop

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment


# The functions of a cluster without model-based searches.
FUNCTIONS = ("api", "advance", "tick", "wake", "checkpoint_gc")


@pytest.fixture(scope="package")
def deployment(
    request: pytest.FixtureRequest,
    firestore: Firestore,
    gcs_server: FakeGcs,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GcpDeployment]:
    """Yield a cluster with an applied configuration.

    Only nightly tests need suggestions and the relay of tunnels.
    """
    for package in ("pulumi_gcp", "cryptography"):
        require(package)
    for package in ("torch", "sklearn"):
        require_installed(package)
    from tests.emulators.deployment_gcp import deployment, running

    folder = tmp_path_factory.mktemp("gcp")
    is_night = any(item.get_closest_marker("nightly") for item in request.session.items)
    functions = (*FUNCTIONS, "suggest", "relay") if is_night else FUNCTIONS
    data = {"detcloud:dataBuckets": json.dumps({PHOTOS: "read", SCRATCH: "read-write"})}
    for place in (PHOTOS, SCRATCH):
        gcs_server.new_bucket(place.partition("/")[0])
    made_of = (firestore, gcs_server, folder, "vision", POOLS, functions, data)
    with deployment(*made_of) as made, running(made):
        wait_until(lambda: bool(made.table.query("pools", " ", "~").rows), 60, "the configuration")
        yield made


@pytest.fixture
def person(deployment: GcpDeployment, tmp_path: Path) -> Laptop:
    """Return the home of a user with the `detcloud` command and the administrator's token."""
    variables = {"DETCLOUD_URL": deployment.url, "DETCLOUD_TOKEN": deployment.token}
    return Laptop(tmp_path / "home", **variables)


@pytest.fixture
def closed_network(deployment: GcpDeployment) -> Iterator[MachineNetwork]:
    """Boot all machines of a test with firewalls that drop connections to the machines."""
    functions = deployment.functions
    # The stores at the addresses that the functions know: each function has a separate address.
    stores = [given["STORAGE_EMULATOR_HOST"] for given in functions.environments.values()]
    urls = (*functions.urls.values(), *stores, deployment.storage)
    with deployment.machines.closed_network(urls) as network:
        yield network


@pytest.fixture(autouse=True)
def restore_cluster(deployment: GcpDeployment) -> Iterator[None]:
    """Remove all instances and faults of the cloud before the next test."""
    yield
    project, events = deployment.project, deployment.events
    events.faults.refused_of = events.faults.lost_of = 0
    for trigger in events.triggers.values():
        trigger.lag_seconds, trigger.repeats = 0.0, 0
    project.capacity.clear()
    project.sleepers, project.late = 0, False
    wait_until(lambda: not deployment.billed_instances(), 90, "no instance without work")
    # Google would have allowed each call of the functions, and the emulators served each request.
    assert refused_uses(deployment) == []
    assert deployment.permissions.unserved == []
