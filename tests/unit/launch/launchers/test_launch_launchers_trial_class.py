import sys
from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.launch.launchers.trial_class import load_trial_class
from tests.conftest import require

MODULE = """
from detcloud import pytorch

class Outer:
    class Inner(pytorch.PyTorchTrial):
        def __init__(self, context): pass
        def train_batch(self, batch, epoch_idx, batch_idx): pass
        def build_training_data_loader(self): pass
        def build_validation_data_loader(self): pass

class Half(pytorch.PyTorchTrial):
    def __init__(self, context): pass

class Other: pass

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    require("torch")
    name = f"model_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_nested_trial_class_is_loaded(module: str) -> None:
    assert load_trial_class(f"{module}:Outer.Inner").__qualname__ == "Outer.Inner"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Missing", "has no 'Missing'; its trial classes: Half"),
        ("Outer.Missing", "Outer has no 'Missing'"),
        ("Other", "is another class; expected a subclass of detcloud.pytorch.PyTorchTrial"),
        ("number", "is of type int; expected a subclass of"),
        ("Half", "does not define: build_training_data_loader, build_validation_data_loader"),
        ("Outer.", "has no ''"),
    ],
)
def test_error_for_an_invalid_trial_class_names_the_cause(
    module: str, path: str, message: str
) -> None:
    with pytest.raises(DetcloudError, match=message):
        load_trial_class(f"{module}:{path}")


def test_a_relative_module_name_is_refused() -> None:
    with pytest.raises(DetcloudError, match=r"'\.model' starts with a dot"):
        load_trial_class(".model:Trial")


def test_a_missing_module_differs_from_a_missing_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DetcloudError, match="there is no module 'no_such_model'"):
        load_trial_class("no_such_model:Trial")
    (tmp_path / "model_that_misses.py").write_text("import no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load_trial_class("model_that_misses:Trial")
    assert "model_that_misses" not in sys.modules
