"""Mixed precision on a machine without a GPU, and calls of apex."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from detcloud import DetcloudError, pytorch
from detcloud.pytorch.mixed_precision import MixedPrecision
from tests.unit.pytorch.line_trial import LineTrial


@pytest.fixture
def context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytorch.PyTorchTrialContext]:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with pytorch.init(checkpoint_dir=tmp_path, aggregation_frequency=2) as context:
        yield context


class AutomaticTrial(LineTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.use_amp()


@pytest.mark.parametrize("source", ["code", "configuration"])
def test_without_a_gpu_full_precision_is_used_and_logged(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp_conf = {"optimizations": {"mixed_precision": "O1"}} if source == "configuration" else {}
    weights = []
    for kind in (LineTrial, AutomaticTrial):
        with pytorch.init(checkpoint_dir=tmp_path, exp_conf=exp_conf) as context:
            trial = kind(context)
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(2))
        weights.append(trial.model.weight.item())
    assert weights[0] == weights[1]
    notices = [line for line in capsys.readouterr().err.splitlines() if "no GPU" in line]
    source_name = "context.experimental.use_amp"
    if source == "configuration":
        source_name = "optimizations.mixed_precision O1"
    assert {notice.split(":")[0] for notice in notices} == {f"[detcloud] {source_name}"}


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_gpu_computes_batches_in_autocast() -> None:
    precision = MixedPrecision(torch.device("cuda"))
    assert not isinstance(precision.autocast(), torch.autocast)
    precision.make_automatic("a test")
    block = precision.autocast()
    assert isinstance(block, torch.autocast)
    assert block.device == "cuda"


class Apex(ModuleType):
    """Substitute for apex.amp: records calls, and scales losses by 4."""

    def __init__(self) -> None:
        super().__init__("apex.amp")
        self.calls: list[Any] = []

    def initialize(self, models: Any, optimizers: Any, **options: Any) -> Any:
        self.calls.append(options)
        return models, optimizers

    @contextmanager
    def scale_loss(
        self, loss: Any, optimizers: list[Any], delay_unscale: bool
    ) -> Iterator[torch.Tensor]:
        self.calls.append((len(optimizers), delay_unscale))
        yield loss * 4

    def master_params(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        return list(optimizer.param_groups[0]["params"])

    def state_dict(self) -> dict[str, Any]:
        return {"loss_scaler0": 4.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls.append(state)


def test_installed_apex_is_initialized(
    context: pytorch.PyTorchTrialContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    apex = Apex()
    monkeypatch.setitem(sys.modules, "apex", ModuleType("apex"))
    monkeypatch.setitem(sys.modules, "apex.amp", apex)
    model = context.wrap_model(torch.nn.Linear(1, 1, bias=False))
    model.weight.data.fill_(0.0)
    optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    assert context.configure_apex_amp(model, optimizer, opt_level="O2") == (model, optimizer)
    for batch_idx in range(2):
        context.set_position(batch_idx, 4)
        context.backward(model(torch.ones(1, 1)).sum())
        context.step_optimizer(optimizer)
    # Two gradients of 4 make a single step by the average.
    assert model.weight.item() == -4.0
    assert apex.calls == [{"enabled": True, "opt_level": "O2"}, (1, True), (1, False)]
    context.precision.load_state_dict(context.precision.state_dict())
    assert apex.calls[-1] == {"loss_scaler0": 4.0}


def test_missing_apex_is_an_error_unless_disabled(
    context: pytorch.PyTorchTrialContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apex", None)
    assert context.configure_apex_amp("m", "o", enabled=False) == ("m", "o")
    with pytest.raises(DetcloudError, match=r"call context\.experimental\.use_amp\(\) instead"):
        context.configure_apex_amp("m", "o")
    context.experimental.use_amp()
    with pytest.raises(DetcloudError, match="exclude each other"):
        context.configure_apex_amp("m", "o")


def test_autocast_may_wrap_only_the_forward_pass(context: pytorch.PyTorchTrialContext) -> None:
    model = context.autocast_forward_pass(torch.nn.Linear(1, 1))
    assert model(torch.ones(1, 1)).dtype is torch.float32
