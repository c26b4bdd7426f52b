"""Trials and callbacks in the form of Determined 0.12."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from detcloud import DetcloudError, pytorch
from tests.unit.core.trial_files import direct, enter, make_trial, reports
from tests.unit.pytorch.line_trial import SPEC, Cluster, LineTrial


class FormerLine(pytorch.PyTorchTrial):
    """Trial with build_model that fits y = 2x at x = 1 from a weight of 0 with a rate of 0.1."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.callbacks: dict[str, pytorch.PyTorchCallback] = {}

    def build_model(self) -> torch.nn.Module:
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.data.fill_(0.0)
        return model

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def create_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> pytorch.LRScheduler:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return pytorch.LRScheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return self.callbacks

    def train_batch(  # type: ignore[override]
        self, batch: Any, model: torch.nn.Module, epoch_idx: int, batch_idx: int
    ) -> dict[str, Any]:
        assert model is self.context.get_model()
        return {"loss": torch.nn.functional.mse_loss(model(batch[0]), batch[1])}

    def evaluate_batch(  # type: ignore[override]
        self, batch: Any, model: torch.nn.Module
    ) -> dict[str, Any]:
        return {"weight": model(batch[0]).mean()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(torch.ones(4, 1), torch.full((4, 1), 2.0)))

    build_validation_data_loader = build_training_data_loader


class FormerWhole(FormerLine):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch  # type: ignore[assignment]

    def evaluate_full_dataset(  # type: ignore[override]
        self, data_loader: Any, model: torch.nn.Module
    ) -> dict[str, Any]:
        return {"weight": torch.stack([model(x).mean() for x, _ in data_loader]).mean()}


def train(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[FormerLine], **callbacks: Any
) -> tuple[FormerLine, list[dict[str, Any]]]:
    """Train a trial for 4 batches; return the trial and its metrics reports."""
    trial_directory = make_trial(root, **{**SPEC, "metric": "weight", "era": "steps"})
    enter(trial_directory, monkeypatch)
    direct(trial_directory, revision=1, length=4, closed=True)
    with pytorch.init() as context:
        trial = kind(context)
        trial.callbacks = callbacks
        pytorch.Trainer(trial, context).fit()
    return trial, reports(trial_directory, "metrics")


@pytest.mark.parametrize("kind", [FormerLine, FormerWhole])
def test_former_trial_trains_the_trainers_model(
    kind: type[FormerLine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, metrics = train(tmp_path, monkeypatch, kind)
    # The gradient is 2 (w - 2). The rates 0.1, 0.05, 0.025 and 0.0125 times 2 multiply the
    # distance of 2 by 0.8, 0.9, 0.95 and 0.975.
    distances = [2.0, 1.6, 1.44, 1.368]
    assert metrics[0]["metrics"]["loss"] == pytest.approx(sum(d * d for d in distances) / 4)
    assert metrics[1]["metrics"]["weight"] == pytest.approx(2 - 1.368 * 0.975)
    assert isinstance(trial.context.get_optimizer(), torch.optim.SGD)
    assert trial.context.get_lr_scheduler() is trial.context.lr_schedulers[0]


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        # The first gradient, -4, becomes -1, so that a step is at most the rate.
        (pytorch.ClipGradsL2Norm(1.0), 0.1 + 0.05 + 0.025 + 0.0125),
        (pytorch.ClipGradsL2Value(2.0), 2 * (0.1 + 0.05 + 0.025 + 0.0125)),
    ],
)
def test_callbacks_clip_gradients_before_each_step(
    clip: pytorch.PyTorchCallback,
    expected: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial, _ = train(tmp_path, monkeypatch, FormerLine, clip=clip)
    (weight,) = trial.context.get_model().parameters()
    assert weight.item() == pytest.approx(expected)


def test_former_trial_requires_optimizer_loss_and_wrapped_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoOptimizer(FormerLine):
        optimizer = property()

    class NoLoss(FormerLine):
        def train_batch(self, *_arguments: Any) -> dict[str, Any]:
            return {"error": 1.0}

    class BareScheduler(FormerLine):
        def create_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
            return torch.optim.lr_scheduler.ConstantLR(optimizer)

    for number, (kind, message) in enumerate(
        [
            (NoOptimizer, "NoOptimizer defines build_model and no optimizer"),
            (NoLoss, r"NoLoss\.train_batch returned no loss"),
            (BareScheduler, "create_lr_scheduler returned a ConstantLR"),
        ]
    ):
        with pytest.raises(DetcloudError, match=message):
            train(tmp_path / str(number), monkeypatch, kind)


def test_hooks_are_called_by_their_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class Former(pytorch.PyTorchCallback):
        def on_training_epoch_start(self) -> None:  # type: ignore[override]
            calls.append(("epoch",))

        def on_validation_step_start(self) -> None:
            calls.append(("validation",))

        def on_validation_step_end(self, metrics: dict[str, Any]) -> None:
            calls.append(("validated", sorted(metrics)))

        def on_checkpoint_end(self, checkpoint_dir: Path) -> None:
            calls.append(("written", (checkpoint_dir / "state_dict.pth").exists()))

    class Current(pytorch.PyTorchCallback):
        def on_training_epoch_start(self, epoch_idx: int) -> None:
            calls.append(("epoch", epoch_idx))

        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            calls.append(("workload", avg_metrics["loss"], [m["loss"] for m in batch_metrics]))

    class Short(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: Any) -> None:  # type: ignore[override]
            calls.append(("short", avg_metrics["loss"]))

    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=4, closed=True)
    callbacks = {"former": Former(), "current": Current(), "short": Short()}
    cluster.run(lambda trial: trial.callbacks.update(callbacks))
    (_, average, losses), short = calls[2:4]
    assert len(losses) == 4
    assert short == ("short", average)
    assert average == pytest.approx(sum(losses) / 4)
    assert [*calls[:2], *calls[4:]] == [
        ("epoch",),
        ("epoch", 0),
        ("written", True),
        ("validation",),
        ("validated", ["loss"]),
    ]


def test_a_current_trial_may_define_build_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OwnMethod(LineTrial):
        def build_model(self) -> torch.nn.Module:
            raise AssertionError("nobody but the trial itself calls it")

    cluster = Cluster(tmp_path, monkeypatch, OwnMethod)
    cluster.direct(revision=1, length=5, closed=True)
    cluster.run()
    assert cluster.workloads == "T5 C5 V5 D5"


class ModelTakingLine(FormerLine):
    """Trial that wraps and steps a model by itself, with the names of an earlier release."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.model = context.Model(FormerLine.build_model(self))
        self.opt = context._Optimizer(FormerLine.optimizer(self, self.model))

    build_model = optimizer = property()

    def train_batch(  # type: ignore[override]
        self, batch: Any, model: torch.nn.Module, epoch_idx: int, batch_idx: int
    ) -> dict[str, Any]:
        context: Any = self.context
        loss = torch.nn.functional.mse_loss(self.model(context._to_device(batch[0])), batch[1])
        context._backward(loss)
        context._step_optimizer(self.opt)
        assert model is self.model
        return {"loss": loss, "nothing": None}


def test_former_trial_may_wrap_and_step_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, metrics = train(tmp_path, monkeypatch, ModelTakingLine)
    # A step per batch: a rate of 0.1 multiplies the weight's distance of 2 by 0.8.
    assert metrics[1]["metrics"]["weight"] == pytest.approx(2 - 2 * 0.8**4)
    assert "nothing" not in metrics[0]["metrics"]
    with pytest.raises(AttributeError, match="has no attribute 'modell'"):
        trial.context.modell  # noqa: B018
