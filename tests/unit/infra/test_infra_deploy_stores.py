"""`python -m infra.deploy` for clusters whose stores were lost or restored."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.restoration import FilesReport, ObjectsReport, RestoreReport, RestoreRequest
from infra.stack_program import Store
from tests.unit.infra.deploy_calls import Run, install_engine, write_settings
from tests.unit.infra.engine_stub import Engine


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    made = Run(write_settings(tmp_path), capsys)
    made.program = replace(made.program, check_account=lambda team, config: [], prune=lambda *_: 0)
    return made


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    """A machine on which the engine is installed."""
    return install_engine(monkeypatch, tmp_path)


def test_restored_table_is_connected_by_a_refresh(run: Run, engine: Engine) -> None:
    engine.deployed = {"table": "detcloud-vision"}
    apart = [Store("table", "detcloud-vision", True, "its stream does not invoke tick")]
    run.program = replace(run.program, read_stores=lambda team, config: apart)
    assert run("deploy")[0] == 0
    assert run("deploy", "--preview")[0] == 0
    assert run("preview")[0] == 0
    operations = [word for word in engine.asked if "refresh" in word]
    assert operations == ["up with refresh", "preview with refresh", "preview with refresh"]


def test_lost_table_is_not_deployed_again(run: Run, engine: Engine) -> None:
    lost = [Store("table", "detcloud-vision", False)]
    run.program = replace(run.program, read_stores=lambda team, config: lost)
    # A new stack has no table yet.
    assert run("deploy")[0] == 0
    engine.deployed = {"table": "detcloud-vision"}
    engine.asked.clear()
    code, answer = run("deploy")
    assert code == 1
    assert "the table detcloud-vision had been deployed and no longer exists" in answer["error"]
    assert engine.asked == ["detcloud/vision"]
    assert run("deploy", "--new-stores")[0] == 0
    assert engine.asked[-1] == "up with refresh"


def test_restore_needs_no_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RestoreRequest] = []

    def restore(
        team: str, config: object, request: RestoreRequest, progress: object
    ) -> RestoreReport:
        asked.append(request)
        return RestoreReport(2, 1, 0, 0, "i", False)

    monkeypatch.setenv("PATH", "")
    run.program = replace(run.program, restore=restore, complete_config=lambda team, config: [])
    code, answer = run("restore", "--time=2026-11-20T13:00:00+01:00")
    assert (code, answer["written"]) == (0, 2)
    assert asked == [RestoreRequest(datetime(2026, 11, 20, 12, tzinfo=UTC))]
    code, answer = run("restore", "--time=2026-11-20T13:00:00")
    assert code == 1
    assert answer["error"].startswith("--time is '2026-11-20T13:00:00': expected a moment with")


def test_lost_objects_are_restored_for_a_moment(run: Run) -> None:
    asked: list[datetime | None] = []

    def restore(
        team: str, config: object, moment: datetime | None, progress: object
    ) -> ObjectsReport:
        asked.append(moment)
        return ObjectsReport(FilesReport(3, ("1/1/1/a",), 2, ()), 1)

    run.program = replace(
        run.program, restore_objects=restore, complete_config=lambda team, config: []
    )
    code, answer = run("objects", "--time=2026-11-20T13:00:00+01:00")
    assert code == 0
    assert answer == {
        "checkpoints": {"intact": 3, "restored": ["1/1/1/a"], "files": 2, "lost": []},
        "objects": 1,
    }
    assert run("objects")[0] == 0
    assert asked == [datetime(2026, 11, 20, 12, tzinfo=UTC), None]
