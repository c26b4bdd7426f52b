"""The programs that listen on ports, in the kernel's tables and on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.agent.docker.control_groups import group_processes
from detcloud.agent.port_owners import Listener, are_owned, find_listeners

LISTEN = (
    "import socket, sys\n"
    "server = socket.create_server(('127.0.0.1', 0), reuse_port=True)\n"
    "print(server.getsockname()[1], flush=True)\n"
    "sys.stdin.read()\n"
)
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid inode\n"


def write_tables(proc: Path, tcp: str = "", tcp6: str = "") -> None:
    (proc / "net").mkdir(parents=True)
    (proc / "net" / "tcp").write_text(HEAD + tcp)
    (proc / "net" / "tcp6").write_text(HEAD + tcp6)


def line(address: str, port: int, state: str, inode: int) -> str:
    peer = "0" * len(address) + ":0000"
    return f"   0: {address}:{port:04X} {peer} {state} 0:0 00:0 0 0 0 {inode} 1 0\n"


@pytest.mark.skipif(sys.byteorder != "little", reason="the tables are of such a processor")
def test_listeners_are_found_by_port_and_state(tmp_path: Path) -> None:
    write_tables(
        tmp_path,
        line("0100007F", 80, "0A", 11)
        + line("0100007F", 80, "01", 12)
        + line("00000000", 81, "0A", 13)
        + line("0501A8C0", 80, "0A", 14)
        + "nonsense\n",
        line("0" * 32, 80, "0A", 15) + line("0" * 24 + "01000000", 80, "0A", 16),
    )
    assert find_listeners(80, tmp_path) == [
        Listener("127.0.0.1", 11),
        Listener("192.168.1.5", 14),
        Listener("::1", 15),
        Listener("::1", 16),
    ]
    assert find_listeners(81, tmp_path) == [Listener("127.0.0.1", 13)]
    assert find_listeners(82, tmp_path) == []


def test_system_without_tables_has_no_listeners(tmp_path: Path) -> None:
    assert find_listeners(80, tmp_path) == []


def test_every_listener_must_belong_to_the_processes(tmp_path: Path) -> None:
    for process, inode in ((1, 11), (2, 12)):
        folder = tmp_path / str(process) / "fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to(f"socket:[{inode}]")
        (folder / "4").symlink_to("/dev/null")
    first, second = Listener("127.0.0.1", 11), Listener("127.0.0.1", 12)
    assert are_owned([first], [1], tmp_path)
    assert are_owned([first, second], [1, 2, 3], tmp_path)
    assert not are_owned([first, second], [1], tmp_path)
    assert not are_owned([first], [2, 3], tmp_path)
    assert not are_owned([], [1], tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_own_and_foreign_programs_are_distinguished() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline())
        listeners = find_listeners(port)
        assert [listener.address for listener in listeners] == ["127.0.0.1"]
        assert are_owned(listeners, [program.pid])
        assert not are_owned(listeners, [os.getpid()])
        # A second program listens on the same port and would get a part of the connections.
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            assert not are_owned(find_listeners(port), [program.pid])
        program.communicate()
    assert not are_owned(listeners, [program.pid])


def write_group(proc: Path, process: int, text: str) -> None:
    (proc / str(process)).mkdir(parents=True)
    (proc / str(process) / "cgroup").write_text(text)


def test_processes_of_a_control_group(tmp_path: Path) -> None:
    write_group(tmp_path, 10, "0::/docker/a\n")
    write_group(tmp_path, 11, "0::/docker/a/below\n")
    write_group(tmp_path, 12, "0::/docker/ab\n")
    write_group(tmp_path, 13, "1:name=x:/other\n5:cpu,pids:/docker/b\n")
    write_group(tmp_path, 14, "0::/\n")
    assert sorted(group_processes(10, tmp_path)) == [10, 11]
    assert group_processes(13, tmp_path) == [13]
    assert group_processes(14, tmp_path) == []
    assert group_processes(99, tmp_path) == []
    assert group_processes(0, tmp_path) == []
