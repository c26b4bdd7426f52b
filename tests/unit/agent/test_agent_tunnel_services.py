"""The services of an allocation: the location file, read without following the trial's links."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import cast

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.node import Node
from detcloud.agent.tunnel_services import (
    SERVERS_MAX,
    TunnelServices,
    read_location,
)
from detcloud.shared.tunnel.multiplexer import ResetReason
from detcloud.shared.tunnel.services import LOCATION_BYTES_MAX
from tests.unit.relay.tunnel_ends import receive_exactly

CONTENT = b'{"port": 1, "token": "secret"}'


class OneAllocation:
    """A node on which only the allocation 3.1 runs."""

    def __init__(self, directory: AllocationDirectory) -> None:
        self.directory = directory

    def active_directory(self, name: str) -> AllocationDirectory | None:
        return self.directory if name == "3.1" else None

    def spawn(self, name: str, module: str) -> socket.socket | None:
        if name != "3.1":
            return None
        served, program = socket.socketpair()
        with program:
            program.sendall(module.encode())
        return served


@pytest.fixture
def directory(tmp_path: Path) -> AllocationDirectory:
    directory = AllocationDirectory(tmp_path / "allocations", "3.1")
    directory.create()
    return directory


@pytest.fixture
def node(directory: AllocationDirectory) -> Node:
    return cast("Node", OneAllocation(directory))


def test_location_is_sent_with_an_end(node: Node, directory: AllocationDirectory) -> None:
    (directory.home / "shell.json").write_bytes(CONTENT)
    served = TunnelServices(node).open("3.1", "location")
    assert not isinstance(served, ResetReason)
    with served:
        assert receive_exactly(served, LOCATION_BYTES_MAX) == CONTENT


def test_notebook_comes_before_a_shell(directory: AllocationDirectory) -> None:
    (directory.home / "shell.json").write_bytes(b"{}")
    (directory.home / "notebook.json").write_bytes(CONTENT)
    assert read_location(directory) == CONTENT


def test_ssh_is_a_new_server_in_the_allocation(node: Node) -> None:
    served = TunnelServices(node).open("3.1", "ssh")
    assert not isinstance(served, ResetReason)
    with served:
        assert receive_exactly(served, 100) == b"detcloud.launch.ssh.serve"


def test_servers_of_an_allocation_are_limited(node: Node) -> None:
    services = TunnelServices(node)
    opened = [services.open("3.1", "ssh") for _ in range(SERVERS_MAX)]
    assert services.open("3.1", "ssh") is ResetReason.NO_ROOM
    assert not isinstance(opened[7], ResetReason)
    opened[7].close()
    opened[7] = services.open("3.1", "ssh")
    for one in opened:
        assert not isinstance(one, ResetReason)
        one.close()


def test_starting_allocation_has_no_server_yet(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(name: str, module: str) -> socket.socket:
        raise FileNotFoundError("no launch")

    monkeypatch.setattr(node, "spawn", spawn)
    assert TunnelServices(node).open("3.1", "ssh") is ResetReason.NOT_READY


@pytest.mark.parametrize(
    ("allocation", "service", "reason"),
    [
        ("4.1", "ssh", ResetReason.NOT_READY),
        ("3.1", "location", ResetReason.NOT_READY),
        ("4.1", "location", ResetReason.NOT_READY),
        ("3.1", "newer", ResetReason.UNKNOWN_SERVICE),
        ("4.1", "newer", ResetReason.UNKNOWN_SERVICE),
    ],
)
def test_service_is_refused(node: Node, allocation: str, service: str, reason: object) -> None:
    assert TunnelServices(node).open(allocation, service) is reason


def test_links_are_not_followed(directory: AllocationDirectory, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(CONTENT)
    place = directory.home / "shell.json"
    place.symlink_to(foreign)
    assert read_location(directory) is None
    place.unlink()
    os.link(foreign, place)
    assert read_location(directory) is None
    foreign.unlink()
    assert read_location(directory) == CONTENT


def test_home_that_is_a_link_is_not_followed(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    directory.home.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "shell.json").write_bytes(CONTENT)
    directory.home.symlink_to(tmp_path / "elsewhere")
    assert read_location(directory) is None


def test_pipe_folder_and_large_file_are_no_location(directory: AllocationDirectory) -> None:
    place = directory.home / "shell.json"
    os.mkfifo(place)
    assert read_location(directory) is None
    place.unlink()
    place.mkdir()
    assert read_location(directory) is None
    place.rmdir()
    place.write_bytes(b"x" * LOCATION_BYTES_MAX)
    assert read_location(directory) == b"x" * LOCATION_BYTES_MAX
    place.write_bytes(b"x" * (LOCATION_BYTES_MAX + 1))
    assert read_location(directory) is None


def test_file_of_another_user_is_no_location(tmp_path: Path) -> None:
    owner = os.getuid() + 1, os.getgid()
    directory = AllocationDirectory(tmp_path / "allocations", "3.1", owner)
    directory.create()
    (directory.home / "shell.json").write_bytes(CONTENT)
    assert read_location(directory) is None


def test_folder_is_a_new_server_in_the_allocation(node: Node) -> None:
    served = TunnelServices(node).open("3.1", "folder")
    assert not isinstance(served, ResetReason)
    with served:
        assert receive_exactly(served, 100) == b"detcloud.launch.folder_server"
