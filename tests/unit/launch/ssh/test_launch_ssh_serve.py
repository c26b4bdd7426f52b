"""The first lines of an SSH server's connection, before any byte of SSH."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.launch.ssh.serve import serve
from detcloud.shared.ssh_greeting import GreetingFailed, encode_request, read_answer
from detcloud.shared.trial_packages import PackageMissing, TrialPackage
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX

KEY = f"ssh-ed25519 {'A' * 68}"


def test_invalid_first_line_is_answered_with_an_error() -> None:
    user, connection = socket.socketpair()
    with user, connection:
        user.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        user.shutdown(socket.SHUT_WR)
        assert serve(connection) == 1
        with pytest.raises(GreetingFailed, match="did not send its key"):
            read_answer(user.recv, print)


def test_missing_package_is_explained_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(package: TrialPackage, folder: Path, notify: object) -> None:
        assert folder == tmp_path / ".detcloud-ssh"
        raise PackageMissing("use another image")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(TrialPackage, "obtain", refuse)
    user, connection = socket.socketpair()
    with user, connection:
        user.sendall(encode_request(KEY))
        assert serve(connection) == 1
        with pytest.raises(GreetingFailed, match=r"^use another image$"):
            read_answer(user.recv, print)


@pytest.mark.parametrize("has_socket", [True, False])
def test_sockets_and_pipes_carry_the_lines(has_socket: bool) -> None:
    command = [sys.executable, "-P", "-m", "detcloud.launch.ssh.serve"]
    if has_socket:
        user, program = socket.socketpair()
        with user, program:
            process = subprocess.Popen(command, stdin=program.fileno(), stdout=program.fileno())
            program.close()
            user.settimeout(ANSWER_SECONDS_MAX)
            user.sendall(b"{}\n")
            answer = user.makefile("rb").read()
            assert process.wait(PROCESS_SECONDS_MAX) == 1
    else:
        done = subprocess.run(
            command,
            input=b"{}\n",
            stdout=subprocess.PIPE,
            timeout=PROCESS_SECONDS_MAX,
            env=os.environ,
        )
        answer = done.stdout
    assert b"invalid key" in answer
    assert answer.count(b"\n") == 1
