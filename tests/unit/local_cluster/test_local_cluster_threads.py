"""Tests of threads of an embedded cluster: agents that cannot start, and failed starts."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from local_cluster import cluster as embedded_life
from local_cluster import http_server
from local_cluster.agent_process import RECORD, AgentKeeper
from local_cluster.home import HomeFolder
from local_cluster.http_server import open_listener
from tests.patience import wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


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
    keeper._thread.join()


def test_agent_with_an_unwritable_record_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = HomeFolder(tmp_path)
    failures: list[str] = []

    def refuse(name: str, fields: dict[str, Any]) -> None:
        failures.append(name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(home, "write_record", refuse)
    keeper = AgentKeeper(home, SLEEP, lambda _: None)
    keeper.start()
    wait_until(lambda: failures == [RECORD])
    assert keeper._process is not None
    assert keeper._process.poll() is None
    assert keeper._thread.is_alive()
    keeper.stop()
    keeper._thread.join()
    assert failures == [RECORD]


def test_failed_start_raises_the_original_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(http_server.EmbeddedServer, "run", fail)
    monkeypatch.setattr(embedded_life, "configure_logging", lambda path: None)
    home = HomeFolder(tmp_path)
    with closing(open_listener(0)) as listener:
        monkeypatch.setattr(embedded_life, "open_listener", lambda *_: listener)
        with pytest.raises(OSError, match="No space left on device"):
            embedded_life.serve(home, 1, None)
