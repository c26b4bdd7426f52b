import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import DetcloudError, pytorch
from detcloud.client import Client
from detcloud.client.model import ModelVersion
from detcloud.pytorch.stored_code import FILES_MAX, write_code
from tests.unit.client.fake_cluster import TOKEN, FakeCluster
from tests.unit.client.fake_server import serve_cluster
from tests.unit.core.trial_files import direct, enter, make_trial, reports
from tests.unit.pytorch.line_trial import SPEC, LineTrial
from tests.unit.pytorch.test_pytorch_former_trial import FormerLine

CODE = """
import torch
from torch.utils.data import TensorDataset
from determined import pytorch
from layers import make_layer

class Model:
    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context, scale=1):
            self.context, self.scale = context, scale
            self.model = context.wrap_model(make_layer(context.get_hparam("width")))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))

        def train_batch(self, batch, epoch_idx, batch_idx):
            loss = self.model(batch[0]).pow(2).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            return {"loss": self.model(batch[0]).pow(2).mean()}

        def build_training_data_loader(self):
            return pytorch.DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)

        build_validation_data_loader = build_training_data_loader
"""
LAYERS = "import torch\n\ndef make_layer(width):\n    return torch.nn.Linear(2, width)\n"


def stored_checkpoint(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """Train a trial of CODE; return the folder of its last checkpoint, and the trial."""
    trial_directory = make_trial(
        root,
        **SPEC,
        hparams={"width": 3},
        config={"name": "x", "checkpoint_storage": {"secret_key": "s"}},
    )
    enter(trial_directory, monkeypatch)
    code = trial_directory / "code"
    (code / "model_def.py").write_text(CODE)
    (code / "layers.py").write_text(LAYERS)
    (code / ".hidden").write_text("")
    direct(trial_directory, revision=1, length=2, closed=True)
    monkeypatch.setitem(sys.modules, "determined", __import__("detcloud"))
    monkeypatch.setitem(sys.modules, "determined.pytorch", pytorch)
    with stored_code_path(code), pytorch.init() as context:
        from model_def import Model  # type: ignore[import-not-found]

        trial = Model.Trial(context)
        pytorch.Trainer(trial, context).fit()
    for name in ("model_def", "layers"):
        sys.modules.pop(name, None)
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR")
    monkeypatch.chdir(root)
    return root / "store" / reports(trial_directory, "checkpoint")[-1]["path"], trial


def stored_code_path(code: Path) -> Any:
    from detcloud.compatibility.functions import import_from_path

    return import_from_path(code)


def test_load_trial_rebuilds_the_trial_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trained = stored_checkpoint(tmp_path, monkeypatch)
    code = sorted(str(path.relative_to(folder)) for path in (folder / "code").iterdir())
    assert code == ["code/layers.py", "code/model_def.py"]
    load_data = json.loads((folder / "load_data.json").read_text())
    assert load_data["trial_cls_spec"] == "model_def:Model.Trial"
    assert load_data["experiment_config"] == {"name": "x"}
    loaded: Any = pytorch.load_trial_from_checkpoint_path(folder, trial_kwargs={"scale": 2})
    assert (loaded.scale, loaded.context.get_hparams()) == (2, {"width": 3})
    assert torch.equal(loaded.model.weight, trained.model.weight)
    assert isinstance(loaded.context, pytorch.CheckpointLoadContext)


def test_a_checkpoint_of_a_former_trial_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    weight = torch.tensor([[3.0]])
    torch.save({"model_state_dict": {"weight": weight}}, tmp_path / "state_dict.pth")
    loaded = pytorch.load_trial_from_checkpoint_path(str(tmp_path), FormerLine)
    assert isinstance(loaded, FormerLine)
    assert torch.equal(next(loaded.context.get_model().parameters()), weight)


def test_errors_of_unloadable_checkpoints_name_the_cause(tmp_path: Path) -> None:
    with pytest.raises(DetcloudError, match="does not say which class"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)
    (tmp_path / "load_data.json").write_text('{"trial_cls_spec": "no_such_module:Trial"}')
    with pytest.raises(DetcloudError, match=r"no_such_module:Trial .* cannot be imported"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)
    with pytest.raises(DetcloudError, match=r"state_dict\.pth cannot be read"):
        pytorch.load_trial_from_checkpoint_path(tmp_path, LineTrial)
    (tmp_path / "load_data.json").write_text("{")
    with pytest.raises(DetcloudError, match=r"load_data\.json is not JSON"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)


def test_oversized_code_is_not_copied_into_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(make_trial(tmp_path, **SPEC), monkeypatch)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    for number in range(FILES_MAX):
        Path(f"{number}.py").touch()
    with pytorch.init() as context:
        trial = LineTrial(context)
        write_code(first, trial, context.core)
        assert "the checkpoint has no copy" not in capsys.readouterr().err
        Path("one_more.py").touch()
        write_code(second, trial, context.core)
    assert len(list((first / "code").iterdir())) == FILES_MAX
    assert [path.name for path in second.iterdir()] == ["load_data.json"]
    assert "the checkpoint has no copy" in capsys.readouterr().err


def test_reset_parameters_draws_new_weights() -> None:
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.clone()
    pytorch.reset_parameters(torch.nn.Sequential(layer, torch.nn.ReLU()))
    assert not torch.equal(layer.weight, before)


@pytest.mark.parametrize("has_copy", [True, False])
def test_load_call_of_an_exported_version_rebuilds_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_copy: bool
) -> None:
    folder, trained = stored_checkpoint(tmp_path, monkeypatch)
    code = tmp_path / "submitted"
    (folder / "code").rename(code)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    if has_copy:
        contents |= {f"code/{path.name}": path.read_bytes() for path in code.iterdir()}
    with serve_cluster(FakeCluster()) as fake, Client(fake.url, TOKEN) as client:
        client.create_experiment({"name": "x", "searcher": {"name": "single"}}, code)
        fake.add_checkpoint("12345678-aaaa", contents)
        fields = {"model": "m", "number": 1, "name": "", "checkpoint_uuid": "12345678-aaaa"}
        version = ModelVersion(client, {**fields, "trial_id": 1, "experiment_id": 1})
        manifest = version.export(tmp_path / "exported")
    assert manifest["framework"]["trial_class"] == "model_def:Model.Trial"
    assert manifest["framework"]["torch_version"] == torch.__version__
    shutil.rmtree(code)
    monkeypatch.chdir(tmp_path / "exported")
    # The call may put the code's folder into the path.
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: dict[str, Any] = {}
    exec(manifest["load"], names)
    for name in ("model_def", "layers"):
        sys.modules.pop(name, None)
    assert torch.equal(names["trial"].model.weight, trained.model.weight)


SCRIPT = f"""{CODE}
if __name__ == "__main__":
    with pytorch.init() as context:
        pytorch.Trainer(Model.Trial(context), context).fit()
"""


def test_a_trial_class_in_a_script_of_a_subfolder_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_directory = make_trial(tmp_path, **SPEC, hparams={"width": 3})
    direct(trial_directory, revision=1, length=2, closed=True)
    source = trial_directory / "code" / "src"
    source.mkdir(parents=True)
    (source / "a-script.py").write_text(SCRIPT.replace("from determined", "from detcloud"))
    (source / "layers.py").write_text(LAYERS)
    environment = {**os.environ, "DETCLOUD_TRIAL_DIR": str(trial_directory)}
    command = [sys.executable, "src/a-script.py"]
    done = subprocess.run(command, cwd=source.parent, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    folder = tmp_path / "store" / reports(trial_directory, "checkpoint")[-1]["path"]
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    loaded: Any = pytorch.load_trial_from_checkpoint_path(folder)
    assert loaded.model.weight.shape == (3, 2)
    assert type(loaded).__module__ == "a-script"
