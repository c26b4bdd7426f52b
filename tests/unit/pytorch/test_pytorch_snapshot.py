import random
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from detcloud import DetcloudError
from detcloud.pytorch import generators, snapshot


def test_tensors_and_plain_data_are_loaded_unchanged(tmp_path: Path) -> None:
    state = {
        "tensor": torch.ones(2),
        "nested": [1, 2.5, "x", None, True, (1, 2)],
        "ordered": OrderedDict(a=1),
        "counts": Counter([3, 3]),
    }
    snapshot.save_state(state, tmp_path)
    loaded = snapshot.load_state(tmp_path)
    assert torch.equal(loaded.pop("tensor"), state.pop("tensor"))  # type: ignore[arg-type]
    assert loaded == state


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (numpy.float64(1), r"checkpoint\['a'\]\[0\] is a numpy.float64"),
        (Path("x"), r"checkpoint\['a'\]\[0\] is a pathlib.PosixPath"),
        (defaultdict(int), "collections.defaultdict"),
        (len, "builtins.builtin_function_or_method"),
    ],
)
def test_unsupported_objects_are_refused_when_saving(
    tmp_path: Path, value: Any, message: str
) -> None:
    with pytest.raises(DetcloudError, match=message):
        snapshot.save_state({"a": [value]}, tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil-was-here"),)


def test_a_state_file_with_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Evil()}, tmp_path / "state_dict.pth")
    with pytest.raises(DetcloudError, match="cannot be read"):
        snapshot.load_state(tmp_path)
    assert not (tmp_path / "evil-was-here").exists()


def test_a_folder_without_a_state_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DetcloudError, match=r"no state_dict\.pth: no PyTorchTrial wrote it"):
        snapshot.load_state(tmp_path)


def _draws() -> list[float]:
    # Normal draws keep a second value in reserve, which is part of the state.
    return [
        random.random(),
        random.gauss(0, 1),
        float(numpy.random.random()),
        float(numpy.random.normal()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_generators_continue_from_the_captured_state(tmp_path: Path) -> None:
    generators.seed_all(5)
    _draws()
    snapshot.save_state(generators.capture_state(), tmp_path)
    expected = _draws()
    generators.seed_all(6)
    generators.restore_state(snapshot.load_state(tmp_path))
    assert _draws() == expected


def test_preserve_state_restores_the_generators() -> None:
    generators.seed_all(5)
    expected = _draws()
    generators.seed_all(5)
    with generators.preserve_state():
        _draws()
    assert _draws() == expected


def test_parts_of_an_older_checkpoint_are_renamed(tmp_path: Path) -> None:
    parts = {"models": [1], "optimizers": [2], "schedulers": [3], "scaler": {"scale": 4.0}}
    snapshot.save_state({**parts, "position": {}}, tmp_path)
    assert snapshot.load_state(tmp_path, ("models_state_dict",)) == {
        "models_state_dict": [1],
        "optimizers_state_dict": [2],
        "lr_schedulers_state_dict": [3],
        "scaler_state_dict": {"scale": 4.0},
        "position": {},
    }
