"""Faulty and hostile entrypoints: each trial ends with a clear record, and harms no process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.agent.assignment.environment import shared_environment
from detcloud.agent.processes.fork_server import ForkServer
from detcloud.agent.slots import cpu_slots, threads_per_slot
from tests.integration.agent_process import alive
from tests.integration.trial_node import TrialNode, exit_record, log_text, report_lines
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

MIB = 1 << 20


@pytest.fixture(scope="module", params=["plain", "forked"])
def fork_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkServer | None]:
    """Run each test with a plain start and with a fork server."""
    if request.param == "plain":
        yield None
        return
    environment = shared_environment(os.environ, threads_per_slot(cpu_slots(1)))
    server = ForkServer(tmp_path_factory.mktemp("template"), environment, print)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("entrypoint", "program", "message"),
    [
        ("no_such_module:Trial", "", "there is no module 'no_such_module'"),
        ("model_def:NoSuch", "", "model_def has no 'NoSuch'"),
        ("model_def:Trial", "Trial = 3", "is of type int; expected a subclass"),
        ("model_def:Trial", "raise ValueError('a fish')", "ValueError: a fish"),
        ("model_def:Trial", "def broken(:", "SyntaxError"),
        ("model_def:Trial", "import os; os._exit(7)", "ended with exit code 7"),
        ("model_def:Trial", "import os; os._exit(0)", "exit code 0 and reported no exit"),
        ("model_def:Trial", "import os; os.abort()", "was ended by SIGABRT"),
        ("model_def:Trial", "import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("model_def:Trial", "raise SystemExit(3)", "SystemExit: 3"),
        ("model_def:Trial", "def f(): f()\nf()", "RecursionError"),
        ("model_def:Trial", "import no_such_package", "No module named 'no_such_package'"),
        ("no such command", "", "ended with exit code 127"),
        (["/no/such/command"], "", "cannot be started: [Errno 2]"),
        ("", "", "runs nothing"),
    ],
)
def test_failing_entrypoint_is_an_error_with_a_clear_message(
    tmp_path: Path, fork_server: ForkServer | None, entrypoint: object, program: str, message: str
) -> None:
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", {"model_def.py": program}, entrypoint=entrypoint)
    record = exit_record(allocation)
    assert record["reason"] == "errored"
    assert message in record["message"]


def test_hanging_trial_that_ignores_signals_is_killed(
    tmp_path: Path, fork_server: ForkServer | None
) -> None:
    program = """
import signal, os
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.write(1, b"ready\\n")
while True:
    pass
"""
    node = TrialNode(tmp_path, fork_server)
    allocation = node.begin("4.1", {"model_def.py": program})
    node.watch(allocation, lambda: log_text(allocation) == "ready\n")
    allocation.kill(100)
    node.watch(allocation)
    record = exit_record(allocation)
    assert (record["reason"], record["signal"]) == ("killed", signal.SIGKILL)


def test_flood_of_output_is_cut_and_the_end_is_kept(
    tmp_path: Path, fork_server: ForkServer | None
) -> None:
    # 64 MiB of lines against a limit of 1 MiB.
    program = """
import os, sys
line = b"x" * 1023 + b"\\n"
block = 64 * line
for _ in range(1024):
    left = memoryview(block)
    while left:
        left = left[os.write(1, left):]
os.write(2, b"the last words\\n")
sys.exit(3)
"""
    node = TrialNode(tmp_path, fork_server, log_bytes_max=MIB)
    allocation = node.run("4.1", {"model_def.py": program})
    log = allocation.directory.log.read_bytes()
    notice = b"[detcloud] the log has reached its limit of 1 MiB: only its end will follow\n"
    # The limit, the last 64 KiB and two notices.
    assert MIB + (64 << 10) < len(log) < MIB + (64 << 10) + 400
    assert log[MIB : MIB + len(notice)] == notice
    # 64 MiB and the 15 bytes of the last words, minus the limit and the kept end.
    left_out = 64 * MIB + 15 - MIB - (64 << 10)
    assert b"[detcloud] %d bytes of the log were left out here\n" % left_out in log
    assert log.endswith(b"the last words\n")
    assert (exit_record(allocation)["code"], exit_record(allocation)["reason"]) == (3, "errored")


def test_daemons_of_an_ended_trial_are_ended(
    tmp_path: Path, fork_server: ForkServer | None
) -> None:
    program = """
import os, signal, sys, time
begun, tell = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.write(1, b"%d\\n" % os.getpid())
            os.write(tell, b".")
            os.closerange(0, 3)
            time.sleep(600)
        os._exit(0)
for _ in range(3):
    os.read(begun, 1)
sys.exit(0)
"""
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", {"model_def.py": program})
    daemons = [int(line) for line in log_text(allocation).split()]
    assert len(daemons) == 3
    wait_until(lambda: not any(map(alive, daemons)))


def test_trial_with_closed_output_continues(tmp_path: Path, fork_server: ForkServer | None) -> None:
    program = """
import os, pathlib, sys
os.write(1, b"before\\n")
os.close(1)
try:
    print("nobody hears", flush=True)
except OSError as error:
    pathlib.Path("heard").write_text(str(error.errno))
os.close(2)
sys.exit(0)
"""
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", {"model_def.py": program})
    assert log_text(allocation) == "before\n"
    # EBADF
    assert (allocation.directory.code / "heard").read_text() == "9"
    assert exit_record(allocation)["code"] == 0


def test_exit_of_a_trial_that_deletes_all_folders_is_recorded(
    tmp_path: Path, fork_server: ForkServer | None
) -> None:
    program = """
import os, pathlib, shutil
home = pathlib.Path(os.environ["DETCLOUD_TRIAL_DIR"])
for name in ("in", "out", "code", "home"):
    shutil.rmtree(home / name)
os._exit(5)
"""
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", {"model_def.py": program})
    assert (exit_record(allocation)["code"], exit_record(allocation)["reason"]) == (5, "errored")
    assert report_lines(allocation) == []


def test_trial_under_a_limit_on_files_ends_with_an_error_and_a_record(
    tmp_path: Path, fork_server: ForkServer | None
) -> None:
    program = """
import pathlib, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
pathlib.Path("big").write_bytes(bytes(8192))
"""
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", {"model_def.py": program})
    assert "File too large" in exit_record(allocation)["message"]
    assert (allocation.directory.code / "big").stat().st_size == 4096


def test_immediate_exit_and_simultaneous_kill_are_recorded(
    tmp_path: Path, fork_server: ForkServer | None
) -> None:
    node = TrialNode(tmp_path, fork_server)
    allocation = node.begin("4.1", {"model_def.py": "import os; os._exit(0)"})
    allocation.kill(0)
    node.watch(allocation)
    assert exit_record(allocation)["reason"] in ("killed", "errored")
