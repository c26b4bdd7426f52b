"""The output of a command in a container: frames, cut anywhere, and engines that refuse."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.agent.docker.engine import EngineClient, EngineError, EngineUnavailable
from detcloud.agent.docker.exec_stream import OutputFrames, start_module
from tests.patience import ANSWER_SECONDS_MAX, wait_until


def frame(stream: int, content: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4) + content


STREAM = frame(1, b"first") + frame(2, b"an error") + frame(1, b"") + frame(1, b"second")


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_output_survives_any_division_and_errors_are_dropped(cuts: list[int]) -> None:
    frames, before, found = OutputFrames(), 0, b""
    for cut in [*sorted(cuts), len(STREAM)]:
        found += b"".join(frames.feed(STREAM[before:cut]))
        before = max(before, cut)
    assert found == b"firstsecond"


class RefusingEngine:
    """An engine that starts no command."""

    def create_exec(self, name: str, command: object) -> str:
        raise EngineError(409, "the container is paused")

    def start_exec(self, identity: str) -> None:
        raise AssertionError("no command was created")


def test_refused_command_ends_the_socket_and_is_logged() -> None:
    lines: list[str] = []
    engine = cast("EngineClient", RefusingEngine())
    served = start_module(engine, "box", ("python3", "m"), lines.append)
    with served:
        served.settimeout(ANSWER_SECONDS_MAX)
        assert served.recv(1) == b""
    wait_until(lambda: lines == ["m could not be started in box: the container is paused"])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'HTTP/1.1 409 Conflict\r\n\r\n{"message": "not running"}', "not running"),
        (b"HTTP/1.1 101 UPG", "no complete head"),
        (b"x" * 200_000, "no complete head"),
    ],
)
def test_engine_that_does_not_upgrade_is_an_error(
    tmp_path: Path, answer: bytes, error: str
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        engine = EngineClient(str(path))
        engine._api_version = "1.44"
        with pytest.raises((EngineError, EngineUnavailable), match=error):
            engine.start_exec("e1")
