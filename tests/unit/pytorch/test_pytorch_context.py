import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from detcloud import DetcloudError, core, pytorch
from detcloud.pytorch.event_files import TorchWriter
from detcloud.pytorch.optimization import Optimization
from tests.unit.core.trial_files import enter, make_trial

Pair = namedtuple("Pair", "one other")


@pytest.fixture
def context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytorch.PyTorchTrialContext]:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with pytorch.init(
        hparams={"global_batch_size": 64, "rate": 0.5},
        exp_conf={"data": {"path": "x"}, "reproducibility": {"experiment_seed": 9}},
        checkpoint_dir=tmp_path,
    ) as context:
        yield context


def test_context_gives_access_to_the_configuration(context: pytorch.PyTorchTrialContext) -> None:
    assert context.get_hparam("rate") == 0.5
    assert context.get_hparams()["rate"] == 0.5
    assert context.get_per_slot_batch_size() == context.get_global_batch_size() == 64
    assert context.get_data_config() == {"path": "x"}
    assert context.get_experiment_config()["reproducibility"] == {"experiment_seed": 9}
    assert (context.get_trial_seed(), context.get_trial_id(), context.get_experiment_id()) == (
        9,
        0,
        0,
    )


def test_error_for_a_missing_hyperparameter_names_the_existing(
    context: pytorch.PyTorchTrialContext,
) -> None:
    with pytest.raises(DetcloudError, match="'depth' does not exist; there are: global_batch_size"):
        context.get_hparam("depth")


@pytest.mark.parametrize("size", [0, "64", True])
def test_a_batch_size_is_a_positive_integer(
    context: pytorch.PyTorchTrialContext, size: Any
) -> None:
    context.get_hparams()["global_batch_size"] = size
    with pytest.raises(DetcloudError, match="global_batch_size is"):
        context.get_per_slot_batch_size()


def test_context_seeds_the_generators(context: pytorch.PyTorchTrialContext) -> None:
    drawn = torch.rand(())
    torch.manual_seed(9)
    assert torch.equal(torch.rand(()), drawn)


def test_nested_structures_move_to_the_device(context: pytorch.PyTorchTrialContext) -> None:
    data = {"a": [torch.ones(1), (torch.ones(1), "text")], "b": Pair(torch.ones(1), 3)}
    moved = context.to_device(data)
    assert moved["a"][1][1] == "text"
    assert isinstance(moved["b"], Pair)
    assert moved["b"].one.device == context.device


# Epochs of 4 batches: batch 5 is the second of the second epoch.
@pytest.mark.parametrize(
    ("batch_idx", "epoch", "start", "end"),
    [(0, 0, True, False), (3, 0, False, True), (4, 1, True, False), (5, 1, False, False)],
)
def test_context_knows_batch_and_epoch(
    context: pytorch.PyTorchTrialContext, batch_idx: int, epoch: int, start: bool, end: bool
) -> None:
    context.set_position(batch_idx, 4)
    assert context.current_train_batch() == batch_idx
    # Code for Determined reads these private names.
    private: Any = context
    assert (private._current_batch_idx, private._core) == (batch_idx, context.core)
    assert context.current_train_epoch() == epoch
    assert (context.is_epoch_start(), context.is_epoch_end()) == (start, end)


def _weight() -> tuple[torch.nn.Parameter, torch.optim.SGD]:
    weight = torch.nn.Parameter(torch.zeros(1))
    return weight, torch.optim.SGD([weight], lr=1.0)


def test_configuration_determines_gradient_aggregation(tmp_path: Path) -> None:
    options = {"aggregation_frequency": 2, "average_aggregated_gradients": False}
    weight, optimizer = _weight()
    with pytorch.init(checkpoint_dir=tmp_path, exp_conf={"optimizations": options}) as context:
        for batch_idx, gradient in enumerate([1.0, 3.0]):
            (weight * gradient).sum().backward()  # type: ignore[no-untyped-call]
            context.optimization.step(optimizer, batch_idx, None, True)
    # A single step of rate 1 against 1 + 3.
    assert weight.item() == -4.0


@pytest.mark.parametrize(("average", "expected"), [(True, -2.0), (False, -4.0)])
def test_aggregated_gradients_make_a_single_step(average: bool, expected: float) -> None:
    weight, optimizer = _weight()
    optimization = Optimization(2, average)
    for batch_idx, gradient in enumerate([1.0, 3.0]):
        (weight * gradient).sum().backward()  # type: ignore[no-untyped-call]
        optimization.step(optimizer, batch_idx, None, True)
    # A single step of rate 1 against (1 + 3) / 2 or 1 + 3.
    assert weight.item() == expected
    assert weight.grad is None


def test_aggregation_requires_auto_zero_grads() -> None:
    _, optimizer = _weight()
    with pytest.raises(DetcloudError, match="leave auto_zero_grads on"):
        Optimization(2).step(optimizer, 0, None, False)
    Optimization(1).step(optimizer, 0, None, False)


@pytest.mark.parametrize("frequency", [0, -1, "2", True, 1.0])
def test_aggregation_frequency_must_be_a_positive_integer(frequency: Any) -> None:
    with pytest.raises(DetcloudError, match=r"aggregation_frequency is .*: an integer"):
        Optimization(frequency)


@pytest.mark.parametrize(
    ("mode", "frequency", "steps"),
    [
        (pytorch.StepMode.STEP_EVERY_BATCH, 1, 12),
        (pytorch.StepMode.STEP_EVERY_BATCH, 5, 2),  # after 5 and 10
        (pytorch.StepMode.STEP_EVERY_EPOCH, 1, 3),  # after 4, 8 and 12
        (pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH, 2, 1),  # after 8
        (pytorch.StepMode.STEP_EVERY_OPTIMIZER_STEP, 2, 3),  # after 4, 8 and 12: 2 batches a step
        (pytorch.StepMode.MANUAL_STEP, 1, 0),
    ],
)
def test_scheduler_steps_by_its_mode(mode: pytorch.StepMode, frequency: int, steps: int) -> None:
    optimizer = _weight()[1]
    optimization = Optimization(2)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    optimizer.step()
    optimization.add_scheduler(scheduler, mode, frequency)
    for batch_idx in range(12):
        optimization.step_schedulers(batch_idx, 4)
    assert scheduler.last_epoch == steps


@pytest.mark.parametrize(
    ("mode", "frequency", "aggregated", "epoch_length", "steps"),
    [
        # The scheduler's three steps follow each optimizer step, after batches 2, 5 and 8.
        (pytorch.StepMode.STEP_EVERY_BATCH, 1, 3, 4, [0, 0, 3, 3, 3, 6, 6, 6, 9]),
        # Of the batches 2, 4, 6 and 8, the first three batches have 1, the next 2, the last 1.
        (pytorch.StepMode.STEP_EVERY_BATCH, 2, 3, 4, [0, 0, 1, 1, 1, 3, 3, 3, 4]),
        # The epochs end with batches 3 and 7; the last optimizer steps before are at 2 and 5.
        (pytorch.StepMode.STEP_EVERY_EPOCH, 1, 3, 4, [0, 0, 1, 1, 1, 2, 2, 2, 2]),
        # An epoch has a single batch, and an optimizer step has three batches.
        (pytorch.StepMode.STEP_EVERY_EPOCH, 2, 3, 1, [0, 0, 1, 1, 1, 3, 3, 3, 4]),
        (pytorch.StepMode.STEP_EVERY_EPOCH, 1, 1, 4, [0, 0, 0, 1, 1, 1, 1, 2, 2]),
        (pytorch.StepMode.STEP_EVERY_OPTIMIZER_STEP, 2, 3, 4, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_scheduler_steps_only_at_optimizer_steps_as_in_determined(
    mode: pytorch.StepMode, frequency: int, aggregated: int, epoch_length: int, steps: list[int]
) -> None:
    optimizer = _weight()[1]
    optimization = Optimization(aggregated)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    optimizer.step()
    optimization.add_scheduler(scheduler, mode, frequency)
    counts = []
    for batch_idx in range(9):
        optimization.step_schedulers(batch_idx, epoch_length)
        counts.append(scheduler.last_epoch)
    assert counts == steps


def test_a_custom_scheduler_needs_no_optimizer(
    context: pytorch.PyTorchTrialContext,
) -> None:
    own: Any = SimpleNamespace(step=lambda: None)
    context.wrap_lr_scheduler(own, pytorch.StepMode.STEP_EVERY_BATCH)
    assert context.lr_schedulers == [own]


def test_invalid_scheduler_options_are_refused(context: pytorch.PyTorchTrialContext) -> None:
    optimizer = context.wrap_optimizer(_weight()[1])
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(DetcloudError, match="frequency is 0"):
        context.wrap_lr_scheduler(scheduler, pytorch.StepMode.MANUAL_STEP, 0)
    with pytest.raises(DetcloudError, match="step_mode is 'batch'"):
        context.wrap_lr_scheduler(scheduler, "batch")  # type: ignore[arg-type]


def test_a_checkpoint_with_fewer_models_is_refused() -> None:
    optimization = Optimization()
    optimization.models.append(torch.nn.Linear(1, 1))
    with pytest.raises(DetcloudError, match="holds 0 models, the trial wrapped 1"):
        optimization.load_models({"models_state_dict": []})


@pytest.mark.parametrize("clips", [False, True])
def test_scaled_gradients_are_unscaled_before_clipping(clips: bool) -> None:
    weight, optimizer = _weight()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimization = Optimization(scaler=scaler)
    scaler.scale((weight * 3.0).sum()).backward()  # type: ignore[no-untyped-call]
    norms: list[float] = []

    def clip(parameters: Any) -> None:
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())

    optimization.step(optimizer, 0, clip if clips else None, True, scaler, unscales=True)
    # A step of rate 1 against 3, or against 3 clipped to 1.
    assert weight.item() == pytest.approx(-1.0 if clips else -3.0, abs=1e-5)
    assert norms == ([3.0] if clips else [])


def test_a_trials_own_scaler_must_unscale_before_clipping(
    context: pytorch.PyTorchTrialContext,
) -> None:
    weight, optimizer = _weight()
    context.wrap_optimizer(optimizer)
    scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
    norms: list[float] = []

    def clip(parameters: Any) -> None:
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())

    for unscales in (True, False):
        context.backward(scaler.scale((weight * 3.0).sum()))
        if unscales:
            scaler.unscale_(optimizer)
        context.step_optimizer(optimizer, clip_grads=clip, scaler=scaler)
        scaler.update()
    # The gradient is 3, and scaled 8 * 3.
    assert norms == [3.0, 24.0]


def test_the_scale_is_part_of_a_checkpoint(context: pytorch.PyTorchTrialContext) -> None:
    context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
    state = context.optimization.state_dict()
    later = Optimization(scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
    later.load_state_dict(state)
    assert later.scaler is not None
    assert later.scaler.get_scale() == 8.0
    with pytest.raises(DetcloudError, match="wrap_scaler was called twice"):
        context.wrap_scaler(torch.amp.GradScaler("cpu"))


def test_event_files_have_a_folder(context: pytorch.PyTorchTrialContext, tmp_path: Path) -> None:
    assert context.get_tensorboard_path() == tmp_path / "tensorboard" / "0" / "0"
    assert context.get_tensorboard_path().is_dir()


def test_optimizers_may_override_gradient_averaging(tmp_path: Path) -> None:
    with pytorch.init(checkpoint_dir=tmp_path, aggregation_frequency=2) as context:
        weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizers = [
            context.wrap_optimizer(
                torch.optim.SGD([weight], lr=1.0),
                backward_passes_per_step=2,
                fp16_compression=True,
                average_aggregated_gradients=average,
            )
            for weight, average in zip(weights, (True, False), strict=True)
        ]
        for batch_idx in range(2):
            context.set_position(batch_idx, 4)
            for weight, optimizer in zip(weights, optimizers, strict=True):
                context.backward((weight * 3.0).sum())
                context.step_optimizer(optimizer)
        # Two gradients of 3, averaged or added.
        assert [weight.item() for weight in weights] == [-3.0, -6.0]
        with pytest.raises(DetcloudError, match="backward_passes_per_step is 0"):
            context.wrap_optimizer(_weight()[1], 0)


def test_scheduler_requires_a_wrapped_optimizer(
    context: pytorch.PyTorchTrialContext,
) -> None:
    optimizer = _weight()[1]
    schedulers = torch.optim.lr_scheduler
    with pytest.raises(DetcloudError, match="ConstantLR was made for an optimizer that is not"):
        context.wrap_lr_scheduler(
            schedulers.ConstantLR(optimizer), pytorch.StepMode.STEP_EVERY_BATCH
        )
    context.wrap_optimizer(optimizer)
    plateau = schedulers.ReduceLROnPlateau(optimizer)
    with pytest.raises(DetcloudError, match=r"use StepMode\.MANUAL_STEP"):
        context.wrap_lr_scheduler(plateau, pytorch.StepMode.STEP_EVERY_EPOCH)
    context.wrap_lr_scheduler(plateau, pytorch.StepMode.MANUAL_STEP)
    assert context.lr_schedulers == [plateau]


def test_a_trial_may_write_event_files(
    context: pytorch.PyTorchTrialContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = context.get_tensorboard_writer()
    assert context.get_tensorboard_writer() is writer
    former = TorchWriter()
    for each in (writer, former.writer, former):
        each.add_scalar("mine", 1.0, 2)
    former.reset()
    assert len(list((tmp_path / "tensorboard").rglob("*tfevents*"))) == 2
    context.set_enable_tensorboard_logging(False)
    context.core.train.report_training_metrics(1, {"loss": 1.0})
    assert not context.get_enable_tensorboard_logging()
    assert len(list((tmp_path / "tensorboard").rglob("*tfevents*"))) == 2
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DetcloudError, match="needs the package tensorboard"):
        TorchWriter()


def test_a_custom_batch_type_is_moved_by_its_to_method(
    context: pytorch.PyTorchTrialContext,
) -> None:
    batch = SimpleNamespace(to=lambda device: ("moved", device))
    assert context.to_device([batch]) == [("moved", context.device)]


def test_batch_mover_keeps_batches_on_the_device(
    context: pytorch.PyTorchTrialContext,
) -> None:
    move, own = context.batch_mover(), SimpleNamespace(to=lambda device: ("moved", device))
    tensors = [torch.ones(1), torch.zeros(1)]
    assert move(tensors) is tensors
    assert move([*tensors, own]) == [*tensors, ("moved", context.device)]
    assert move({"own": own}) == {"own": ("moved", context.device)}


def test_arrays_of_numbers_become_tensors_on_the_device(
    context: pytorch.PyTorchTrialContext,
) -> None:
    words = np.array(["a", "b"])
    moved = context.to_device({"x": [np.array([1.5, 2.5])], "words": words})
    assert moved["words"] is words
    assert torch.equal(moved["x"][0], torch.tensor([1.5, 2.5], dtype=torch.float64))


@pytest.mark.parametrize(
    ("batch", "length"),
    [
        (torch.zeros(3, 2), 3),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4)}, 4),
        (({"x": torch.zeros(5)},), 5),
        ({"text": ["a", "b"]}, 2),
        ([["a", "b", "c"], torch.zeros(3)], 3),
    ],
)
def test_length_of_a_batch_is_the_length_of_its_first_part(batch: Any, length: int) -> None:
    assert pytorch.data_length(batch) == length


def test_batch_size_is_rounded_down_to_a_multiple_of_the_slots(
    context: pytorch.PyTorchTrialContext, capsys: pytest.CaptureFixture[str]
) -> None:
    context.distributed = core.DistributedContext(size=5)
    for _ in range(2):
        # 64 over 5 slots are 12 per slot, and 60 together.
        assert (context.get_per_slot_batch_size(), context.get_global_batch_size()) == (12, 60)
    assert capsys.readouterr().out.count("global_batch_size 64 is rounded down to 60") == 1


def test_get_model_without_a_model_is_an_error(context: pytorch.PyTorchTrialContext) -> None:
    with pytest.raises(DetcloudError, match="no model yet: wrap one, or define build_model"):
        context.get_model()
    assert context.get_lr_scheduler() is None


def test_hyperparameters_of_a_script_take_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(make_trial(tmp_path, hparams={"rate": 0.5}), monkeypatch)
    with pytorch.init() as context:
        assert context.get_hparams() == {"rate": 0.5}
    with pytorch.init(hparams={"rate": 0.5, "depth": 2}) as context:
        assert context.get_hparams() == {"rate": 0.5, "depth": 2}
        assert context.core.info.hparams == context.get_hparams()
