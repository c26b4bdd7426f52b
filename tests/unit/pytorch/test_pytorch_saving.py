"""Checkpoints that a trial saves in the background of the training."""

import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import core, pytorch
from detcloud.core.background_save import Save
from detcloud.pytorch.saving import SMALL_BYTES, StateStore
from detcloud.pytorch.state_copy import StateCopier, state_bytes
from detcloud.storage.types.directory import DirectoryStore
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.core.held_store import held_storage, held_store
from tests.unit.core.sealed_store import sealed_storage
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
# A training process that blocks forever within the upload of the second checkpoint.
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


# Small states are saved in the background only on request.
BEHIND = {"optimizations": {"asynchronous_checkpoints": True}}


def prepare(root: Path, **spec: Any) -> Path:
    trial = make_trial(root, **{**SPEC, "config": BEHIND, **spec})
    direct(trial, revision=1, length=LENGTH, closed=True)
    return trial


def train(trial: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Train to the end; return the state of the last checkpoint."""
    enter(trial, monkeypatch)
    with pytorch.init() as context:
        pytorch.Trainer(NoisyTrial(context), context).fit()
    return stored_state(trial, reports(trial, "checkpoint")[-1])


def stored_state(trial: Path, line: dict[str, Any]) -> dict[str, Any]:
    path = trial.parent / "store" / line["path"] / "state_dict.pth"
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def assert_equal(left: Any, right: Any, place: str = "state") -> None:
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), place
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), place
        for key in left:
            assert_equal(left[key], right[key], f"{place}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), place
        for index, items in enumerate(zip(left, right, strict=True)):
            assert_equal(*items, f"{place}[{index}]")
    else:
        assert left == right, place


def test_background_checkpoints_equal_blocking_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocking = {"optimizations": {"asynchronous_checkpoints": False}}
    expected = train(prepare(tmp_path / "blocking", config=blocking), monkeypatch)
    assert "checkpoints hold up the training until they are stored" in capfd.readouterr().out
    behind = prepare(tmp_path / "behind")
    assert_equal(train(behind, monkeypatch), expected)
    printed = capfd.readouterr().out
    assert printed.count("checkpoints are written and stored behind the training") == 1
    assert "of free memory" in printed
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


@pytest.mark.parametrize(
    ("is_on_disk", "size"), [(True, 0), (True, SMALL_BYTES), (False, 0)], ids=str
)
def test_a_small_state_on_a_local_disk_is_saved_synchronously(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_on_disk: bool,
    size: int,
) -> None:
    class Enlarge(pytorch.PyTorchCallback):
        def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["filler"] = torch.zeros(size, dtype=torch.uint8)

    storage = {} if is_on_disk else {"storage": sealed_storage(tmp_path / "store")}
    config: dict[str, Any] = {"optimizations": {}}
    cluster = Cluster(tmp_path, monkeypatch, config=config, min_checkpoint_batches=2, **storage)
    cluster.direct(revision=1, length=4, closed=True)
    cluster.run(lambda trial: trial.callbacks.update(enlarge=Enlarge()))
    is_behind = "stored behind the training" in capfd.readouterr().out
    assert is_behind is (size == SMALL_BYTES or not is_on_disk)


def test_a_kill_during_an_upload_leaves_the_previous_checkpoint(
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
        # Training continues until the third checkpoint waits for the second.
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
def test_checkpoints_are_written_synchronously_without_memory_for_a_copy(
    free: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial = make_trial(tmp_path, config=BEHIND)
    enter(trial, monkeypatch)
    # 13 weights of 4 bytes exceed half of 100 bytes.
    state = {"weights": torch.zeros(13)}
    with core.init() as context:
        store = StateStore(context, writes_in_step=False, free_bytes=lambda: free)
        for steps in (2, 4):
            metadata = {"steps_completed": steps}
            store.store(state, metadata, lambda _folder: None, is_last=steps == 4)
    assert [line["steps_completed"] for line in reports(trial, "checkpoint")] == [2, 4]
    printed = capsys.readouterr().out
    assert ("would take more than half of the 0 MiB of memory" in printed) is (free is not None)
    assert ("behind the training, from a copy" in printed) is (free is None)


def test_callbacks_are_called_after_a_checkpoint_is_stored(
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


def test_a_state_copy_is_independent_and_keeps_shared_memory() -> None:
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
    storages = [copied[name].untyped_storage().data_ptr() for name in ("view", "weights")]
    assert storages[0] == storages[1]
    # The next copy reuses the memory, and allocates more only for a larger state.
    held, place = copier.held_bytes, copied["weights"].data_ptr()
    again = copier.copy_state(state)
    assert (copier.held_bytes, again["weights"].data_ptr()) == (held, place)
    assert again["weights"].tolist() == [9.0] * 6
    # 6 weights of 4 bytes are 24 bytes; the view shares their memory.
    assert state_bytes({"a": weights, "b": [weights[2:4]]}) == 24
    copier.copy_state({"weights": torch.zeros(3)})
    assert copier.held_bytes == 12


@pytest.mark.parametrize(
    ("seconds", "is_slow", "outcome", "steps", "message"),
    [
        (600, False, "saved", [2, 5], "save now, since"),
        (600, True, "kept", [2], "keep the last checkpoint, since"),
        # After the deadline, saving is still tried.
        (-1, True, "saved", [2, 5], "save now, since the deadline has passed"),
    ],
)
def test_a_notice_saves_only_if_time_suffices(
    seconds: int,
    is_slow: bool,
    outcome: str,
    steps: list[int],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, asynchronous=True, min_checkpoint_batches=2)
    directives = {"revision": 1, "length": 20, "closed": True}
    cluster.direct(**directives)

    # Checkpoints are due after 2, 4 and so on; the notice comes in the fifth batch.
    def give_notice(trial: LineTrial, batches: int) -> None:
        if batches == 5:
            wait_until(lambda: len(reports(cluster.trial, "checkpoint")) == 2)
            if is_slow:
                record_save(trial, 1000, seconds=3600)
            deadline = int((time.time() + seconds) * 1000)
            preempt = {"deadline_ms": deadline, "reason": "the market"}
            cluster.direct(**{**directives, "preempt": preempt})

    cluster.run(lambda trial: setattr(trial, "after_batch", partial(give_notice, trial)))
    exit_line = reports(cluster.trial)[-1]
    assert (exit_line["reason"], exit_line["notice_outcome"]) == ("preempted", outcome)
    stored = [line["steps_completed"] for line in reports(cluster.trial, "checkpoint")]
    assert stored == [2, 4, *steps[1:]]
    log = capsys.readouterr().out
    assert "notice (the market), " in log
    assert message in log


def record_save(trial: LineTrial, size: int, *, seconds: float) -> None:
    """Let the trial believe that it stored `size` bytes in so many seconds until now."""
    checkpoint = trial.context.core.checkpoint
    checkpoint.wait()
    checkpoint.saves.run(Save("slow", size, began=time.monotonic() - seconds), lambda: None)


def test_a_notice_during_an_upload_may_only_finish_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = held_store(tmp_path / "store")
    store.may_store.set()
    storage = held_storage(store.root)
    cluster = Cluster(
        tmp_path, monkeypatch, asynchronous=True, min_checkpoint_batches=2, storage=storage
    )
    directives = {"revision": 1, "length": 20, "closed": True}
    cluster.direct(**directives)
    plan = core.Context.plan_last_save

    def plan_then_store(context: core.Context, **options: bool) -> core.Choice:
        choice = plan(context, **options)
        store.may_store.set()
        return choice

    monkeypatch.setattr(core.Context, "plan_last_save", plan_then_store)

    def give_notice(trial: LineTrial, batches: int) -> None:
        if batches == 4:
            wait_until(lambda: reports(cluster.trial, "checkpoint"))
            [stored] = reports(cluster.trial, "checkpoint")
            # An upload is expected to take 5/4 of 320 s: the running one has time, another has not.
            record_save(trial, stored["size_bytes"], seconds=320)
            store.may_store.clear()
        if batches == 5:
            deadline = int((time.time() + 500) * 1000)
            preempt = {"deadline_ms": deadline, "reason": "the market"}
            cluster.direct(**{**directives, "preempt": preempt})

    cluster.run(lambda trial: setattr(trial, "after_batch", partial(give_notice, trial)))
    exit_line = reports(cluster.trial)[-1]
    assert (exit_line["reason"], exit_line["notice_outcome"]) == ("preempted", "finished")
    stored = [line["steps_completed"] for line in reports(cluster.trial, "checkpoint")]
    assert stored == [2, 4]
    assert "finish the running upload, since" in capsys.readouterr().out


def test_checkpoint_metadata_follow_determined(
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
