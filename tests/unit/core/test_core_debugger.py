"""The wait of rank 0 for a debugger, with debugpy in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detcloud.core import debugger
from detcloud.core.debugger import await_debugger
from detcloud.launch.debugger_bridge import serve
from detcloud.shared.debugger_place import FOLDER
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import TrialDirectory
from detcloud.shared.trial_packages import PackageMissing
from tests.conftest import require_installed
from tests.debug_client import DebugClient
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports

SCRIPT = """
import os
from detcloud import core

def work(number):
    doubled = 2 * number
    return doubled

with core.init() as context:
    print("result", work(21))
    child = os.fork()
    if child == 0:
        # A breakpoint would stop this process for ever.
        os._exit(work(3))
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("result", work(4))
"""
BREAKPOINT = 7


def config(**settings: object) -> dict[str, Any]:
    return {"debugger": {"enabled": True, "attach_timeout": 1800, **settings}}


@contextmanager
def attached_client(home: Path) -> Iterator[DebugClient]:
    """A client at the user's end of a bridge."""
    user, agent = socket.socketpair()
    bridge = threading.Thread(target=serve, args=(agent, home))
    bridge.start()
    try:
        with DebugClient(user) as client:
            yield client
    finally:
        bridge.join(PROCESS_SECONDS_MAX)
        agent.close()
    assert not bridge.is_alive()


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    return make_trial(tmp_path, config=config())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a path that is too long for the address of a socket."""
    home = tmp_path / ("long" * 30) / "home"
    home.mkdir(parents=True)
    return home


@pytest.fixture
def running(trial: Path, home: Path) -> Iterator[subprocess.Popen[str]]:
    """The script as rank 0 of the trial, which waits for a debugger."""
    require_installed("debugpy")
    (trial / "code").mkdir()
    (trial / "code" / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=trial / "code",
        env={**os.environ, "HOME": str(home), "DETCLOUD_TRIAL_DIR": str(trial)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "rank 0 waits for a debugger, at most 1800 s" in line, line + process.stdout.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_debugger_stops_the_program_and_may_come_back(
    running: subprocess.Popen[str], trial: Path, home: Path, tmp_path: Path
) -> None:
    code, local = trial / "code", tmp_path / "model_dir"
    (place,) = [line["debugger"] for line in reports(trial, "environment")]
    assert place == {"allocation": "4.1", "folder": str(code)}
    # Other users of the machine can reach neither the file nor a port.
    assert (home / FOLDER).stat().st_mode & 0o777 == 0o700
    with attached_client(home) as client:
        client.attach(local, code, {"train.py": [BREAKPOINT]})
        thread = client.wait_for_stop()
        assert client.evaluate(thread, "doubled") == "42"
        # The user's machine disappears, and the program continues without its breakpoint.
    assert running.stdout is not None
    rest = running.stdout.read()
    assert running.wait(PROCESS_SECONDS_MAX) == 0
    assert rest.splitlines() == [
        "[detcloud] a debugger is attached",
        *("result 42", "child 6", "result 8"),
    ]
    last = reports(trial, "environment")[-1]["debugger"]
    assert last == {"allocation": "4.1", "folder": str(code)}


def test_second_debugger_attaches_after_the_first(
    running: subprocess.Popen[str], trial: Path, home: Path
) -> None:
    code = trial / "code"
    with attached_client(home) as client:
        client.request("initialize", adapterID="debugpy")
    with attached_client(home) as client:
        client.attach(code, code, {"train.py": [BREAKPOINT]})
        for number, value in (("21", "42"), ("4", "8")):
            thread = client.wait_for_stop()
            assert client.evaluate(thread, "number") == number
            assert client.evaluate(thread, "doubled") == value
            client.request("continue", threadId=thread)
    assert running.wait(PROCESS_SECONDS_MAX) == 0


class Waiting:
    """A debugger that is not attached until the test says so."""

    is_attached = False

    def start(self, home: Path) -> Any:
        return lambda: self.is_attached


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    waiting = Waiting()
    monkeypatch.setattr(debugger, "start_debugger", waiting.start)
    monkeypatch.setattr(debugger, "_waited", threading.Event())
    return waiting


def test_trial_without_a_debugger_ends(
    waiting: Waiting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(make_trial(tmp_path, config=config(attach_timeout=0.01)), monkeypatch)
    directory = TrialDirectory.from_environment()
    assert directory is not None
    with pytest.raises(DetcloudError, match=r"no debugger was attached within 0\.01 s"):
        await_debugger(directory)


def test_other_ranks_and_stopped_trials_do_not_wait(
    waiting: Waiting, trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(trial, monkeypatch)
    directory = TrialDirectory.from_environment()
    assert directory is not None
    directory.set_rank(1)
    await_debugger(directory)
    directory.set_rank(0)
    direct(trial, revision=1, preempt={"deadline_ms": None, "reason": "pause"})
    await_debugger(directory)


def test_attached_debugger_ends_the_wait_of_this_process(
    waiting: Waiting, trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(trial, monkeypatch)
    directory = TrialDirectory.from_environment()
    assert directory is not None
    waiter = threading.Thread(target=await_debugger, args=(directory,))
    waiter.start()
    wait_until(lambda: (trial / "out" / "report-0.jsonl").exists())
    waiting.is_attached = True
    waiter.join(PROCESS_SECONDS_MAX)
    assert not waiter.is_alive()
    # The debugger was detached meanwhile.
    waiting.is_attached = False
    await_debugger(directory)


def test_missing_package_is_explained(
    trial: Path, monkeypatch: pytest.MonkeyPatch, waiting: Waiting
) -> None:
    def refuse(home: Path) -> None:
        raise PackageMissing("use another image")

    enter(trial, monkeypatch)
    monkeypatch.setattr(debugger, "start_debugger", refuse)
    directory = TrialDirectory.from_environment()
    assert directory is not None
    with pytest.raises(DetcloudError, match="could not be started: use another image"):
        await_debugger(directory)
