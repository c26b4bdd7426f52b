import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import direct, make_trial, reports

ROOT = Path(__file__).resolve().parents[3]

NOTICE = {"deadline_ms": 1_800_000_000_000, "reason": "spot"}


def launch(trial: Path, code: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detcloud.launch.trial"],
        cwd=code,
        env=environment(trial),
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )


def environment(trial: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DETCLOUD_TRIAL_DIR": str(trial),
        "PYTHONPATH": str(ROOT / "harness"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_log_of_a_later_run_begins_with_its_starting_point(tmp_path: Path) -> None:
    checkpoint = {"uuid": "u-1", "trial_id": 4, "path": "2/4/1/u-1"}
    first = make_trial(tmp_path / "first", entrypoint="true", trial_id=4, epoch=1)
    again = make_trial(tmp_path / "again", entrypoint="true", trial_id=4, epoch=2)
    resumed = make_trial(
        tmp_path / "resumed", entrypoint="true", trial_id=4, epoch=3, latest_checkpoint=checkpoint
    )
    fallen_back = make_trial(
        tmp_path / "fallen_back",
        entrypoint="true",
        trial_id=4,
        epoch=4,
        latest_checkpoint=checkpoint,
        steps_completed=30,
        damaged_checkpoint={"uuid": "u-2", "steps_completed": 70, "cause": "no weights"},
    )
    # A promoted or failed trial without a stored checkpoint.
    started_over = make_trial(
        tmp_path / "started_over", entrypoint="true", trial_id=4, epoch=5, validated_steps=100
    )
    trials = (first, again, resumed, fallen_back, started_over)
    assert [launch(trial, tmp_path).stdout for trial in trials] == [
        "",
        "[detcloud] run 2 of trial 4, from the beginning\n",
        "[detcloud] run 3 of trial 4, from checkpoint u-1\n",
        "[detcloud] run 4 of trial 4, from checkpoint u-1 at batch 30, since checkpoint u-2"
        " at batch 70 is damaged; batches to train again: 40; no weights\n",
        "[detcloud] run 5 of trial 4, from the beginning; no checkpoint was stored, so 100 trained"
        " batches are trained again\n",
    ]


def test_a_command_with_a_null_byte_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint="a\0b")
    done = launch(trial, tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be started: embedded null byte" in reports(trial)[-1]["message"]


@pytest.mark.parametrize(
    ("entrypoint", "directives", "code", "reason"),
    [
        ("exit 0", {"length": 5}, 0, "stop_requested"),
        # The program has caught SIGTERM, and the trial continues on another machine.
        ("exit 0", {"length": 5, "preempt": NOTICE}, 0, "preempted"),
        ("true", {"length": 5, "answered": 5, "closed": True}, 0, "completed"),
        ("true", {"length": 5, "answered": 5, "closed": True, "preempt": NOTICE}, 0, "completed"),
        ("exit 3", {}, 3, "errored"),
        (["sh", "-c", "kill -9 $$"], {}, 128 + 9, "errored"),
    ],
)
def test_a_commands_exit_code_becomes_an_exit_line(
    tmp_path: Path,
    entrypoint: str | list[str],
    directives: dict[str, Any],
    code: int,
    reason: str,
) -> None:
    trial = make_trial(tmp_path, entrypoint=entrypoint)
    direct(trial, revision=2, **directives)
    assert launch(trial, tmp_path).returncode == code
    (line,) = reports(trial)
    assert (line["kind"], line["reason"]) == ("exit", reason)


def test_a_core_api_script_writes_the_exit_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from detcloud import core\n"
        "with core.init() as context:\n"
        "    for operation in context.searcher.operations():\n"
        "        operation.complete(0.25)\n"
    )
    trial = make_trial(tmp_path, entrypoint=[sys.executable, "train.py"])
    direct(trial, revision=1, length=4, closed=True)
    assert launch(trial, tmp_path).returncode == 0
    assert [(line["kind"], line.get("reason")) for line in reports(trial)] == [
        ("completed", None),
        ("exit", "completed"),
    ]


def test_a_missing_command_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=["no-such-command"])
    done = launch(trial, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("detcloud: entrypoint ['no-such-command'] cannot be started")
    assert "Traceback" not in done.stderr
    assert reports(trial)[-1]["reason"] == "errored"


def test_an_exception_in_user_code_prints_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("1 / 0")
    trial = make_trial(tmp_path, entrypoint="model_def:Trial")
    done = launch(trial, tmp_path)
    assert done.returncode == 1
    assert 'model_def.py", line 1' in done.stderr
    assert reports(trial)[-1]["message"] == "ZeroDivisionError: division by zero"


def test_user_module_runs_before_heavy_imports(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(
        "import json, sys\n"
        "heavy = [name for name in ('torch', 'numpy', 'detcloud.core') if name in sys.modules]\n"
        "print(json.dumps(heavy))\n"
        "sys.exit(0)\n"
    )
    trial = make_trial(tmp_path, entrypoint="model_def:Trial")
    assert json.loads(launch(trial, tmp_path).stdout) == []


def test_sys_exit_of_a_user_module_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import sys; sys.exit('enough')")
    trial = make_trial(tmp_path, entrypoint="model_def:Trial")
    done = launch(trial, tmp_path)
    assert (done.returncode, done.stderr) == (1, "enough\n")
    assert reports(trial)[-1]["message"] == "SystemExit: enough"


def test_missing_trial_directory_is_an_error(tmp_path: Path) -> None:
    done = launch(tmp_path / "nowhere", tmp_path)
    assert done.returncode == 1
    assert "spec.json does not exist" in done.stderr


def test_sigterm_to_the_group_lets_a_script_exit_normally(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time\n"
        "from detcloud import core\n"
        "with core.init() as context:\n"
        "    context.train.report_progress(0)\n"
        "    while not context.preempt.should_preempt():\n"
        "        time.sleep(0.01)\n"
    )
    trial = make_trial(tmp_path, entrypoint=[sys.executable, "train.py"])
    arguments = [sys.executable, "-m", "detcloud.launch.trial"]
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(trial), start_new_session=True
    ) as process:
        report = trial / "out" / "report-0.jsonl"
        wait_until(lambda: report.exists() and b"progress" in report.read_bytes())
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(PROCESS_SECONDS_MAX) == 0
    assert [line["reason"] for line in reports(trial, "exit")] == ["preempted"]
