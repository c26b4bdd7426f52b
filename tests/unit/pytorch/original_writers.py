"""Writers of checkpoints in the formats of Determined 0.12 to 0.38.

Each writer follows a release: the paths, the parts of the state, the pickling modules and the
additional files. The writers use no code of detcloud's own writers.
"""

import io
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

CODE = """
import torch
from determined import pytorch

class Line(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, context.get_hparam("width")))
        self.opt = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return pytorch.DataLoader([torch.ones(1)] * 8, batch_size=4)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch).mean()}
"""
FORMER_CODE = """
import torch
from determined import pytorch

class Line(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        return torch.nn.Linear(1, self.context.get_hparam("width"))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def build_training_data_loader(self):
        return pytorch.DataLoader([torch.ones(1)] * 8, batch_size=4)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, model, epoch_idx, batch_idx):
        return {"loss": model(batch).mean()}

    def evaluate_batch(self, batch, model):
        return {"loss": model(batch).mean()}
"""
WIDTH = 2
CONFIG: dict[str, Any] = {
    "name": "line",
    "entrypoint": "model_def:Line",
    "hyperparameters": {"width": {"type": "const", "val": WIDTH}},
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 2}},
}


class _NumPy1Pickler(pickle.Pickler):
    """Pickler with the module names of NumPy 1, such as numpy.core."""

    def __init__(self, file: Any, protocol: int = 2) -> None:
        self._file, self._buffer, self._protocol = file, io.BytesIO(), protocol
        super().__init__(self._buffer, protocol)

    def dump(self, value: object) -> None:
        super().dump(value)
        content = self._buffer.getvalue()
        # From protocol 4 on, a length precedes each name.
        is_text = self._protocol < 4
        self._file.write(content.replace(b"numpy._core.", b"numpy.core.") if is_text else content)


def _dump(value: object, file: Any, protocol: int = 2) -> None:
    pickle.dump(value, file, protocol)


NUMPY_1 = SimpleNamespace(Pickler=_NumPy1Pickler, dump=_dump, __name__="pickle")


def random_state() -> dict[str, Any]:
    return {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": np.random.get_state(),
        "random_rng_state": random.getstate(),
    }


def train_model(scheduler: Callable[[Any], Any] | None = None) -> tuple[Any, Any, Any]:
    """Train a model for a single step; return model, optimizer and scheduler (or None)."""
    model = torch.nn.Linear(1, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = scheduler(optimizer) if scheduler else None
    model(torch.ones(4, 1)).mean().backward()
    optimizer.step()
    return model, optimizer, schedule


def state(model: Any, optimizer: Any, **others: Any) -> dict[str, Any]:
    """Return the state's parts as of 0.12.4 and later."""
    return {
        "models_state_dict": [model.state_dict()],
        "optimizers_state_dict": [optimizer.state_dict()],
        "lr_schedulers_state_dict": [],
        "callbacks": {},
        "rng_state": random_state(),
        **others,
    }


def weight_of(model: Any) -> torch.Tensor:
    """Return the detached weight of the model."""
    weight: torch.Tensor = model.weight.detach()
    return weight


def write_code(folder: Path, code: str = CODE) -> None:
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "model_def.py").write_text(code)


def write_metadata(folder: Path, **fields: Any) -> None:
    """Write `metadata.json` as of the releases up to 0.17.7, which have no load_data.json."""
    metadata = {
        "determined_version": "0.13.13",
        "experiment_id": 1,
        "trial_id": 1,
        "hparams": {"width": WIDTH},
        "experiment_config": CONFIG,
        **fields,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))


def write_load_data(folder: Path, **fields: Any) -> None:
    """Write `load_data.json` and `metadata.json` as of the releases from 0.18 on."""
    load_data = {
        "trial_type": "PyTorchTrial",
        "experiment_config": CONFIG,
        "hparams": {"width": WIDTH},
        "trial_cls_spec": "model_def:Line",
        **fields,
    }
    (folder / "load_data.json").write_text(json.dumps(load_data))
    metadata = {"determined_version": "0.38.0", "steps_completed": 1, "framework": "torch-2.1"}
    (folder / "metadata.json").write_text(json.dumps({**metadata, "format": "pickle"}))


def write_0_12_3(folder: Path, place: str = "state_dict.pth") -> torch.Tensor:
    """Write a build_model trial's state without random state, and the pickled model."""
    model, optimizer, schedule = train_model(
        lambda optimized: torch.optim.lr_scheduler.StepLR(optimized, 1)
    )
    parts = {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "lr_scheduler": schedule.state_dict(),
    }
    write_code(folder, FORMER_CODE)
    (folder / place).parent.mkdir(exist_ok=True)
    # Determined used cloudpickle, which equals pickle for classes of installed packages.
    torch.save(parts, folder / place, _use_new_zipfile_serialization=False)
    torch.save(model, folder / "model.pth", _use_new_zipfile_serialization=False)
    write_metadata(folder, torch_version="1.4.0")
    return weight_of(model)


def write_0_12_13(folder: Path) -> torch.Tensor:
    """Write a random state pickled by NumPy 1, in the file format of torch up to 1.5."""
    model, optimizer, _ = train_model()
    write_code(folder)
    torch.save(
        state(model, optimizer),
        folder / "state_dict.pth",
        pickle_module=NUMPY_1,
        _use_new_zipfile_serialization=False,
    )
    write_metadata(folder, framework="torch-1.4.0", format="cloudpickle")
    return weight_of(model)


def write_0_17(folder: Path) -> torch.Tensor:
    """Write the zip format, apex's state and a callback with NumPy numbers."""
    model, optimizer, _ = train_model()
    callbacks = {"early": {"best": np.float64(0.5), "seen": np.arange(3, dtype=">i4")}}
    amp = {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 3}}
    write_code(folder)
    parts = state(model, optimizer, callbacks=callbacks, amp_state=amp)
    torch.save(parts, folder / "state_dict.pth", pickle_module=NUMPY_1)
    write_metadata(folder, framework="torch-1.7.1", format="cloudpickle", hparams=None)
    return weight_of(model)


def write_0_18(folder: Path) -> torch.Tensor:
    """Write the first format with `load_data.json`, and the state of the workload sequencer."""
    model, optimizer, _ = train_model()
    write_code(folder)
    torch.save(state(model, optimizer), folder / "state_dict.pth", pickle_module=NUMPY_1)
    sequencer = {"trial_id": 1, "last_ckpt": 1, "steps_completed": 1, "step_id": 1, "last_val": 0}
    (folder / "workload_sequencer.pkl").write_bytes(pickle.dumps(sequencer))
    write_load_data(folder)
    return weight_of(model)


class Counter:
    """Class of the trial's code with instances in a callback's state."""

    def __init__(self) -> None:
        self.count = 7


def write_0_21(folder: Path) -> torch.Tensor:
    """Write the Trainer's state, torch's AMP scaler, and user objects in callbacks."""
    model, optimizer, schedule = train_model(
        lambda optimized: torch.optim.lr_scheduler.OneCycleLR(optimized, 0.1, total_steps=9)
    )
    write_code(folder)
    # Up to torch 1.x, the scheduler's state had a function.
    scheduler = {**schedule.state_dict(), "anneal_func": Counter.__init__}
    callbacks = {"counter": {"object": Counter()}, "plain": {"n": 3}}
    scaler = {"scale": 2.0, "growth_factor": 2.0, "_growth_tracker": 0}
    parts = state(
        model,
        optimizer,
        lr_schedulers_state_dict=[scheduler],
        callbacks=callbacks,
        scaler_state_dict=scaler,
    )
    torch.save(parts, folder / "state_dict.pth", pickle_module=NUMPY_1)
    trial_state = {"trial_id": 1, "last_ckpt": 1, "step_id": 1, "last_val": 0, "batches_trained": 1}
    (folder / "trial_state.pkl").write_bytes(pickle.dumps({**trial_state, "epochs_trained": 0}))
    write_load_data(folder, is_trainer=True)
    return weight_of(model)


def write_several_slots(folder: Path) -> torch.Tensor:
    """Write parameter names with the prefix `module.` of DistributedDataParallel."""
    model, optimizer, _ = train_model()
    prefixed = {f"module.{name}": value for name, value in model.state_dict().items()}
    write_code(folder)
    parts = state(model, optimizer, models_state_dict=[prefixed])
    torch.save(parts, folder / "state_dict.pth", pickle_module=NUMPY_1)
    write_load_data(folder)
    return weight_of(model)


def write_0_38(folder: Path) -> torch.Tensor:
    """Write arrays pickled by NumPy 2, and no hyperparameters, as a Trainer without a cluster."""
    model, optimizer, _ = train_model()
    write_code(folder, CODE.replace('context.get_hparam("width")', str(WIDTH)))
    torch.save(state(model, optimizer), folder / "state_dict.pth")
    write_load_data(folder, is_trainer=True, hparams=None, experiment_config=None)
    return weight_of(model)


WRITERS: dict[str, Callable[[Path], torch.Tensor]] = {
    "0.12.3": write_0_12_3,
    "0.12.3, determined/": lambda folder: write_0_12_3(folder, "determined/state_dict.pth"),
    "0.12.3, pedl/": lambda folder: write_0_12_3(folder, "pedl/state_dict.pth"),
    "0.12.3, checkpoint.pt": lambda folder: write_0_12_3(folder, "checkpoint.pt"),
    "0.12.13": write_0_12_13,
    "0.17": write_0_17,
    "0.18": write_0_18,
    "0.21": write_0_21,
    "several slots": write_several_slots,
    "0.38": write_0_38,
}
