"""The launch of a container, against a fake engine with injected faults."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, cast

import pytest

from detcloud.agent.docker.container import LABEL, RECORDS
from detcloud.agent.docker.engine import EngineClient, EngineError, EngineUnavailable
from detcloud.agent.docker.launch import KILL_FILE, REQUEST_FILE, ContainerLaunch, LaunchTimes
from detcloud.agent.runtime import Phase
from detcloud.shared.files import write_atomically
from tests.patience import wait_until


class FakeEngine:
    """Engine with at most a single container.

    A start creates the supervisor's file `begun` in `records` at once. A call raises the first
    exception left in `faults` under the call's name, after the call has had its effect.
    """

    def __init__(self, records: Path) -> None:
        self.records = records
        self.state = "absent"
        self.faults: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.signals: list[int] = []

    def inspect_container(self, name: str) -> dict[str, Any] | None:
        self._record_call("inspect")
        if self.state == "absent":
            return None
        state = {"Status": self.state, "ExitCode": 0}
        return {"State": state, "Config": {"Labels": {f"{LABEL}launch": "one"}}}

    def create_container(self, name: str, body: object) -> None:
        self.state = "created"
        self._record_call("create")

    def start_container(self, name: str) -> None:
        self.state = "running"
        (self.records / "begun").touch()
        self._record_call("start")

    def signal_container(self, name: str, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.state = "exited"

    def container_output(self, name: str) -> str:
        return ""

    def _record_call(self, name: str) -> None:
        self.calls.append(name)
        if self.faults.get(name):
            raise self.faults[name].pop(0)


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path / RECORDS)


def create_launch(
    engine: FakeEngine, *, host_config: Any = None, **seconds: float
) -> ContainerLaunch:
    """Write the records of a launch next to the engine's, and return the launch.

    `seconds` are fields of LaunchTimes; by default, failed requests are repeated at once.
    """
    engine.records.mkdir()
    directory = engine.records.parent
    body = {"HostConfig": host_config or {}}
    request = {"launch": "one", "log": str(directory / "log"), "has_hook": False, "body": body}
    write_atomically(directory / REQUEST_FILE, request)
    times = LaunchTimes(**{"trouble": 0.01, **seconds})
    return ContainerLaunch(cast(EngineClient, engine), directory, lambda message: None, times)


@pytest.fixture
def launch(engine: FakeEngine) -> ContainerLaunch:
    return create_launch(engine)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("create", EngineUnavailable("the answer was lost")),
        ("create", EngineError(409, "the name is in use")),
        ("start", EngineUnavailable("the answer was lost")),
        ("inspect", EngineError(500, "for once")),
    ],
)
def test_lost_answer_does_not_start_a_second_container(
    engine: FakeEngine, launch: ContainerLaunch, call: str, fault: Exception
) -> None:
    engine.faults[call] = [fault]
    launch.start_watching()
    wait_until(lambda: launch.poll().phase is Phase.RUNNING)
    launch.close()
    assert engine.calls.count("create") == 1
    assert engine.state == "running"


@pytest.mark.parametrize("change", ["link", "link above", "gone"])
@pytest.mark.parametrize("state", ["absent", "created"])
@pytest.mark.parametrize("kind", [("Mounts", "Source"), ("Devices", "PathOnHost")])
def test_a_mount_changed_after_the_check_prevents_the_start(
    engine: FakeEngine, tmp_path: Path, change: str, state: str, kind: Any
) -> None:
    source = tmp_path / "data/set"
    source.mkdir(parents=True)
    launch = create_launch(engine, host_config={kind[0]: [{kind[1]: str(source)}]})
    engine.state = state
    source.rmdir()
    if change == "link":
        source.symlink_to("/")
    elif change == "link above":
        source.parent.rmdir()
        (tmp_path / "other/set").mkdir(parents=True)
        source.parent.symlink_to("other")
    launch.start_watching()
    wait_until(lambda: launch.poll().phase is Phase.ENDED)
    assert "start" not in engine.calls
    assert f"{source} is not what it was when it was checked" in launch.poll().cause
    assert not launch.poll().not_started


def test_an_unchanged_mount_allows_the_start(engine: FakeEngine, tmp_path: Path) -> None:
    launch = create_launch(engine, host_config={"Mounts": [{"Source": str(tmp_path)}]})
    launch.start_watching()
    wait_until(lambda: launch.poll().phase is Phase.RUNNING)
    launch.close()


def test_launch_is_abandoned_after_the_start_timeout(engine: FakeEngine) -> None:
    launch = create_launch(engine, start_max=0.1)
    engine.faults["inspect"] = [EngineUnavailable("no engine")] * 1000
    launch.start_watching()
    wait_until(lambda: launch.poll().phase is Phase.ENDED)
    assert (launch.poll().not_started, launch.poll().lost) == (True, False)


def test_running_container_is_never_abandoned(engine: FakeEngine, tmp_path: Path) -> None:
    launch = create_launch(engine, start_max=0.0)
    # An earlier agent has started the container.
    (tmp_path / RECORDS / "begun").touch()
    engine.state = "running"
    engine.faults["inspect"] = [EngineUnavailable("no engine")] * 5
    launch.start_watching()
    wait_until(lambda: engine.calls.count("inspect") > 5)
    wait_until(lambda: launch.poll().phase is Phase.RUNNING)
    launch.close()


def test_engine_kills_a_supervisor_that_ignores_sigterm(engine: FakeEngine, tmp_path: Path) -> None:
    launch = create_launch(engine, kill_margin=0.1)
    engine.state = "running"
    (tmp_path / RECORDS / "begun").touch()
    write_atomically(tmp_path / KILL_FILE, {"grace_ms": 50})
    launch.start_watching()
    wait_until(lambda: launch.poll().phase is Phase.ENDED)
    assert engine.signals == [signal.SIGTERM, signal.SIGKILL]
    assert launch.poll().killed


def test_a_kill_before_the_start_prevents_the_start(
    engine: FakeEngine, launch: ContainerLaunch, tmp_path: Path
) -> None:
    write_atomically(tmp_path / KILL_FILE, {"grace_ms": 0})
    launch.start_watching()
    wait_until(lambda: launch.poll().phase is Phase.ENDED)
    assert launch.poll().killed
    assert "create" not in engine.calls
