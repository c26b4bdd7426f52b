from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from detcloud.pytorch import snapshot
from detcloud.pytorch.optimization import Optimization, StepMode
from detcloud.pytorch.plain_state import restore_types, to_plain
from detcloud.shared.errors import DetcloudError


class AttributeDict(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class SizedSchedule(schedulers.LRScheduler):
    """User-defined scheduler with settings, a function and a NumPy number in the state."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: AttributeDict) -> None:
        self.settings = settings
        self.change: Any = lambda lr: lr / 2
        self.size = np.float64(settings.size)
        parent: Any = super()
        parent.__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        return [self.change(lr) * self.settings.size for lr in self.base_lrs]


def store_and_load(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    snapshot.save_state(to_plain(state), folder)
    return snapshot.load_state(folder)


def make_optimization(lr: Any, make: Any) -> Optimization:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimization = Optimization(models=[model], optimizers=[optimizer])
    optimization.add_scheduler(make(optimizer), StepMode.MANUAL_STEP, 1)
    return optimization


def test_a_custom_scheduler_is_restored_with_its_types(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_optimization(
        np.float64(0.5), lambda optimizer: SizedSchedule(optimizer, AttributeDict(size=3))
    )
    scheduler: Any = before.schedulers[0][0]
    scheduler.settings["size"] = 4
    before.optimizers[0].step()
    scheduler.step()
    before.state_dict()
    state = store_and_load(before.state_dict(), tmp_path)
    assert capsys.readouterr().out.count("checkpoints leave out SizedSchedule.change") == 1
    after = make_optimization(
        0.1, lambda optimizer: SizedSchedule(optimizer, AttributeDict(size=3))
    )
    after.load_state_dict(state)
    restored: Any = after.schedulers[0][0]
    # Half of the first rate times the changed size: 0.5 / 2 * 4.
    assert after.optimizers[0].param_groups[0]["lr"] == 1.0
    assert (restored.settings.size, restored.last_epoch) == (4, 1)
    assert type(restored.settings) is AttributeDict
    assert type(restored.size) is np.float64
    restored.step()
    assert after.optimizers[0].param_groups[0]["lr"] == 1.0


MAKERS: dict[str, Any] = {
    "one_cycle": lambda item: schedulers.OneCycleLR(item, 0.1, total_steps=9),
    "cyclic": lambda item: schedulers.CyclicLR(item, 0.1, 0.2),
    "cyclic_function": lambda item: schedulers.CyclicLR(item, 0.1, 0.2, scale_fn=lambda x: x),
    "lambda": lambda item: schedulers.LambdaLR(item, lambda epoch: 0.5**epoch),
    "multiplicative": lambda item: schedulers.MultiplicativeLR(item, lambda _: 0.5),
    "multi_step": lambda item: schedulers.MultiStepLR(item, [2, 4]),
    "warm_restarts": lambda item: schedulers.CosineAnnealingWarmRestarts(item, 3),
    "polynomial": lambda item: schedulers.PolynomialLR(item, 5),
    "plateau": lambda item: schedulers.ReduceLROnPlateau(item),
    "sequential": lambda item: schedulers.SequentialLR(
        item, [schedulers.ConstantLR(item), schedulers.ExponentialLR(item, 0.5)], [2]
    ),
    "chained": lambda item: schedulers.ChainedScheduler([schedulers.StepLR(item, 2)]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_torchs_schedulers_resume_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    before, after = (make_optimization(0.1, MAKERS[name]) for _ in range(2))
    metric = (1.0,) if name == "plateau" else ()
    scheduler: Any = before.schedulers[0][0]
    for _ in range(3):
        before.optimizers[0].step()
        scheduler.step(*metric)
    after.load_state_dict(store_and_load(before.state_dict(), tmp_path))
    restored: Any = after.schedulers[0][0]
    for stepped, optimization in ((scheduler, before), (restored, after)):
        optimization.optimizers[0].step()
        stepped.step(*metric)
    rates = [item.optimizers[0].param_groups[0]["lr"] for item in (before, after)]
    assert rates[0] == rates[1]


def test_values_become_plain_and_types_are_restored() -> None:
    pair = namedtuple("pair", "a b")
    value = {
        "scalar": np.int64(3),
        "flag": np.bool_(True),
        "array": np.array([1.5, 2.5]),
        "pair": pair(np.float32(0.5), [1]),
        "attributes": AttributeDict(x=AttributeDict(y=1)),
        "keys": {np.int64(3): 1.0},
    }
    plain = to_plain(value)
    assert {name: type(item) for name, item in plain.items()} == {
        "scalar": int,
        "flag": bool,
        "array": torch.Tensor,
        "pair": tuple,
        "attributes": dict,
        "keys": dict,
    }
    assert plain["keys"] == {3: 1.0}
    snapshot.check_plain(plain)
    again = restore_types(value, plain)
    assert {name: type(item) for name, item in again.items()} == {
        name: type(item) for name, item in value.items()
    }
    assert (again["pair"], again["attributes"].x.y) == (pair(0.5, [1]), 1)
    assert again["array"].tolist() == [1.5, 2.5]


def test_plain_state_is_kept_and_objects_are_refused() -> None:
    state = torch.nn.Linear(1, 1).state_dict()
    assert to_plain(state) is state
    assert to_plain([1, "a"]) == [1, "a"]
    with pytest.raises(DetcloudError, match=r"checkpoint\['a'\] is a builtins\.object"):
        snapshot.check_plain(to_plain({"a": object()}))
