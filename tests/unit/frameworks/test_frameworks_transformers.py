import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import DetcloudError
from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import direct, make_trial, reports
from tests.unit.frameworks.conftest import TrialRuns
from tests.unit.frameworks.tiny_trainer import Network, train

# What frameworks warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]
Runs = Callable[..., TrialRuns]
BATCHES = {"searcher": {"max_length": {"batches": 12}}}


@pytest.fixture(autouse=True)
def transformers() -> Any:
    require("accelerate")
    return require("transformers")


def weights(model: Network) -> list[torch.Tensor]:
    return list(model.state_dict().values())


def test_a_stopped_training_ends_with_the_unbroken_weights(
    trial_runs: Runs,
) -> None:
    unbroken, broken = trial_runs("unbroken"), trial_runs("broken")
    with unbroken.run() as context:
        expected = weights(train(context))
    # The process exits at the save, before the code after training.
    with pytest.raises(SystemExit), broken.run() as context:
        train(context, stop_at=7)
    assert broken.steps("checkpoint") == [7]
    with broken.run() as context:
        assert all(map(torch.equal, weights(train(context)), expected))
    assert broken.exits() == ["preempted", "completed"]
    assert unbroken.exits() == ["completed"]
    # Metrics are reported once, although the Trainer logs a summary at the end.
    assert unbroken.steps("metrics", "validation") == [6, 12]
    assert unbroken.steps("metrics", "training") == [5, 10, 12]
    assert {"loss", "learning_rate"} <= unbroken.lines("metrics")[0]["metrics"].keys()


def test_background_save_survives_deletion_by_the_trainer(
    trial_runs: Runs,
) -> None:
    runs = trial_runs("trial")
    store, written = runs.hold_store(), Path("out/checkpoint-4")
    logs = Path("out/runs/events")
    saves: list[tuple[int, bool]] = []

    def on_save(step: int) -> None:
        saves.append((step, written.exists()))
        logs.parent.mkdir(exist_ok=True)
        with logs.open("a") as events:
            events.write(f"{step} ")
        if step == 8:
            store.may_store.set()

    rules: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}
    with runs.run() as context:
        train(context, on_save=on_save, **rules)
    # The Trainer deleted `checkpoint-4` before the store received a file.
    assert saves == [(4, True), (8, False), (12, False)]
    assert runs.order()[:2] == [("metrics", 5), ("checkpoint", 4)]
    assert runs.steps("checkpoint") == [4, 8, 12]
    first = runs.folder / "store" / runs.lines("checkpoint")[0]["path"]
    assert (first / "runs" / "events").read_text() == "4 "
    entries = json.loads((first / "manifest.json").read_text())["files"]
    assert {"checkpoint-4/optimizer.pt", "checkpoint-4/trainer_state.json"} <= set(entries)
    assert runs.exits() == ["completed"]


def test_a_checkpoint_written_twice_is_stored_twice(
    trial_runs: Runs,
) -> None:
    # Step 5 is due by `save_steps`, and ends the epoch, which is the searcher's length.
    config = {"searcher": {"max_length": {"epochs": 1}}, "records_per_epoch": 40}
    runs = trial_runs("trial", metric="eval_loss", config=config, hparams={"global_batch_size": 8})
    store = runs.hold_store()
    with runs.run(length=5, closed=True) as context:
        threading.Timer(0.2, store.may_store.set).start()
        rules: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "no"}
        train(context, max_steps=-1, num_train_epochs=1, **rules)
    assert runs.steps("checkpoint") == [5, 5]
    assert runs.exits() == ["completed"]


def test_ignore_data_skip_prints_a_notice(
    trial_runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = trial_runs("trial")
    with pytest.raises(SystemExit), runs.run() as context:
        train(context, stop_at=7)
    assert "ignore_data_skip" not in capsys.readouterr().out
    with runs.run() as context:
        train(context, ignore_data_skip=True)
    assert "ignore_data_skip is set: the epoch is trained from its" in capsys.readouterr().out


def test_operation_is_completed_after_the_checkpoint_or_by_the_next_process(
    trial_runs: Runs,
) -> None:
    runs = trial_runs("trial", metric="eval_loss", config=BATCHES)
    with runs.run(length=8) as context:
        # Directives of the cluster after the answer for length 8.
        direct(runs.folder / "trial", revision=2, length=12, answered=8, closed=True)
        train(context)
    kinds = [line["kind"] for line in reports(runs.folder / "trial")]
    both = ("checkpoint", "completed")
    assert tuple(kind for kind in kinds if kind in both) == both
    assert runs.steps("checkpoint") == [12]
    last = [line for line in runs.lines("metrics") if line["group"] == "validation"][-1]
    (answer,) = runs.lines("completed")
    assert (answer["length"], answer["metric"]) == (12, last["metrics"]["eval_loss"])
    assert runs.exits() == ["completed"]
    with runs.run(length=12, answered=8, closed=True) as context:
        train(context)
    assert [line["metric"] for line in runs.lines("completed")] == [answer["metric"]] * 2


def test_trainer_arguments_must_match_the_searchers_length(trial_runs: Runs) -> None:
    cases: tuple[tuple[Any, Any], ...] = (
        (BATCHES, {"max_steps": 11}),
        (BATCHES, {"max_steps": -1, "num_train_epochs": 12}),
        ({"searcher": {"max_length": {"epochs": 12}}}, {"max_steps": 12}),
    )
    for config, options in cases:
        runs = trial_runs(str(options), metric="eval_loss", config=config)
        with (
            pytest.raises(DetcloudError, match=r"max_length is 12 .* give both the same length"),
            runs.run(length=12, closed=True) as context,
        ):
            train(context, **options)


def test_operations_end_with_the_trainers_epochs(trial_runs: Runs) -> None:
    # 2 epochs of 40 records are 40 * 2 // 16 = 5 batches of 16 for the cluster, and the Trainer's,
    # with batches of 8, are 2 * 40 / 8 = 10 steps.
    config = {"searcher": {"max_length": {"epochs": 2}}, "records_per_epoch": 40}
    runs = trial_runs("trial", metric="eval_loss", config=config, hparams={"global_batch_size": 16})
    with runs.run(length=5, closed=True) as context:
        train(context, max_steps=-1, num_train_epochs=2, eval_strategy="no")
    assert runs.steps("checkpoint") == [10]
    assert len(runs.lines("completed")) == 1
    assert runs.exits() == ["completed"]


def test_unconverted_epochs_are_counted_by_the_trainer(trial_runs: Runs) -> None:
    config = {"searcher": {"max_length": {"epochs": 2}}}
    runs = trial_runs("trial", version=2, metric="eval_loss", config=config)
    epochs: dict[str, Any] = {"length_units": 1, "length_unit": "epochs"}
    with runs.run(length=1, **epochs) as context:
        # Directives of the cluster after the answer for the first epoch.
        trial = runs.folder / "trial"
        direct(trial, revision=2, length=2, answered=1, closed=True, length_unit="epochs")
        train(context, max_steps=-1, num_train_epochs=2, eval_strategy="no")
    # Two epochs of 40 records in batches of 8.
    assert runs.steps("checkpoint") == [10]
    assert [line["length"] for line in runs.lines("completed")] == [2]
    assert runs.lines("progress")[-1]["value"] == 1.0
    assert runs.exits() == ["completed"]


def test_a_trainer_without_the_checkpoint_is_an_error(trial_runs: Runs) -> None:
    runs = trial_runs("trial")
    with runs.run() as context:
        options = {"filter_metrics": ["loss"], "user_data": {"vocabulary": 3}}
        train(context, save_strategy="steps", save_steps=6, callback_options=options)
    assert runs.steps("checkpoint") == [6, 12]
    assert {name for line in runs.lines("metrics") for name in line["metrics"]} == {
        "loss",
        "eval_loss",
        "train_loss",
        "batches",
        "epochs",
    }
    with (
        pytest.raises(DetcloudError, match=r"trained for 12 steps.*resume_from_checkpoint=args"),
        runs.run() as context,
    ):
        train(context, resumes=False)
    stored = runs.folder / "trial" / "code" / "out" / "checkpoint-12"
    assert json.loads((stored / "my_data.json").read_text()) == {"vocabulary": 3}


def test_reports_contain_batches_and_epochs_and_no_speeds(trial_runs: Runs) -> None:
    runs = trial_runs("trial", config={"searcher": {"time_metric": "epochs"}})
    with runs.run() as context:
        train(context)
    validations = [line for line in runs.lines("metrics") if line["group"] == "validation"]
    # Epochs of 5 batches.
    counts = [
        (validation["metrics"]["batches"], validation["metrics"]["epochs"])
        for validation in validations
    ]
    assert counts == [(6, 6 / 5), (12, 12 / 5)]
    names = {name for line in runs.lines("metrics") for name in line["metrics"]}
    assert {"loss", "eval_loss"} <= names
    assert not {name for name in names if name == "epoch" or "runtime" in name or "_per_" in name}


def test_a_foreign_checkpoint_gives_only_weights(trial_runs: Runs) -> None:
    first = trial_runs("first")
    with first.run() as context:
        expected = weights(train(context, save_strategy="steps", save_steps=12))
    storage = {"type": "directory", "path": str(first.folder / "store")}
    latest = {**(first.latest_checkpoint() or {}), "trial_id": 3}
    second = trial_runs("second", latest_checkpoint=latest, trial_id=5, storage=storage)
    with second.run() as context:
        # One step that changes nothing.
        model = train(context, max_steps=1, learning_rate=0.0, eval_strategy="no")
    assert all(map(torch.equal, weights(model), expected))
    assert second.steps("metrics", "training") == [1]


def test_example_learns(trial_runs: Runs) -> None:
    require("sklearn")
    config = {"searcher": {"max_length": {"batches": 40}}}
    runs = trial_runs("trial", metric="eval_loss", config=config, hparams={"max_steps": 40})
    runs.run_example("transformers_text", length=40, closed=True)
    # The loss of a guess among 256 tokens is log(256) = 5.55.
    assert runs.lines("completed")[0]["metric"] < 5.2
    assert runs.exits() == ["completed"]


@pytest.mark.nightly
def test_two_processes_store_a_single_checkpoint_and_report_once(tmp_path: Path) -> None:
    trial = make_trial(
        tmp_path, metric="eval_loss", slots=[0, 1], config=BATCHES, hosts=["127.0.0.1"]
    )
    direct(trial, revision=1, length=12, closed=True)
    script = ROOT / "tests" / "unit" / "frameworks" / "tiny_trainer.py"
    done = subprocess.run(
        [sys.executable, "-m", "detcloud.launch.torch_distributed", str(script), "12"],
        cwd=tmp_path,
        env={
            **os.environ,
            "DETCLOUD_TRIAL_DIR": str(trial),
            "DETCLOUD_SLOTS": "2",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "harness")]),
        },
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (stored,) = reports(trial, "checkpoint")
    files = {path.name for path in (tmp_path / "store" / stored["path"]).glob("*/*")}
    assert {"rng_state_0.pth", "rng_state_1.pth", "model.safetensors", "optimizer.pt"} <= files
    validations = [
        report for report in reports(trial, "metrics") if report["group"] == "validation"
    ]
    assert [line["steps_completed"] for line in validations] == [6, 12]
    assert len(reports(trial, "completed")) == 1
    assert [line["reason"] for line in reports(trial, "exit")] == ["completed"]
