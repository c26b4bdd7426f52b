import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.rendezvous_port import PortTaken, replace_taken_port
from detcloud.launch.gang import CHANNEL_PORT_OFFSET
from detcloud.shared.ports import find_free_port, is_port_free


@pytest.fixture
def directory(tmp_path: Path) -> AllocationDirectory:
    allocation = AllocationDirectory(tmp_path, "4.1")
    allocation.create()
    return allocation


@pytest.fixture(params=["127.0.0.1", ""])
def taken_port(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.create_server((request.param, 0)) as other:
        yield other.getsockname()[1]


def test_trial_on_one_machine_gets_a_free_port(
    directory: AllocationDirectory, taken_port: int
) -> None:
    spec = {"rendezvous_port": taken_port, "nodes": 1, "node_rank": 0}
    replace_taken_port(spec, directory)
    assert spec["rendezvous_port"] != taken_port
    assert is_port_free(spec["rendezvous_port"])
    assert f"another program has port {taken_port}" in directory.log.read_text()


def test_free_port_is_kept(directory: AllocationDirectory) -> None:
    port = find_free_port()
    spec = {"rendezvous_port": port, "nodes": 1, "node_rank": 0}
    replace_taken_port(spec, directory)
    assert spec["rendezvous_port"] == port
    assert directory.log.read_text() == ""


@pytest.mark.parametrize("offset", [0, CHANNEL_PORT_OFFSET])
def test_first_of_several_machines_refuses_a_taken_port(
    directory: AllocationDirectory, taken_port: int, offset: int
) -> None:
    spec = {"rendezvous_port": taken_port + offset, "nodes": 2, "node_rank": 0}
    # Another program may have the other port at this moment.
    ports = f"{taken_port}|{taken_port + CHANNEL_PORT_OFFSET}|{taken_port + offset}"
    with pytest.raises(PortTaken, match=f"port ({ports}), at which"):
        replace_taken_port(spec, directory)


def test_other_machines_do_not_listen(directory: AllocationDirectory, taken_port: int) -> None:
    spec = {"rendezvous_port": taken_port, "nodes": 2, "node_rank": 1}
    replace_taken_port(spec, directory)
    assert spec["rendezvous_port"] == taken_port


def test_assignment_without_a_port_is_unchanged(directory: AllocationDirectory) -> None:
    spec: dict[str, object] = {"nodes": 1}
    replace_taken_port(spec, directory)
    assert spec == {"nodes": 1}
