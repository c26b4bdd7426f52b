"""A whole self-test on a fake cluster: its order, its programs, and Ctrl-C."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detcloud.cli.verification.check_programs import NOTICE, STAND_IN, find_check_folder
from detcloud.cli.verification.plan import Plan
from detcloud.cli.verification.report import Report
from detcloud.cli.verification.self_test import run_self_test
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.verification.fake_deployment import PLANNED, POOL, FakeDeployment


@pytest.fixture
def report() -> Report:
    return Report({}, Plan((PLANNED,)))


def test_self_test_checks_pools_then_alarms_then_cleans_up(report: Report) -> None:
    deployment = FakeDeployment(alarms=[{"name": "lag", "result": "ok", "reason": ""}])
    assert not run_self_test(deployment.session(), report, ())
    assert [(step.name, step.result) for step in report.steps] == [
        (f"pool {POOL}", "ok"),
        ("alarms", "ok"),
        ("cleanup", "ok"),
    ]
    assert deployment.instances == {}


def test_left_out_alarms_are_not_triggered(report: Report) -> None:
    deployment = FakeDeployment()
    run_self_test(deployment.session(), report, ["alarms"])
    assert "alarms" not in dict(deployment.calls)


def test_interruption_still_removes_everything(report: Report) -> None:
    class ImpatientUser(FakeDeployment):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            # The instance boots, and the user presses Ctrl-C once.
            if self.now > 1_003 and self.submitted[0].state == "ACTIVE" and not self.pressed:
                self.pressed = True
                raise KeyboardInterrupt

        pressed = False

    deployment = ImpatientUser()
    assert run_self_test(deployment.session(), report, ())
    assert [(step.name, step.result) for step in report.steps] == [
        (f"pool {POOL}", "failed"),
        ("cleanup", "ok"),
    ]
    assert report.steps[0].reason == "interrupted"
    assert deployment.instances == {}
    assert deployment.submitted[0].state == "CANCELED"
    assert deployment.submitted[0].is_archived


def test_check_folder_must_have_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(DetcloudError, match=r"has no config\.yaml"):
        find_check_folder(tmp_path)
    (tmp_path / "config.yaml").touch()
    assert find_check_folder(tmp_path) == tmp_path


def test_default_check_is_the_example() -> None:
    assert find_check_folder(None).parts[-2:] == ("examples", "gpu_check")


@pytest.mark.parametrize("folder", [STAND_IN, NOTICE])
def test_own_programs_are_complete(folder: Path) -> None:
    program = next(folder.glob("*.py"))
    text = (folder / "config.yaml").read_text()
    assert f"entrypoint: python3 {program.name}\n" in text
    compile(program.read_text(), str(program), "exec")


def test_check_uses_the_slots_and_the_pool_of_the_plan(report: Report) -> None:
    class Recorder(FakeDeployment):
        def create_experiment(self, *words: object, **fields: Any) -> Any:
            self.overrides = fields["overrides"]
            return super().create_experiment()

    deployment = Recorder()
    planned = replace(PLANNED, slots=2, has_cpu_slots=True)
    run_self_test(deployment.session(), replace(report, plan=Plan((planned,))), ["alarms"])
    assert deployment.overrides[:2] == [
        'resources.resource_pool="gpus"',
        "resources.slots_per_trial=2",
    ]
    # Machines without a GPU run the steps of the CPU.
    assert "exec python3 gpu_check.py --cpu" in deployment.overrides[-1]
