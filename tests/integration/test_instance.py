"""What user code can reach on an instance: the boot script's own units, on real networks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.emulators.docker_engine import IMAGE, DockerEngine, docker_engine, machine_mounts
from tests.emulators.instance import (
    AGENT_UID,
    FETCH,
    INSTANCE_ID,
    METADATA,
    TRIAL_UID,
    Instance,
    instance,
)

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with instance(tmp_path_factory.mktemp("instance")) as made:
        # Or nothing that is closed below would prove anything.
        reached = [made.fetched(url, TRIAL_UID) for url in METADATA]
        reached += [made.fetched(url, place="guest") for url in METADATA]
        assert reached == [INSTANCE_ID] * 4
        made.start("detcloud-firewall")
        yield made


@pytest.fixture(scope="module")
def bridged(machine: Instance) -> Iterator[DockerEngine]:
    """Docker begins after the firewall, as the units say, and has rules of its own."""
    with docker_engine(machine.inside(), flags=()) as started:
        yield started


@pytest.mark.parametrize("url", METADATA)
def test_the_agent_alone_reaches_the_metadata(machine: Instance, url: str) -> None:
    assert machine.fetched(url, AGENT_UID) == INSTANCE_ID
    assert machine.fetched(url, TRIAL_UID) == "nothing"
    assert machine.fetched(url, 0) == "nothing"


@pytest.mark.parametrize("url", METADATA)
def test_nothing_is_forwarded_to_the_metadata(machine: Instance, url: str) -> None:
    assert machine.fetched(url, place="guest") == "nothing"


def test_a_container_on_a_bridge_does_not_either(machine: Instance, bridged: DockerEngine) -> None:
    mounts = [f"--volume={it['host_path']}:{it['host_path']}:ro" for it in machine_mounts()]
    fetch = [IMAGE, sys.executable, "-I", "-S", "-c", FETCH]
    cloud = "http://10.97.0.1/instance-id"
    found = [bridged.docker("run", "--rm", *mounts, *fetch, url) for url in (cloud, METADATA[0])]
    assert found == [f"{INSTANCE_ID}\n", "nothing\n"]
