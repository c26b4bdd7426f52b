"""`import determined` loads detcloud's package, in trials and by `-m detcloud.compatibility`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import make_trial, reports

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import determined as det
from determined import core
from determined.common import set_logger

info = det.get_cluster_info()
assert (info.trial.trial_id, info.trial.hparams) == (4, {"lr": 0.1}), info
assert info.trial._config["searcher"]["metric"] == "loss"
with core.init() as context:
    context.train.report_validation_metrics(steps_completed=1, metrics={"loss": 0.5})
"""


def run(
    folder: Path, code: Path, *packages: Path, **config: Any
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run train.py of `code` as a trial, with `packages` on the path; return trial and process."""
    trial = make_trial(
        folder,
        entrypoint=[sys.executable, "train.py"],
        hparams={"lr": 0.1},
        config={"searcher": {"metric": "loss"}, **config},
    )
    python_path = os.pathsep.join(map(str, (ROOT / "harness", *packages)))
    done = subprocess.run(
        [sys.executable, "-m", "detcloud.launch.trial"],
        cwd=code,
        env={**os.environ, "DETCLOUD_TRIAL_DIR": str(trial), "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    return trial, done


def test_a_script_for_determined_reports_to_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    trial, done = run(tmp_path / "run", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line["kind"] for line in reports(trial)] == ["metrics", "exit"]
    assert "compatibility package" not in done.stdout


def test_installed_determined_is_hidden_unless_compatibility_is_off(
    tmp_path: Path,
) -> None:
    packages, code = tmp_path / "packages", tmp_path / "code"
    (packages / "determined").mkdir(parents=True)
    (packages / "determined" / "__init__.py").write_text("THEIRS = True\n")
    code.mkdir()
    (code / "train.py").write_text(
        "import determined\nprint('theirs:', hasattr(determined, 'THEIRS'))\n"
    )
    _, hidden = run(tmp_path / "hidden", code, packages)
    assert "theirs: False" in hidden.stdout, hidden.stdout + hidden.stderr
    assert "not the installed one" in hidden.stdout
    off = {"determined_compatibility": False}
    _, theirs = run(tmp_path / "theirs", code, packages, environment=off)
    assert "theirs: True" in theirs.stdout, theirs.stdout + theirs.stderr
    assert "not the installed one" not in theirs.stdout


def test_a_script_runs_outside_a_trial_with_arguments_and_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "alone.py").write_text(
        "import sys\nimport beside\nimport determined as det\n"
        "print(det.get_cluster_info(), beside.NAME, sys.argv[1:], __name__)\n"
    )
    command = [sys.executable, "-m", "detcloud.compatibility"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    done, wrong = (
        subprocess.run(
            [*command, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
        for words in ((str(tmp_path / "alone.py"), "--lr", "1"), (str(tmp_path / "none.py"),))
    )
    assert done.stdout == "None beside ['--lr', '1'] __main__\n", done.stderr
    assert (wrong.returncode, "none.py is not a file" in wrong.stderr) == (2, True)
