"""Tests of threads of an embedded cluster: agents that cannot start, and failed starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from detcloud.shared.processes import is_alive, read_process
from local_cluster.agent_process import RECORD, AgentKeeper
from local_cluster.cluster import serve
from local_cluster.home import HomeFolder
from tests.patience import wait_until

# The process writes its id into the home folder, and then sleeps.
SLEEP = ["/bin/sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 600"]


def has_agent_thread() -> bool:
    return "agent" in {thread.name for thread in threading.enumerate()}


class FullHome(HomeFolder):
    """A home folder on a full disk, which refuses all records. `refused` has their names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.refused: list[str] = []

    def write_record(self, name: str, fields: dict[str, Any]) -> None:
        self.refused.append(name)
        raise OSError(28, "No space left on device")


def test_agent_starts_as_soon_as_the_program_is_executable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "agent"
    pids: list[int] = []
    keeper = AgentKeeper(HomeFolder(tmp_path), [str(program)], pids.append)
    keeper.start()
    wait_until(lambda: "the agent could not be started" in caplog.text)
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    wait_until(lambda: bool(pids))
    keeper.stop()
    wait_until(lambda: not has_agent_thread())


def test_agent_with_an_unwritable_record_runs_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = FullHome(tmp_path)
    keeper = AgentKeeper(home, SLEEP, lambda _: None)
    keeper.start()
    wait_until(lambda: home.refused == [RECORD])
    wait_until((tmp_path / "pid").exists)
    agent = read_process(int((tmp_path / "pid").read_text()))
    assert agent is not None
    assert is_alive(agent)
    assert has_agent_thread()
    keeper.stop()
    wait_until(lambda: not has_agent_thread())
    assert not is_alive(agent)
    assert home.refused == [RECORD]
    # The process counts neither as ended nor as a failed start.
    assert caplog.messages == ["the agent's process could not be recorded"]


class FillingHome(FullHome):
    """A home folder that refuses the record of the server's address."""

    def write_record(self, name: str, fields: dict[str, Any]) -> None:
        if name == "server":
            super().write_record(name, fields)


def test_failed_start_raises_the_original_error(tmp_path: Path) -> None:
    home = FillingHome(tmp_path)
    with pytest.raises(OSError, match="No space left on device"):
        serve(home, 1, 0)
    # The record is written when the server starts.
    assert home.refused == ["server"]
