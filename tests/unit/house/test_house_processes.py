import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.shared.processes import read_process
from tests.left_processes import no_process_left
from tests.patience import PROCESS_SECONDS_MAX, wait_until

SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
# Forks a process, prints the process id and exits, so that init inherits the process.
LEAVER = [sys.executable, "-I", "-S", "-c", (
    "import os, signal, sys\n"
    "pid = os.fork()\n"
    "if not pid:\n"
    "    os.setsid()\n"
    "    os.close(1)\n"
    "    os.execv(sys.argv[1], sys.argv[1:])\n"
    "print(pid)"
), *SLEEPER]  # fmt: skip


def test_ended_processes_pass_the_guard(tmp_path: Path) -> None:
    with no_process_left(tmp_path):
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)


def test_remaining_child_is_reported_and_killed(tmp_path: Path) -> None:
    began: list[subprocess.Popen[bytes]] = []

    def leave_child() -> int:
        began.append(subprocess.Popen(SLEEPER, env={}, start_new_session=True))
        return began[0].pid

    pid, message = guard(tmp_path, leave_child)
    assert began[0].wait(PROCESS_SECONDS_MAX) == -signal.SIGKILL
    assert f"{pid}: {' '.join(SLEEPER)}" in message


@pytest.mark.parametrize("by_folder", [False, True])
def test_orphaned_process_is_found_by_environment_or_folder(
    tmp_path: Path, by_folder: bool
) -> None:
    def leave_grandchild() -> int:
        environment = {"HOME": str(tmp_path / "home")} if by_folder else None
        return int(subprocess.check_output(LEAVER, env=environment, timeout=PROCESS_SECONDS_MAX))

    pid, message = guard(tmp_path, leave_grandchild)
    wait_until(lambda: read_process(pid) is None)
    assert f"{pid}: {' '.join(SLEEPER)}" in message
    assert by_folder or "test_orphaned_process" in message


def test_earlier_process_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER) as earlier:
        with no_process_left(tmp_path):
            pass
        assert earlier.poll() is None
        earlier.kill()


def test_process_of_another_run_is_not_killed(tmp_path: Path) -> None:
    """Pytest numbers the folders of runs, so that the name of a folder may begin like another."""
    environment = {"HOME": str(tmp_path / "pytest-96" / "home")}
    with no_process_left(tmp_path / "pytest-9", seconds=0.0):
        left = subprocess.check_output(LEAVER, env=environment, timeout=PROCESS_SECONDS_MAX)
    process = read_process(int(left))
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


def guard(folder: Path, leave_process: Callable[[], int]) -> tuple[int, str]:
    """Return the id of a process left within a guard, and the guard's message."""
    pid = 0
    try:
        with no_process_left(folder, seconds=0.0):
            pid = leave_process()
            wait_until(lambda: is_sleeper(pid))
    except AssertionError as error:
        return pid, str(error)
    pytest.fail("the guard found nothing")


def is_sleeper(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.command == " ".join(SLEEPER)
