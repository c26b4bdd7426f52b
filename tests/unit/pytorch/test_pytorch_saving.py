"""A trial's checkpoints behind its training: what they hold, and what they wait for."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import core, pytorch
from detcloud.core.background_save import Save
from detcloud.pytorch import saving
from detcloud.pytorch.state_copy import StateCopier, state_bytes
from detcloud.storage.types.directory import DirectoryStore
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial
from tests.unit.pytorch.noisy_trial import NoisyTrial

ROOT = Path(__file__).resolve().parents[3]
LENGTH = 20
SPEC: dict[str, Any] = {
    "scheduling_unit": 5,
    "min_validation_batches": 6,
    "min_checkpoint_batches": 4,
    "checkpoint_policy": "none",
    "metric": "loss",
    "threads": 1,
    "hparams": {"stop_after": [], "step_mode": "step_every_epoch"},
}
# Trains in a process of its own, whose second checkpoint stays half stored.
HELD_TRAINING = """
import sys, time
from pathlib import Path
from detcloud import pytorch
from detcloud.storage.types.directory import DirectoryStore
from tests.unit.pytorch.noisy_trial import NoisyTrial

put = DirectoryStore.put
def put_or_hold(store, key, source):
    if key.endswith("state_dict.pth") and list(store.root.rglob("state_dict.pth")):
        Path(sys.argv[1]).touch()
        time.sleep(3600)
    put(store, key, source)
DirectoryStore.put = put_or_hold

with pytorch.init() as context:
    pytorch.Trainer(NoisyTrial(context), context).fit()
"""


# A state as small as these is stored behind the training only if that is asked for.
BEHIND = {"optimizations": {"asynchronous_checkpoints": True}}


def prepare(root: Path, **spec: Any) -> Path:
    trial = make_trial(root, **{**SPEC, "config": BEHIND, **spec})
    direct(trial, revision=1, length=LENGTH, closed=True)
    return trial


def train(trial: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Trains to the end; the state in the last checkpoint."""
    enter(trial, monkeypatch)
    monkeypatch.setattr("detcloud.core.trial_run.environment", lambda *_: {})
    with pytorch.init() as context:
        pytorch.Trainer(NoisyTrial(context), context).fit()
    return stored_state(trial, reports(trial, "checkpoint")[-1])


def stored_state(trial: Path, line: dict[str, Any]) -> dict[str, Any]:
    path = trial.parent / "store" / line["path"] / "state_dict.pth"
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def assert_equal(one: Any, other: Any, place: str = "state") -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), place
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{place}[{index}]")
    else:
        assert one == other, place


def test_each_checkpoint_is_of_its_step_and_leads_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocking = {"optimizations": {"asynchronous_checkpoints": False}}
    expected = train(prepare(tmp_path / "blocking", config=blocking), monkeypatch)
    assert "checkpoints hold up the training until they are stored" in capfd.readouterr().out
    behind = prepare(tmp_path / "behind")
    assert_equal(train(behind, monkeypatch), expected)
    told = capfd.readouterr().out
    assert told.count("checkpoints are written and stored behind the training") == 1
    assert "of free memory" in told
    lines = reports(behind, "checkpoint")
    assert [line["steps_completed"] for line in lines] == [4, 8, 12, 16, LENGTH]
    blocked = reports(tmp_path / "blocking" / "trial", "checkpoint")
    for line, other in zip(lines, blocked, strict=True):
        state = stored_state(behind, line)
        assert state["position"]["steps"] == line["steps_completed"]
        assert_equal(state, stored_state(tmp_path / "blocking" / "trial", other))
    middle = {**lines[1], "trial_id": 4}
    resumed = prepare(tmp_path / "resumed", epoch=2, latest_checkpoint=middle)
    (tmp_path / "resumed" / "store").symlink_to(tmp_path / "behind" / "store")
    assert_equal(train(resumed, monkeypatch), expected)


@pytest.mark.parametrize(("is_on_disk", "least"), [(True, 1 << 40), (True, 0), (False, 1 << 40)])
def test_a_small_state_is_stored_in_the_step_where_that_is_a_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_on_disk: bool,
    least: int,
) -> None:
    monkeypatch.setattr("detcloud.pytorch.saving.SMALL_BYTES", least)
    monkeypatch.setattr(
        "detcloud.core.checkpoint.CheckpointContext.is_on_disk", property(lambda _: is_on_disk)
    )
    train(prepare(tmp_path, config={}), monkeypatch)
    is_behind = "stored behind the training" in capfd.readouterr().out
    assert is_behind is (least == 0 or not is_on_disk)


def test_a_process_killed_within_an_upload_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(prepare(tmp_path / "undisturbed"), monkeypatch)
    trial = prepare(tmp_path / "killed")
    (trial / "code").mkdir()
    held = tmp_path / "held"
    environment = {
        **os.environ,
        "DETCLOUD_TRIAL_DIR": str(trial),
        "PYTHONPATH": f"{ROOT / 'harness'}:{ROOT}",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", HELD_TRAINING, str(held)], cwd=trial / "code", env=environment
    )
    try:
        wait_until(held.exists)
        # It trains on meanwhile, until the third checkpoint waits for the second one.
        wait_until(lambda: reports(trial, "metrics")[-1]["steps_completed"] == 12)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(ANSWER_SECONDS_MAX)
    [kept] = reports(trial, "checkpoint")
    half = reports(trial, "checkpoint_intent")[1]
    store = tmp_path / "killed" / "store"
    assert kept["steps_completed"] == 4
    assert (store / kept["path"] / "manifest.json").exists()
    left = sorted(path.name for path in (store / half["path"]).iterdir())
    assert left == ["load_data.json", "metadata.json"]
    resumed = prepare(tmp_path / "resumed", epoch=2, latest_checkpoint={**kept, "trial_id": 4})
    (tmp_path / "resumed" / "store").symlink_to(store)
    assert_equal(train(resumed, monkeypatch), expected)


@pytest.mark.parametrize("free", [100, None])
def test_without_the_memory_for_a_copy_files_are_written_in_the_step(
    free: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The line's two weights and two numbers of the generators' state alone have more bytes.
    monkeypatch.setattr(saving, "available_bytes", lambda: free)
    cluster = Cluster(tmp_path, monkeypatch, asynchronous=True, min_checkpoint_batches=2)
    cluster.direct(revision=1, length=4, closed=True)
    cluster.run()
    assert [one["steps_completed"] for one in reports(cluster.trial, "checkpoint")] == [2, 4]
    told = capsys.readouterr().out
    assert ("would take more than half of the 0 MiB of memory" in told) is (free is not None)
    assert ("behind the training, from a copy" in told) is (free is None)


def test_callbacks_hear_of_a_checkpoint_once_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    cluster = Cluster(tmp_path, monkeypatch, asynchronous=True, min_checkpoint_batches=2)

    class Note(pytorch.PyTorchCallback):
        def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
            (checkpoint_dir / "added").write_text("x")
            calls.append(("written", len(reports(cluster.trial, "checkpoint"))))

        def on_checkpoint_upload_end(self, uuid: str) -> None:
            stored = [line["uuid"] for line in reports(cluster.trial, "checkpoint")]
            assert uuid in stored
            calls.append(("stored", stored.index(uuid) + 1))

    cluster.direct(revision=1, length=6, closed=True)
    cluster.run(lambda trial: trial.callbacks.update(note=Note()))
    assert [name for name, _ in calls] == ["written", "stored"] * 3
    assert [number for name, number in calls if name == "stored"] == [1, 2, 3]
    store = DirectoryStore(tmp_path / "store")
    assert all(
        f"{line['path']}/added" in store.list(line["path"])
        for line in reports(cluster.trial, "checkpoint")
    )


def test_a_copy_is_of_its_moment_and_keeps_what_is_shared() -> None:
    weights = torch.arange(6.0)
    module = torch.nn.BatchNorm1d(2)
    state = {
        "weights": weights,
        "view": weights[2:4],
        "module": module.state_dict(),
        "plain": [1, ("x", None), {2}],
        "half": torch.ones(3, dtype=torch.bfloat16),
        "sparse": torch.eye(2).to_sparse(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    copier = StateCopier()
    copied = copier.copy_state(state)
    assert_equal({**copied, "sparse": 0}, {**state, "sparse": 0})
    assert torch.equal(copied["sparse"].to_dense(), torch.eye(2))
    assert isinstance(copied["module"], OrderedDict)
    assert vars(copied["module"]) == vars(state["module"])
    weights.fill_(9.0)
    module.running_mean.fill_(9.0)  # type: ignore[union-attr]
    state["plain"].append(2)  # type: ignore[attr-defined]
    assert copied["weights"].tolist() == [0, 1, 2, 3, 4, 5]
    assert copied["view"].tolist() == [2, 3]
    assert copied["module"]["running_mean"].tolist() == [0, 0]
    assert len(copied["plain"]) == 3
    assert copied["view"].untyped_storage()._cdata == copied["weights"].untyped_storage()._cdata
    # The next copy takes the same memory, and more only where the state has grown.
    held, place = copier.held_bytes, copied["weights"].data_ptr()
    again = copier.copy_state(state)
    assert (copier.held_bytes, again["weights"].data_ptr()) == (held, place)
    assert again["weights"].tolist() == [9.0] * 6
    # 6 weights of 4 bytes, of which the view has a share: 24 and, with it alone, the same.
    assert state_bytes({"a": weights, "b": [weights[2:4]]}) == 24
    copier.copy_state({"weights": torch.zeros(3)})
    assert copier.held_bytes == 12


@pytest.mark.parametrize(
    ("seconds", "rate", "outcome", "steps", "told"),
    [
        (600, 1e9, "saved", [2, 5], "save now, since"),
        (600, 1.0, "kept", [2], "keep the last checkpoint, since"),
        # Where the deadline has passed each moment may still do.
        (-1, 1.0, "saved", [2, 5], "save now, since the deadline has passed"),
    ],
)
def test_a_notice_ends_in_what_there_is_time_for(
    seconds: int,
    rate: float,
    outcome: str,
    steps: list[int],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, asynchronous=True, min_checkpoint_batches=2)
    directives = {"revision": 1, "length": 20, "closed": True}
    cluster.direct(**directives)
    # Checkpoints are due after 2, 4 and so on; the notice comes in the fifth batch.
    monkeypatch.setattr(Save, "bytes_per_second", rate)

    def give_notice(batches: int) -> None:
        if batches == 5:
            wait_until(lambda: len(reports(cluster.trial, "checkpoint")) == 2)
            deadline = int((time.time() + seconds) * 1000)
            preempt = {"deadline_ms": deadline, "reason": "the market"}
            cluster.direct(**{**directives, "preempt": preempt})

    cluster.run(lambda trial: setattr(trial, "after_batch", give_notice))
    exit_line = reports(cluster.trial)[-1]
    assert (exit_line["reason"], exit_line["notice_outcome"]) == ("preempted", outcome)
    stored = [line["steps_completed"] for line in reports(cluster.trial, "checkpoint")]
    assert stored == [2, 4, *steps[1:]]
    log = capsys.readouterr().out
    assert "notice (the market), " in log
    assert told in log


def test_a_notice_within_an_upload_may_leave_time_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, asynchronous=True, min_checkpoint_batches=2)
    directives = {"revision": 1, "length": 20, "closed": True}
    cluster.direct(**directives)
    may_store, put = threading.Event(), DirectoryStore.put

    def put_or_hold(store: DirectoryStore, key: str, source: Path) -> None:
        if reports(cluster.trial, "checkpoint"):
            assert may_store.wait(ANSWER_SECONDS_MAX)
        put(store, key, source)

    monkeypatch.setattr(DirectoryStore, "put", put_or_hold)
    plan = core.Context.plan_last_save

    def plan_then_store(context: core.Context, **options: bool) -> core.Choice:
        choice = plan(context, **options)
        may_store.set()
        return choice

    monkeypatch.setattr(core.Context, "plan_last_save", plan_then_store)

    def give_notice(batches: int) -> None:
        if batches == 5:
            [stored] = reports(cluster.trial, "checkpoint")
            # What runs is late and needs a tenth of 40 s, a new one all of them: 5/4 of the size.
            monkeypatch.setattr(Save, "bytes_per_second", stored["size_bytes"] * 1.25 / 40)
            deadline = int((time.time() + 25) * 1000)
            preempt = {"deadline_ms": deadline, "reason": "the market"}
            monkeypatch.setattr(saves(), "began", time.monotonic() - 100)
            cluster.direct(**{**directives, "preempt": preempt})

    contexts: list[core.Context] = []

    def saves() -> Save:
        running = contexts[0].checkpoint.saves.running
        assert running is not None
        return running

    def prepare_trial(trial: LineTrial) -> None:
        contexts.append(trial.context.core)
        trial.after_batch = give_notice

    cluster.run(prepare_trial)
    exit_line = reports(cluster.trial)[-1]
    assert (exit_line["reason"], exit_line["notice_outcome"]) == ("preempted", "finished")
    stored = [line["steps_completed"] for line in reports(cluster.trial, "checkpoint")]
    assert stored == [2, 4]
    assert "finish the running upload, since" in capsys.readouterr().out


def test_a_checkpoint_has_determineds_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=2, closed=True)
    cluster.run()
    [line] = reports(cluster.trial, "checkpoint")
    assert line["metadata"] == {
        "steps_completed": 2,
        "framework": f"torch-{torch.__version__}",
        "format": "pickle",
        "determined_version": "0.38.1",
    }
