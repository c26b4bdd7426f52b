import os
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.launch.launchers import find_launcher
from detcloud.launch.launchers.command import CommandLauncher
from detcloud.launch.launchers.trial_class import TrialClassLauncher
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import make_trial, reports

ROOT = Path(__file__).resolve().parents[4]

# A launcher of somebody else: `notebook FILE` prints the file's name and ends with 0.
NOTEBOOK = """
import sys
from detcloud.launch import trial
from detcloud.launch.launchers import register_launcher

class NotebookLauncher:
    can_fork = False

    def accepts(self, entrypoint):
        return isinstance(entrypoint, str) and entrypoint.startswith("notebook ")

    def run(self, entrypoint):
        print("running", entrypoint.removeprefix("notebook "), flush=True)
        return 0

register_launcher(NotebookLauncher())
sys.exit(trial.main())
"""


@pytest.mark.parametrize(
    ("entrypoint", "expected"),
    [
        ("model_def:Trial", True),
        ("package.model_def:Outer.Inner", True),
        ("python3 model_def.py", False),
        ("model_def:Trial --x", False),
        ("model_def", False),
        (["model_def:Trial"], False),
        ("a:b:c", False),
        ("model_def:Trial\n", False),
    ],
)
def test_an_entrypoint_names_a_class_or_is_a_command(
    entrypoint: str | list[str], expected: bool
) -> None:
    launcher = find_launcher(entrypoint)
    assert isinstance(launcher, TrialClassLauncher if expected else CommandLauncher)
    assert launcher.can_fork is expected


def test_a_registered_launcher_runs_the_trial(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint="notebook train.ipynb")
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        cwd=tmp_path,
        env={**os.environ, "DETCLOUD_TRIAL_DIR": str(trial), "PYTHONPATH": str(ROOT / "harness")},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "running train.ipynb\n", "")
    assert [report["kind"] for report in reports(trial)] == ["exit"]
