"""An interrupted trial ends with exactly the weights and metrics of an unbroken trial."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import pytorch
from tests.unit.core.trial_files import direct, enter, make_trial, reports
from tests.unit.pytorch.noisy_trial import NoisyTrial, Plateau

LENGTH = 23
SPEC: dict[str, Any] = {
    "scheduling_unit": 5,
    "min_validation_batches": 6,
    "checkpoint_policy": "none",
    "metric": "loss",
    "threads": 1,
}


def test_the_same_seed_gives_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = _train(tmp_path / "a", monkeypatch, [])
    second, _ = _train(tmp_path / "b", monkeypatch, [])
    other, _ = _train(tmp_path / "c", monkeypatch, [], trial_seed=18)
    _assert_equal(first, second)
    assert not torch.equal(
        first["models_state_dict"][0]["0.weight"], other["models_state_dict"][0]["0.weight"]
    )


# Workloads end at 5, 6, 11, 12, 17, 18 and 23, since the unit is 5 and validations are due after 6
# batches. Epochs end at 7, 14 and 21. The stops cover all kinds of positions, some in a row.
@pytest.mark.parametrize(
    "stops",
    [[1], [4], [5], [6], [7], [8], [13], [14], [18], [21], [22], [23], [1, 2, 3], [6, 7, 20]],
    ids=str,
)
def test_an_interrupted_trial_ends_like_an_unbroken_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    unbroken = _train(tmp_path / "unbroken", monkeypatch, [])
    broken = _train(tmp_path / "broken", monkeypatch, stops)
    _assert_equal(unbroken[0], broken[0])
    assert unbroken[1] == broken[1]


# An epoch has 7 batches: the length is 21 batches, and a validation is due after every 7.
@pytest.mark.parametrize("stops", [[4], [7], [21], [3, 10, 20]], ids=str)
def test_an_interrupted_trial_in_epochs_ends_like_an_unbroken_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    spec: dict[str, Any] = {
        "version": 2,
        "min_validation_batches": 0,
        "min_validation_epochs": 1,
        "length": {"length": 3, "length_unit": "epochs"},
    }
    unbroken = _train(tmp_path / "unbroken", monkeypatch, [], **spec)
    broken = _train(tmp_path / "broken", monkeypatch, stops, **spec)
    _assert_equal(unbroken[0], broken[0])
    assert unbroken[1] == broken[1]
    validated = [steps for group, steps, _ in unbroken[1] if group == "validation"]
    assert validated == [7, 14, 21]


# Steps end at 5, 10, 15 and 20, and validations are at 10, 20 and 23.
@pytest.mark.parametrize("stops", [[1], [5], [9], [10], [12], [20], [23], [3, 10, 11]], ids=str)
def test_an_interrupted_trial_in_steps_ends_like_an_unbroken_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    spec: dict[str, Any] = {
        "era": "steps",
        "min_checkpoint_batches": 10,
        "checkpoint_policy": "best",
    }
    unbroken = _train(tmp_path / "unbroken", monkeypatch, [], **spec)
    broken = _train(tmp_path / "broken", monkeypatch, stops, **spec)
    _assert_equal(unbroken[0]["models_state_dict"], broken[0]["models_state_dict"])
    assert unbroken[1] == broken[1]


@pytest.mark.parametrize(
    ("mode", "aggregation"),
    [("step_every_batch", 1), ("step_every_optimizer_step", 3), ("step_every_epoch", 3)],
)
def test_aggregated_gradients_survive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, aggregation: int
) -> None:
    config = {"optimizations": {"aggregation_frequency": aggregation}}
    unbroken = _train(tmp_path / "unbroken", monkeypatch, [], mode, config=config)
    broken = _train(tmp_path / "broken", monkeypatch, [4, 5, 9, 13], mode, config=config)
    _assert_equal(unbroken[0], broken[0])
    assert unbroken[1] == broken[1]


def test_an_interrupted_validation_is_repeated_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DrawingPlateau(Plateau):
        def on_validation_start(self) -> None:
            torch.rand(1)

    class DrawingTrial(NoisyTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"plateau": DrawingPlateau(self.optimizer)}

    calls: list[Any] = []

    class CutTrial(DrawingTrial):
        def evaluate_batch(self, batch: Any) -> dict[str, Any]:
            calls.append(batch)
            if len(calls) == 1:
                signal.raise_signal(signal.SIGTERM)
            return super().evaluate_batch(batch)

    unbroken = _train(tmp_path / "unbroken", monkeypatch, [], kind=DrawingTrial)
    # The first process is stopped by its first validation, after 6 batches; batch 99 never comes.
    broken = _train(tmp_path / "broken", monkeypatch, [99], kind=CutTrial)
    _assert_equal(unbroken[0], broken[0])
    assert unbroken[1] == broken[1]


def test_validations_do_not_change_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PlainTrial(NoisyTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {}

    never, _ = _train(
        tmp_path / "never", monkeypatch, [], kind=PlainTrial, min_validation_batches=0
    )
    often, _ = _train(
        tmp_path / "often", monkeypatch, [], kind=PlainTrial, min_validation_batches=2
    )
    _assert_equal(never["models_state_dict"], often["models_state_dict"])


def _train(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    stops: list[int],
    step_mode: str = "step_every_epoch",
    *,
    kind: type[NoisyTrial] = NoisyTrial,
    **spec: Any,
) -> tuple[dict[str, Any], list[Any]]:
    """Train through all interruptions; return the final state and the reported metrics."""
    latest: dict[str, Any] | None = None
    metrics: list[Any] = []
    length: dict[str, Any] = spec.pop("length", {"length": LENGTH})
    for epoch in range(1, len(stops) + 2):
        hparams = {"stop_after": stops[epoch - 1 : epoch], "step_mode": step_mode}
        fields = {**SPEC, **spec, "epoch": epoch, "latest_checkpoint": latest, "hparams": hparams}
        trial = make_trial(root / str(epoch), **fields)
        direct(trial, revision=1, **length, closed=True)
        enter(trial, monkeypatch)
        _run(kind)
        metrics += [
            (line["group"], line["steps_completed"], line["metrics"])
            for line in reports(trial, "metrics")
        ]
        interrupted = epoch <= len(stops)
        assert reports(trial)[-1]["reason"] == ("preempted" if interrupted else "completed")
        latest = {**reports(trial, "checkpoint")[-1], "trial_id": 4} if interrupted else latest
        if latest is not None:
            # The next process reaches the store by a different path, like a mount elsewhere.
            (root / str(epoch + 1)).mkdir(exist_ok=True)
            (root / str(epoch + 1) / "store").symlink_to(root / str(epoch) / "store")
    # A trial that was stopped after the last batch wrote the last checkpoint at the stop.
    last = reports(trial, "checkpoint")[-1] if reports(trial, "checkpoint") else latest
    assert last is not None
    folder = trial.parent / "store" / last["path"]
    return torch.load(folder / "state_dict.pth", weights_only=True), metrics


def _run(kind: type[NoisyTrial]) -> None:
    with pytorch.init() as context:
        pytorch.Trainer(kind(context), context).fit()


def _assert_equal(left: Any, right: Any, place: str = "state") -> None:
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), place
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), place
        for key in left.keys() - {"last_checkpoint"}:
            _assert_equal(left[key], right[key], f"{place}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), place
        for index, items in enumerate(zip(left, right, strict=True)):
            _assert_equal(*items, f"{place}[{index}]")
    else:
        assert left == right, place
