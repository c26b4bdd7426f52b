import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import reports

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(ROOT / "tests" / "unit" / "frameworks" / "engine_training.py")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return require("deepspeed")


def run(*command: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "harness")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={**os.environ, "PYTHONPATH": path, "DETCLOUD_SLOTS": "2", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_a_stopped_training_ends_with_the_unbroken_weights(
    tmp_path: Path,
) -> None:
    from tests.unit.frameworks.engine_training import prepare

    # Each checkpoint but the last of a run is stored behind the batches that follow.
    unbroken = prepare(tmp_path, "unbroken", min_checkpoint_batches=3)
    broken = prepare(tmp_path, "broken", hparams={"stop_at": 4}, min_checkpoint_batches=3)
    hparams = {
        "deepspeed_config": "ds_config.json",
        "overwrite_deepspeed_args": {"optimizer": {"params": {"lr": 0.03}}},
        "width": 32,
        "dropout": 0.0,
    }
    example = prepare(tmp_path, "example", metric="validation_accuracy", hparams=hparams)
    require("sklearn")
    run(SCRIPT, str(tmp_path), "unbroken", "broken", "broken", "example")
    expected = torch.load(unbroken / "weights-0.pth")
    ended = torch.load(broken / "weights-0.pth")
    for name, weight in expected["weights"].items():
        assert torch.equal(weight, ended["weights"][name]), name
    # Two micro-batches for each of 10 batches, and of the 6 after the stop.
    assert (expected["calls"], ended["calls"]) == (20, 12)
    ours, theirs = (
        [(line["group"], line["steps_completed"]) for line in reports(trial, "metrics")]
        for trial in (broken, unbroken)
    )
    assert ours == theirs
    assert [line["steps_completed"] for line in reports(broken, "checkpoint")] == [3, 4, 6, 9, 10]
    assert [line["reason"] for line in reports(broken, "exit")] == ["preempted", "completed"]
    assert [line["steps_completed"] for line in reports(unbroken, "checkpoint")] == [3, 6, 9, 10]
    # Of the example 10 batches of 32 records; a tenth is chance.
    assert reports(example, "completed")[0]["metric"] > 0.3


@pytest.mark.nightly
def test_pipeline_stages_store_parts_of_the_checkpoint(tmp_path: Path) -> None:
    from tests.unit.frameworks.engine_training import prepare

    trial = prepare(
        tmp_path, "pipeline", slots=[0, 1], hparams={"pipeline": True}, min_checkpoint_batches=3
    )
    run("-m", "detcloud.launch.torch_distributed", SCRIPT, str(tmp_path), "pipeline")
    *behind, stored = reports(trial, "checkpoint")
    assert [line["steps_completed"] for line in behind] == [3, 6, 9]
    folder = tmp_path / "pipeline" / "store" / stored["path"]
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.pt*")}
    assert {
        "rank0/state_dict.pth",
        "rank1/state_dict.pth",
        "model0/layer_00-model_states.pt",
    } <= names
    assert "model0/layer_02-model_states.pt" in names
    calls = [torch.load(trial / f"weights-{rank}.pth")["calls"] for rank in (0, 1)]
    # One call trains all micro-batches of a batch in a pipeline.
    assert calls == [10, 10]
    # Only the last stage computes the loss, and sends it to all ranks.
    losses = [line["metrics"]["loss"] for line in reports(trial, "metrics")]
    assert all(0 < loss < 100 for loss in losses)
    assert len(reports(trial, "completed")) == 1


@pytest.mark.nightly
def test_gang_without_time_to_save_resumes_from_the_previous_checkpoint(
    tmp_path: Path,
) -> None:
    from tests.unit.frameworks.engine_training import prepare

    rules = {"slots": [0, 1], "min_checkpoint_batches": 3}
    expected = prepare(tmp_path, "unbroken", **rules)
    trial = prepare(tmp_path, "slow", hparams={"notice_at": 8}, **rules)
    launch = ("-m", "detcloud.launch.torch_distributed", SCRIPT, str(tmp_path))
    run(*launch, "slow")
    # Every rank exits with the checkpoint after batch 3, during the upload of batch 6.
    chief = reports(trial, "exit")[-1]
    assert (chief["reason"], chief["notice_outcome"]) == ("preempted", "kept")
    # Weights are saved last: their files show that both ranks ended, after the same batch.
    calls = [torch.load(trial / f"weights-{rank}.pth")["calls"] for rank in (0, 1)]
    assert calls[0] == calls[1] >= 2 * 8
    [kept] = reports(trial, "checkpoint")
    intents = [line["steps_completed"] for line in reports(trial, "checkpoint_intent")]
    assert (kept["steps_completed"], intents) == (3, [3, 6])
    store = tmp_path / "slow" / "store"
    manifests = [path.parent.relative_to(store).as_posix() for path in store.rglob("manifest.json")]
    assert manifests == [kept["path"]]
    # On other machines.
    spec = trial / "in" / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "hparams": {}}))
    (tmp_path / "slow").rename(tmp_path / "resumed")
    resumed = tmp_path / "resumed" / "trial"
    (tmp_path / "slow").symlink_to(tmp_path / "resumed")
    run(*launch, "resumed", "unbroken")
    for rank in (0, 1):
        ours, theirs = (torch.load(path / f"weights-{rank}.pth") for path in (resumed, expected))
        # 7 batches of 2 micro-batches each follow batch 3.
        assert ours["calls"] == 2 * 7
        for name, weight in theirs["weights"].items():
            assert torch.equal(weight, ours["weights"][name]), name


def test_overwrite_deepspeed_config_merges_nested_values(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"a": {"b": 1, "c": 2}, "d": 3}')
    from detcloud.deepspeed import overwrite_deepspeed_config

    base = {"a": {"b": 1}}
    assert overwrite_deepspeed_config(base, {"a": {"b": 2}}) == {"a": {"b": 2}}
    assert base == {"a": {"b": 1}}
    laid = overwrite_deepspeed_config(str(tmp_path / "ds.json"), {"a": {"c": 5}, "d": {"e": 6}})
    assert laid == {"a": {"b": 1, "c": 5}, "d": {"e": 6}}


def test_manual_init_disables_the_shm_extension(
    deepspeed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from detcloud.deepspeed import init

    monkeypatch.setenv("DET_MANUAL_INIT_DISTRIBUTED", "1")
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", True)
    with init(hparams={}, checkpoint_dir=tmp_path):
        assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
