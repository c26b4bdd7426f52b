"""The agent distrusts records in an allocation's folder, since the trial may have forged them."""

import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import Launch, Phase
from detcloud.agent.slots import cpu_slots
from tests.patience import wait_until


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Patch os.kill; return the list of signals that were sent."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
    return sent


@pytest.fixture
def live_launch(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of launch records; its lock is held, as by a living supervisor."""
    (tmp_path / "begun").touch()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


@pytest.mark.parametrize("supervisor", [-1, 0, 1, "agent", "17", None, [17]])
def test_kill_ignores_invalid_supervisor_ids(
    live_launch: Path, signals: list[tuple[int, int]], supervisor: object
) -> None:
    named = os.getpid() if supervisor == "agent" else supervisor
    (live_launch / "process.json").write_text(json.dumps({"supervisor": named}))
    ProcessRuntime().kill(live_launch, 0)
    assert signals == []


def test_a_launch_without_a_supervisor_is_lost(
    tmp_path: Path, signals: list[tuple[int, int]]
) -> None:
    (tmp_path / "launch.json").write_text("{}")
    record = {"pid": "-1", "start_time": "yesterday", "supervisor": {}}
    (tmp_path / "process.json").write_text(json.dumps(record))
    assert ProcessRuntime().poll(tmp_path).lost
    assert signals == []


def test_a_start_waits_for_the_lock(tmp_path: Path) -> None:
    # A concurrent start of this agent holds the lock between fork and exec.
    directory = AllocationDirectory(tmp_path / "allocations", "4.1")
    directory.create()
    lock = os.open(directory.agent / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    letting_go = threading.Timer(0.2, os.close, (lock,))
    letting_go.start()
    stages = [("trial", [sys.executable, "-c", ""])]
    launch = Launch(stages, {}, str(directory.code), str(directory.log), 1000)
    runtime = ProcessRuntime()
    runtime.start(directory.agent, launch)
    wait_until(lambda: runtime.poll(directory.agent).phase is Phase.ENDED)
    assert runtime.poll(directory.agent).code == 0
    letting_go.join()


def test_adoption_skips_a_damaged_folder(tmp_path: Path) -> None:
    good = AllocationDirectory(tmp_path / "allocations", "5.1")
    bad = AllocationDirectory(tmp_path / "allocations", "4.1")
    for directory in (good, bad):
        directory.create()
        directory.write_directives({"revision": 3})
    directives = bad.inputs / "directives.json"
    directives.unlink()
    directives.write_text('{"revision": "three"}')
    os.truncate(bad.report.parent / "trial.log", 1 << 40)
    bad.report.touch()
    os.truncate(bad.report, 1 << 43)
    (tmp_path / "allocations" / "no allocation").mkdir()
    (tmp_path / "allocations" / "no allocation" / "agent").mkdir()
    log: list[str] = []
    node = Node(tmp_path, cpu_slots(1), ProcessRuntime(), _no_cache(tmp_path), log.append)
    node.adopt()
    assert {"4.1", "5.1"} <= set(node.allocation_ids())
    assert any("could not be taken over" in line for line in log)


def _no_cache(folder: Path) -> CodeCache:
    def download(*_: Any) -> int:
        raise AssertionError("nothing is downloaded")

    return CodeCache(folder / "cache", download)
