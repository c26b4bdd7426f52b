"""The digits example as a separate trial process, from a specification written by hand."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX, poll_until
from tests.unit.core.trial_files import direct, make_trial, reports

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 150
SPEC: dict[str, Any] = {
    "entrypoint": "model_def:DigitsTrial",
    "hparams": {
        "global_batch_size": 64,
        "learning_rate": 0.05,
        "dropout": 0.25,
        "n_filters": 8,
        "weight_decay": 0.0001,
    },
    "metric": "validation_accuracy",
    "smaller_is_better": False,
    "threads": 1,
    "scheduling_unit": 10,
}

pytestmark = pytest.mark.end_to_end


@pytest.mark.nightly
def test_resumed_process_ends_with_the_weights_of_an_uninterrupted_process(
    tmp_path: Path,
) -> None:
    torch = require("torch")
    require("sklearn")
    unbroken = make_trial(tmp_path / "unbroken", **SPEC)
    direct(unbroken, revision=1, length=LENGTH, closed=True)
    with _start(unbroken) as process:
        assert process.wait(PROCESS_SECONDS_MAX) == 0

    stopped = make_trial(tmp_path / "stopped", **SPEC)
    direct(stopped, revision=1, length=LENGTH, closed=True)
    with _start(stopped) as process:
        _wait_for_content(stopped / "out" / "report-0.jsonl", b'"group":"training"')
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_SECONDS_MAX) == 0
    assert reports(stopped)[-1]["reason"] == "preempted"
    checkpoint = {**reports(stopped, "checkpoint")[-1], "trial_id": 4}
    assert 10 <= checkpoint["steps_completed"] < LENGTH
    (stopped / "out" / "report-0.jsonl").unlink()

    make_trial(tmp_path / "stopped", **SPEC, epoch=2, latest_checkpoint=checkpoint)
    with _start(stopped) as process:
        assert process.wait(PROCESS_SECONDS_MAX) == 0
    states = [
        torch.load(
            trial.parent / "store" / reports(trial, "checkpoint")[-1]["path"] / "state_dict.pth",
            weights_only=True,
        )["models_state_dict"][0]
        for trial in (unbroken, stopped)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert reports(unbroken, "completed")[0]["metric"] == reports(stopped, "completed")[0]["metric"]
    _check_reports(unbroken)


def _check_reports(trial: Path) -> None:
    kinds = [line["kind"] for line in reports(trial)]
    assert kinds[-5:] == ["checkpoint_intent", "checkpoint", "metrics", "completed", "exit"]
    completed = reports(trial, "completed")[0]
    # Seven epochs; a random guess would give 0.1.
    assert completed["length"] == LENGTH
    assert completed["metric"] > 0.9
    (environment,) = reports(trial, "environment")
    assert any(package.startswith("scikit-learn==") for package in environment["packages"])
    assert environment["torch"]
    assert reports(trial)[-1]["reason"] == "completed"


def test_digits_are_split_deterministically_without_overlap() -> None:
    require("sklearn")
    script = (
        "import json, model_def; a, b = model_def.load_digits(); "
        "rows = [{tuple(x.flatten().tolist()) for x in part.tensors[0]} for part in (a, b)]; "
        "print(json.dumps([len(a), len(b), len(rows[0] & rows[1])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "examples" / "digits",
        env=_environment(ROOT),
        capture_output=True,
        text=True,
        check=True,
    )
    # 1797 records, of which every fifth validates: 360. The parts share no image.
    assert json.loads(done.stdout) == [1437, 360, 0]


def _start(trial: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "detcloud.launch.trial"],
        cwd=ROOT / "examples" / "digits",
        env=_environment(trial),
    )


def _environment(trial: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DETCLOUD_TRIAL_DIR": str(trial),
        "PYTHONPATH": str(ROOT / "harness"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _wait_for_content(path: Path, content: bytes) -> None:
    what = f"{content!r} in {path}"
    poll_until(lambda: path.exists() and content in path.read_bytes(), 60, what, 0.005)
