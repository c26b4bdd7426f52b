"""Local test mode: real checker, real trial process, a single batch, no cluster."""

import json
import re
from pathlib import Path

import pytest

from detcloud.cli.local.test_mode import middle_hparams, write_trial_directory
from detcloud.shared.trial_directory import TrialDirectory
from tests.unit.cli.conftest import Detcloud

CONFIG = """
name: local
entrypoint: python3 script.py
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: 0}
  layers: {type: int, minval: 2, maxval: 9}
searcher:
  name: single
  metric: loss
  max_length: {batches: 100}
"""
# A script that reads and writes the trial directory without the detcloud package.
SCRIPT = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["DETCLOUD_TRIAL_DIR"])
spec = json.loads((folder / "in" / "spec.json").read_text())
directives = json.loads((folder / "in" / "directives.json").read_text())
assert spec["test_mode"] and directives["length"] == 1 and directives["closed"]
assert not pathlib.Path("data.bin").exists()
print("training with", json.dumps(spec["hparams"], sort_keys=True), flush=True)
lines = [
    {"kind": "metrics", "group": "validation", "steps_completed": 1, "metrics": {"loss": 0.5}},
    {"kind": "checkpoint", "size_bytes": 2048, "files": 2},
    {"kind": "exit", "reason": REASON, "message": "said so"},
]
with (folder / "out" / "report-0.jsonl").open("a") as report:
    for line in lines:
        report.write(json.dumps({**line, "time_ms": 1}, separators=(",", ":")) + "\\n")
"""


@pytest.fixture
def model_files(tmp_path: Path) -> tuple[Path, Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT.replace("REASON", "'completed'"))
    (folder / "data.bin").touch()
    (folder / ".detignore").write_text("*.bin\n")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path, folder


def test_uses_the_middle_of_each_hyperparameter_range() -> None:
    space = {
        "plain": 3,
        "const": {"type": "const", "val": "x"},
        "int": {"type": "int", "minval": 2, "maxval": 9},
        "double": {"type": "double", "minval": -1.0, "maxval": 2.0},
        "log": {"type": "log", "base": 10, "minval": -4, "maxval": 0},
        "choice": {"type": "categorical", "vals": ["a", "b"]},
        "nested": {"deep": {"type": "int", "minval": 4, "maxval": 4}},
    }
    # (2 + 9) // 2 = 5; (-1 + 2) / 2 = 0.5; 10 ** ((-4 + 0) / 2) = 0.01
    assert middle_hparams(space) == {
        "plain": 3,
        "const": "x",
        "int": 5,
        "double": 0.5,
        "log": 0.01,
        "choice": "a",
        "nested": {"deep": 4},
    }


def test_writes_the_directory_that_a_trial_reads(tmp_path: Path) -> None:
    config = {"entrypoint": "m:T", "searcher": {"metric": "acc", "smaller_is_better": False}}
    write_trial_directory(tmp_path, {**config, "reproducibility": {"experiment_seed": 17}})
    spec = json.loads((tmp_path / "in" / "spec.json").read_text())
    assert (spec["metric"], spec["smaller_is_better"], spec["trial_seed"]) == ("acc", False, 17)
    assert (spec["test_mode"], spec["rank"], spec["size"]) == (True, 0, 1)
    assert Path(spec["storage"]["path"]).is_dir()
    assert list((tmp_path / "out").iterdir()) == []


def test_local_trial_waits_for_no_debugger(tmp_path: Path) -> None:
    write_trial_directory(tmp_path, {"debugger": {"enabled": True}})
    assert not TrialDirectory(tmp_path).spec.is_debugged


def test_a_good_trial_passes(model_files: tuple[Path, Path], detcloud: Detcloud) -> None:
    code, out, err = detcloud("create", "--local", "--test-mode", *map(str, model_files))
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [
        'training with {"layers": 5, "lr": 0.01}',
        'validation metrics: {"loss": 0.5}',
        "checkpoint: 2.0 KiB in 2 files",
        "the test passed",
    ]


def test_a_bad_trial_fails(model_files: tuple[Path, Path], detcloud: Detcloud) -> None:
    (model_files[1] / "script.py").write_text(SCRIPT.replace("REASON", "'errored'"))
    code, _, err = detcloud("create", "--local", "--test-mode", *map(str, model_files))
    assert code == 1
    assert err == "the test failed: the trial ended with errored: said so\n"


def test_configuration_error_is_printed_with_its_line(
    model_files: tuple[Path, Path], detcloud: Detcloud
) -> None:
    model_files[0].write_text(CONFIG + "max_restart: 2\n")
    code, _, err = detcloud("create", "--local", "--test-mode", *map(str, model_files))
    # The added line is line 11: CONFIG has an empty line and nine more.
    assert code == 1
    assert err.splitlines()[0] == f"error: {model_files[0]} was refused"
    assert err.splitlines()[1].startswith(f"{model_files[0]}:11: max_restart: ")


def test_config_check_sets_the_exit_code(
    model_files: tuple[Path, Path], detcloud: Detcloud
) -> None:
    good = detcloud("config", "check", str(model_files[0]), "--json", "--config", "max_restarts=2")
    assert good.code == 0
    assert json.loads(good.out)["config"]["max_restarts"] == 2
    bad = detcloud("config", "check", str(model_files[0]), "--config", "max_restarts=-1")
    assert bad.code == 1
    assert "max_restarts" in bad.out
    assert detcloud("config", "check", "missing.yaml").code == 1


def test_quickstart_script_runs(tmp_path: Path, detcloud: Detcloud) -> None:
    text = (Path(__file__).parents[4] / "docs" / "quickstart.md").read_text()
    code_blocks = re.findall(r"^```(python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # The first block of each language belongs to the example; later blocks are fragments.
    blocks = dict(reversed(code_blocks))
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "train.py").write_text(blocks["python"])
    config = tmp_path / "parabola.yaml"
    config.write_text(blocks["yaml"])
    done = detcloud("create", str(config), str(folder), "--test-mode", "--local")
    assert (done.code, done.err) == (0, "")
    # The middle of the exponents is -2.5: a single step leaves (10 (1 - 2 * 10^-2.5))^2.
    assert 'validation metrics: {"loss": 98.73' in done.out
    assert done.out.endswith("the test passed\n")
