"""A deployed cluster for all tests of this folder, in an account with enforced permissions."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from infra.aws.bundle import EXTRAS, TARGETS, build_archive
from tests.conftest import require_installed
from tests.emulators.deployment import Account, Deployment, account, running, stack
from tests.emulators.ec2.machine import Machine
from tests.emulators.machine_network import MachineNetwork
from tests.emulators.ministack import ministack
from tests.end_to_end.aws.cluster import POOLS, end
from tests.end_to_end.cluster_steps import POOL, SHORT, create, wait_until
from tests.end_to_end.cluster_steps import running as instances
from tests.end_to_end.laptop import Laptop


@pytest.fixture(scope="package")
def archives(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    """Build the archives of the functions; return the archives by kind.

    Only nightly tests need suggestions, whose archive takes as long as the rest of a deployment;
    other runs use the common archive.
    """
    folder = tmp_path_factory.mktemp("functions")
    is_night = any(item.get_closest_marker("nightly") for item in request.session.items)
    kinds = EXTRAS if is_night else ("functions",)
    built = {kind: build_archive(TARGETS["emulator"], folder, kind) for kind in kinds}
    return {kind: built.get(kind, built["functions"]) for kind in EXTRAS}


@pytest.fixture(scope="package")
def company(
    archives: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Account]:
    """Yield an account for these tests alone, which avoids collisions of names."""
    require_installed("torch")
    require_installed("sklearn")
    folder = tmp_path_factory.mktemp("company")
    with ministack(folder, enforces_iam=True) as aws, account(aws, archives, folder) as made:
        yield made


@pytest.fixture(scope="package")
def deployment(company: Account) -> Iterator[Deployment]:
    with running(stack(company, "vision", POOLS)) as cluster:
        wait_until(lambda: ("pools", POOL) in cluster.rows(), 60, "the configuration in force")
        yield cluster


@pytest.fixture
def person(deployment: Deployment, tmp_path: Path) -> Laptop:
    """Return the home of a user with the `detcloud` command and the administrator's token."""
    variables = {"DETCLOUD_URL": deployment.url, "DETCLOUD_TOKEN": deployment.token}
    return Laptop(tmp_path / "home", **variables)


@pytest.fixture
def instance(deployment: Deployment, person: Laptop, tmp_path: Path) -> Iterator[Machine]:
    """Yield a launched instance without an agent; the test acts as the agent."""
    deployment.account.ec2.region.sleepers = 1
    experiment = create(person, SHORT, tmp_path)
    (machine,) = instances(deployment)
    yield machine
    person.run("experiment", "kill", experiment)
    end(deployment, machine)


@pytest.fixture
def closed_network(deployment: Deployment) -> Iterator[MachineNetwork]:
    """Boot all machines of a test with firewalls that drop connections to the machines."""
    account = deployment.account
    with account.machines.closed_network((account.aws.url, account.ec2.url)) as network:
        yield network


@pytest.fixture(autouse=True)
def restore_cluster(deployment: Deployment) -> Iterator[None]:
    """Remove all instances and faults of the cloud before the next test."""
    yield
    region, tables = deployment.account.ec2.region, deployment.account.tables
    tables.refused_of = tables.lost_of = 0
    region.capacity.clear()
    region.sleepers = 0
    for mapping in deployment.pump.mappings.values():
        mapping.lag_seconds, mapping.repeats = 0.0, 0
    wait_until(lambda: not deployment.billed_instances(), 90, "no instance without work")
