"""Checkpoints of Determined 0.12 to 0.38 are read without running pickled code."""

import pickle
import random
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detcloud import DetcloudError, pytorch
from detcloud.compatibility.functions import import_from_path
from detcloud.compatibility.modules import install_modules
from detcloud.pytorch import restricted_pickle, snapshot
from detcloud.pytorch.original_checkpoint import PLAIN_UNPICKLING
from detcloud.pytorch.restricted_pickle import Placeholder
from tests.unit.pytorch import original_writers
from tests.unit.pytorch.original_writers import NUMPY_1, WRITERS, state, train_model, write_code

WAS_RUN = Path("evil-was-here")


@pytest.fixture(autouse=True)
def fresh_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    install_modules()
    monkeypatch.setitem(sys.modules, "determined", __import__("detcloud"))
    monkeypatch.setitem(sys.modules, "determined.pytorch", pytorch)
    yield
    sys.modules.pop("model_def", None)
    assert not WAS_RUN.exists()


@pytest.mark.parametrize("release", WRITERS)
def test_load_trial_reads_checkpoints_of_all_releases(tmp_path: Path, release: str) -> None:
    folder = tmp_path / "checkpoint"
    weight = WRITERS[release](folder)
    trial: Any = pytorch.load_trial_from_checkpoint_path(folder)
    assert torch.equal(trial.context.models[0].weight, weight)
    loaded: Any = pytorch.load_trial_from_checkpoint_path(
        str(folder), torch_load_kwargs={"map_location": "cpu"}
    )
    assert type(loaded).__name__ == "Line"


@pytest.mark.parametrize("release", WRITERS)
def test_generators_are_restored_from_original_checkpoints(tmp_path: Path, release: str) -> None:
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)
    WRITERS[release](tmp_path / "checkpoint")
    expected = [random.random(), float(np.random.normal()), float(torch.rand(()))]
    state = snapshot.load_state(tmp_path / "checkpoint", ("models_state_dict", "generators"), 3)
    assert state["position"]["steps"] == 3
    if release.startswith("0.12.3"):
        return
    pytorch.generators.restore_state(state["generators"])
    assert [random.random(), float(np.random.normal()), float(torch.rand(()))] == expected


@pytest.mark.parametrize("writer", [original_writers.write_0_12_13, original_writers.write_0_38])
def test_training_continues_from_original_checkpoints(tmp_path: Path, writer: Any) -> None:
    folder = tmp_path / "checkpoint"
    weight = writer(folder)
    with import_from_path(folder / "code"):
        import model_def  # type: ignore[import-not-found]

    start: list[torch.Tensor] = []

    class Line(model_def.Line):  # type: ignore[misc]
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if not start:
                start.append(self.model.weight.detach().clone())
            return super().train_batch(batch, epoch_idx, batch_idx)

    state = snapshot.load_state(folder, ("models_state_dict", "optimizers_state_dict"), 1)
    with pytorch.init(hparams={"width": 2}) as context:
        trial = Line(context)
        context.optimization.load_state_dict(state)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(2))
    assert torch.equal(start[0], weight)


def test_objects_of_unknown_classes_are_not_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original_writers.write_0_21(tmp_path)
    state = snapshot.load_state(tmp_path, ("models_state_dict",))
    assert isinstance(state["callbacks"]["counter"]["object"], Placeholder)
    assert state["callbacks"]["plain"] == {"n": 3}
    kept = restricted_pickle.without_unreadable(state["callbacks"], "callbacks")
    assert kept == {"plain": {"n": 3}}
    out = capsys.readouterr().out
    assert "callbacks['counter']['object'] of the checkpoint is left out" in out
    assert "original_writers.Counter" in out


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (WAS_RUN,)


class EvilState:
    def __setstate__(self, state: object) -> None:
        WAS_RUN.touch()

    def __getstate__(self) -> object:
        return {"a": 1}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("evil", [Evil(), EvilState(), Path.touch, [Evil()], {Evil: EvilState}])
def test_no_code_of_a_checkpoint_runs(
    tmp_path: Path, evil: object, protocol: int, zipped: bool
) -> None:
    model, optimizer, _ = train_model()
    write_code(tmp_path)
    parts = state(model, optimizer, callbacks={"evil": evil})
    options: dict[str, Any] = {
        "pickle_protocol": protocol,
        "_use_new_zipfile_serialization": zipped,
    }
    torch.save(parts, tmp_path / "state_dict.pth", **options)
    loaded = snapshot.load_state(tmp_path, ("models_state_dict",))
    assert restricted_pickle.without_unreadable(loaded["callbacks"], "callbacks") == {}


def test_an_unknown_object_among_the_weights_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, _ = train_model()
    weights = {**model.state_dict(), "extra": original_writers.Counter()}
    write_code(tmp_path)
    original_writers.write_load_data(tmp_path)
    torch.save(state(model, optimizer, models_state_dict=[weights]), tmp_path / "state_dict.pth")
    for read in (
        lambda: snapshot.load_state(tmp_path, ("models_state_dict",)),
        lambda: pytorch.load_trial_from_checkpoint_path(tmp_path),
    ):
        with pytest.raises(DetcloudError, match=r"Counter at models_state_dict\[0\]\['extra'\]"):
            read()
    # The user allows unpickling by torch's environment variable.
    monkeypatch.setenv(PLAIN_UNPICKLING, "1")
    loaded = snapshot.load_state(tmp_path, ("models_state_dict",))
    assert loaded["models_state_dict"][0]["extra"].count == 7


def test_code_of_a_checkpoint_runs_only_with_weights_only_false(tmp_path: Path) -> None:
    torch.save({"a": Evil()}, tmp_path / "state_dict.pth")
    with pytest.raises(DetcloudError, match="cannot be read"):
        snapshot.load_state(tmp_path)
    assert not WAS_RUN.exists()
    torch.load(tmp_path / "state_dict.pth", weights_only=False)
    assert WAS_RUN.exists()
    WAS_RUN.unlink()


HOSTILE_DTYPES: list[tuple[Any, ...]] = [
    # Flags that declare the numbers as objects.
    (3, "<", None, None, None, -1, -1, 63),
    (3, "<", None, ("a",), {"a": (np.dtype("u4"), 0)}, -1, -1, 0),
    (3, "<", (np.dtype("u4"), (2,)), None, None, -1, -1, 0),
    (3, "<", None, None, None, 4096, 1, 0),
    (3, 7, None, None, None, -1, -1, 0),
    (3, "<"),
]


class HostileArray:
    def __init__(self, dtype_state: tuple[Any, ...]) -> None:
        self.dtype_state = dtype_state

    def __reduce__(self) -> Any:
        dtype = _Dtype(self.dtype_state)
        content = (1, (2,), dtype, False, b"\0" * 8)
        reconstruct = np.zeros(1).__reduce__()[0]
        return reconstruct, (np.ndarray, (0,), b"b"), content


class _Dtype:
    def __init__(self, dtype_state: tuple[Any, ...]) -> None:
        self.dtype_state = dtype_state

    def __reduce__(self) -> Any:
        return np.dtype, ("u4", False, True), self.dtype_state


@pytest.mark.parametrize("dtype_state", HOSTILE_DTYPES)
def test_arrays_with_forged_types_are_refused(dtype_state: tuple[Any, ...]) -> None:
    content = pickle.dumps(HostileArray(dtype_state), protocol=2)
    with pytest.raises(pickle.UnpicklingError):
        restricted_pickle.Unpickler(__import__("io").BytesIO(content)).load()


ARRAYS = [np.arange(6).reshape(2, 3).T, np.array(1.5), np.array(["ä", "b"]), np.array([b"x"])]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("array", [*ARRAYS, np.arange(3, dtype=">f8"), np.array([True])])
def test_arrays_are_unpickled_unchanged(array: Any, protocol: int, tmp_path: Path) -> None:
    values = [array, array.dtype.type(array.flat[0]), {1, 2}, frozenset([3]), b"\xff\0"]
    with (tmp_path / "file").open("wb") as file:
        NUMPY_1.Pickler(file, protocol).dump(values)
    with (tmp_path / "file").open("rb") as file:
        loaded = restricted_pickle.load(file)
    # For protocols before 5, NumPy swaps the bytes into the machine's order.
    by_pickle = pickle.loads(pickle.dumps(values, protocol))
    assert loaded[0].dtype == by_pickle[0].dtype
    assert (loaded[0] == array).all()
    assert loaded[1:] == values[1:]


def test_a_checkpoint_of_a_keras_trial_is_refused(tmp_path: Path) -> None:
    original_writers.write_load_data(tmp_path, trial_type="TFKerasTrial")
    with pytest.raises(DetcloudError, match="is a checkpoint of a TFKerasTrial"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)


def test_metadata_of_later_releases_do_not_name_a_class(tmp_path: Path) -> None:
    write_code(tmp_path)
    (tmp_path / "metadata.json").write_text('{"steps_completed": 3}')
    with pytest.raises(DetcloudError, match="does not say which class it is of"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    torch.save({"models_state_dict": []}, tmp_path / "state_dict.pth")
    # A file constants.pkl marks a TorchScript archive, which torch would run.
    with zipfile.ZipFile(tmp_path / "state_dict.pth", "a") as archive:
        archive.writestr("state_dict/constants.pkl", b"")
        archive.writestr("archive/constants.pkl", b"")
    with pytest.raises(DetcloudError, match="cannot be read"):
        snapshot.load_state(tmp_path)
