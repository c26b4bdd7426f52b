"""The connection of a user's debugger: whole messages, and the ends of both sides."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from detcloud.launch.debugger_bridge import MESSAGE_BYTES_MAX, pack_message, read_message, serve
from detcloud.shared.debugger_place import bind_debugger
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX

REQUEST = {"seq": 1, "type": "request", "command": "threads"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\r\n",
        b"Content-Length: 5\r\n\r\n{}",
        b"Content-Length: -1\r\n\r\n{}",
        b"Content-Length: %d\r\n\r\n{}" % (MESSAGE_BYTES_MAX + 1),
        b"Host: x\r\n\r\n{}",
        b"x" * 5_000,
        b"A: b\r\n" * 1_000,
        b"cmd\t1\t2\n",
    ],
)
def test_parts_and_foreign_lines_are_no_messages(content: bytes) -> None:
    assert read_message(io.BytesIO(content)) == b""


def test_messages_pass_unchanged() -> None:
    first = b"content-length:  2\r\nX: y\r\n\r\n{}"
    stream = io.BytesIO(first + pack_message(REQUEST))
    assert read_message(stream) == first
    assert read_message(stream) == pack_message(REQUEST)
    assert read_message(stream) == b""


def test_end_of_the_user_disconnects_the_debugger(tmp_path: Path) -> None:
    user, agent = socket.socketpair()
    with user, agent, socket.socket(socket.AF_UNIX) as listener:
        bind_debugger(tmp_path, listener)
        listener.listen()
        bridge = threading.Thread(target=serve, args=(agent, tmp_path))
        bridge.start()
        trial, _ = listener.accept()
        with trial, trial.makefile("rb") as received:
            trial.settimeout(ANSWER_SECONDS_MAX)
            trial.sendall(b"anything")
            user.settimeout(ANSWER_SECONDS_MAX)
            assert user.recv(100) == b"anything"
            # The last message is not whole.
            user.sendall(pack_message(REQUEST) + pack_message(REQUEST)[:-1])
            user.close()
            assert read_message(received) == pack_message(REQUEST)
            last = json.loads(read_message(received).partition(b"\r\n\r\n")[2])
            assert last["command"] == "disconnect"
            assert last["arguments"] == {"terminateDebuggee": False}
            # The debugger leaves the connection open.
            bridge.join(PROCESS_SECONDS_MAX)
            assert not bridge.is_alive()


def test_trial_without_a_debugger_is_explained(tmp_path: Path) -> None:
    user, agent = socket.socketpair()
    with user, agent:
        command = [sys.executable, "-P", "-m", "detcloud.launch.debugger_bridge"]
        done = subprocess.run(
            command,
            stdin=agent.fileno(),
            stdout=agent.fileno(),
            env={"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
        agent.close()
        assert done.returncode == 1
        with user.makefile("rb") as stream:
            event = json.loads(read_message(stream).partition(b"\r\n\r\n")[2])
    assert event["event"] == "output"
    assert event["body"]["output"].startswith("The trial accepts no debugger now")
