"""Signals to process groups."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from detcloud.launch.process_tree import kill_group
from tests.forked_process import await_exit_code, fork

NOBODY = 65534


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads no group, so that a signal to the group goes to the process itself."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def kill_as_nobody(pid: int) -> int:
    """Send SIGTERM to a group as another user, and return the exit code: 0 without an exception."""

    def kill() -> None:
        os.setuid(NOBODY)
        kill_group(pid, signal.SIGTERM)

    return await_exit_code(fork(kill))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_signal_to_a_process_of_another_user_does_nothing(
    sleeping: subprocess.Popen[bytes],
) -> None:
    assert kill_as_nobody(sleeping.pid) == 0
    assert sleeping.poll() is None


def test_signal_reaches_a_process_without_a_group(sleeping: subprocess.Popen[bytes]) -> None:
    kill_group(sleeping.pid, signal.SIGKILL)
    assert sleeping.wait() == -signal.SIGKILL
    kill_group(sleeping.pid, signal.SIGKILL)
