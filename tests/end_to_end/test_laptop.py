"""Tests leave no running process behind, even if killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.shared.processes import is_alive, read_process
from tests.end_to_end.laptop import ROOT
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# A test run: a process for the home in a new session, like a server.
TESTERS = """
import sys
from pathlib import Path
from tests.end_to_end.laptop import Laptop
laptop = Laptop(Path(sys.argv[1]) / "home")
laptop.shell(["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & echo $! > sleeper"])
print("begun", flush=True)
input()
"""


def test_processes_of_a_home_end_with_killed_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TESTERS, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as testers:
        assert testers.stdout is not None
        assert testers.stdout.readline() == b"begun\n"
        sleeper = read_process(int((tmp_path / "sleeper").read_text()))
        assert sleeper is not None
        testers.send_signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(sleeper))
