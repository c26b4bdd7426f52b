"""Wrong calls of scripts raise the built-in errors that Determined raises."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from detcloud import DetcloudError, pytorch
from detcloud.compatibility import core
from detcloud.pytorch import samplers
from tests.unit.core.trial_files import direct, enter, make_trial, reports


def open_trial(folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> Path:
    trial = make_trial(folder, **spec)
    direct(trial, revision=1, length=8, closed=True)
    enter(trial, monkeypatch)
    return trial


def complete_twice(context: Any) -> None:
    operation = next(context.searcher.operations())
    operation.report_completed(0.5)
    operation.report_completed(0.5)


def leave_an_operation(context: Any) -> None:
    list(context.searcher.operations())


def report_after_completion(context: Any) -> None:
    operation = next(context.searcher.operations())
    operation.report_completed(0.5)
    operation.report_progress(operation.length)
    operation.report_progress(1)


CORE_CALLS: list[tuple[type[Exception], Callable[[Any], object]]] = [
    (ValueError, lambda item: item.train.report_progress(1.5)),
    (RuntimeError, lambda item: item.train.report_validation_metrics(1, {"loss": None})),
    (RuntimeError, lambda item: item.train.report_metrics("validation", 1, {"loss": None})),
    (ValueError, lambda item: item.train.report_early_exit("TIRED")),
    (RuntimeError, lambda item: item.train.upload_tensorboard_files()),
    (RuntimeError, lambda item: item.checkpoint.upload(None, {"steps_completed": 1})),
    (ValueError, lambda item: item.checkpoint.upload(".", {})),
    (ValueError, lambda item: item.profiler.on(sampling_interval=0.05)),
    (ValueError, lambda item: item.profiler.on(samples_per_report=0)),
    (ValueError, lambda item: item.profiler.on(samples_per_report=2.5)),
    (RuntimeError, complete_twice),
    (RuntimeError, leave_an_operation),
    (RuntimeError, report_after_completion),
    (ValueError, lambda item: list(item.searcher.operations("NOBODY"))),
]


@pytest.mark.parametrize(("kind", "call"), CORE_CALLS)
def test_wrong_core_calls_raise_determineds_error_types(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
    call: Callable[[Any], object],
) -> None:
    open_trial(tmp_path, monkeypatch)
    # A script catches the built-in type; the command line prints a DetcloudError without traceback.
    with core.init() as context, pytest.raises(kind) as caught:
        call(context)
    if kind is not ValueError or "NOBODY" not in str(caught.value):
        assert isinstance(caught.value, DetcloudError)


@pytest.mark.parametrize(
    ("kind", "options", "spec"),
    [
        (ValueError, {}, {"slots": [0, 1]}),
        (ValueError, {"preempt_mode": "NEVER"}, {}),
        (TypeError, {"checkpoint_storage": 3}, {}),
    ],
)
def test_invalid_context_options_raise_determineds_error_types(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
    options: dict[str, Any],
    spec: dict[str, Any],
) -> None:
    open_trial(tmp_path, monkeypatch, **spec)
    with pytest.raises(kind):
        core.init(**options)


def test_a_search_without_a_length_is_a_value_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = open_trial(tmp_path, monkeypatch)
    direct(trial, revision=2, length=1 << 53, closed=True)
    with core.init() as context, pytest.raises(ValueError, match="nothing says how long"):
        next(context.searcher.operations())


def test_only_the_chief_completes_an_operation() -> None:
    operation = core.SearcherOperation(SimpleNamespace(), is_chief=False)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not the chief"):
        operation.report_completed(1.0)


def test_modes_have_determineds_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = open_trial(tmp_path, monkeypatch)
    modes: Any = {"preempt_mode": "WORKERS_ASK_MASTER"}
    with core.init(**modes) as context:
        searcher: Any = context.searcher
        for operation in searcher.operations("CHEIF_ONLY"):
            operation.report_completed(0.5)
        context.train.report_early_exit("EXITED_REASON_USER_REQUESTED_STOP")
    assert reports(trial, "early_exit")[0]["reason"] == "USER_REQUESTED_STOP"


def scheduler_of(context: pytorch.PyTorchTrialContext) -> Any:
    optimizer = context.wrap_optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1))
    return torch.optim.lr_scheduler.ConstantLR(optimizer)


PYTORCH_CALLS: list[tuple[type[Exception], Callable[[Any], object]]] = [
    (ValueError, lambda item: item.get_hparam("depth")),
    (TypeError, lambda item: item.wrap_lr_scheduler(scheduler_of(item), "batch")),
    (TypeError, lambda item: item.set_stop_requested(1)),
    (ValueError, lambda item: samplers.DistributedBatchSampler([[1]], 2, 2)),
    (ValueError, lambda item: [item.wrap_reducer(one) for one in [item.wrap_reducer(sum)]]),
    (TypeError, lambda item: item.wrap_reducer(3)),
    (TypeError, lambda item: pytorch.data_length(3)),
    (ValueError, lambda item: pytorch.data_length({})),
    (TypeError, lambda item: pytorch.Trainer(object(), item)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("kind", "call"), PYTORCH_CALLS)
def test_wrong_trial_calls_raise_determineds_error_types(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
    call: Callable[[Any], object],
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with pytorch.init(checkpoint_dir=tmp_path) as context, pytest.raises(kind) as caught:
        call(context)
    assert isinstance(caught.value, DetcloudError)


def test_batches_are_shuffled_as_in_determined() -> None:
    # numpy.random.RandomState(3).shuffle of 0 to 5, twice.
    sampler = samplers.ReproducibleShuffleSampler(range(6), 3)
    assert [list(sampler), list(sampler)] == [[3, 5, 4, 1, 0, 2], [5, 4, 1, 2, 3, 0]]
