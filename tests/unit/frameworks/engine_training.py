"""Script that trains with DeepSpeed for tests: `engine_training.py ROOT TRAINING...`.

Tests run it in a new process, since a process group lasts as long as its process. A repeated name
resumes the training.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch.utils.data import TensorDataset

import detcloud.deepspeed
from detcloud import pytorch
from detcloud.core.background_save import Save
from detcloud.launch.launchers.trial_class import train_class
from detcloud.shared.trial_directory import Preemption
from detcloud.storage.types.directory import DirectoryStore
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, make_trial, reports

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "deepspeed_digits"
DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "steps_per_print": 10**9,
}


class SumTrial(detcloud.deepspeed.DeepSpeedTrial):
    """The sum of six numbers: 40 records, 10 micro-batches, 5 batches an epoch."""

    def __init__(self, context: detcloud.deepspeed.DeepSpeedTrialContext) -> None:
        self.context = context
        self.calls = 0
        layers = [torch.nn.Linear(6, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1)]
        self.is_pipeline = context.get_hparams().get("pipeline", False)
        model: Any = torch.nn.Sequential(*layers)
        if self.is_pipeline:
            model = PipelineModule(
                layers=layers,
                loss_fn=torch.nn.functional.mse_loss,
                num_stages=2,
                partition_method="uniform",
                activation_checkpoint_interval=0,
            )
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=DS_CONFIG
        )
        self.engine: Any = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.calls += 1
        self._hear_of_notice(batch_idx)
        stop_at = self.context.get_hparams().get("stop_at")
        if batch_idx + 1 == stop_at and self.context.get_initial_batch() == 0:
            self.context.core.preempt.request(Preemption(1, "test"))
        if self.is_pipeline:
            return {"loss": self.engine.train_batch(dataloader_iter)}
        loss = self._loss(dataloader_iter)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def _hear_of_notice(self, batch_idx: int) -> None:
        """In the batch that `notice_at` names the last rank's machine has ten minutes left."""
        ranks, hparams = self.context.distributed, self.context.get_hparams()
        if batch_idx + 1 != hparams.get("notice_at") or ranks.rank < ranks.size - 1:
            return
        preempt = self.context.core.preempt
        preempt.request(Preemption(time.time_ns() // 10**6 + 600_000, "the market"))
        agreement = preempt._agreement
        assert agreement is not None
        # The few batches that are left take less time than to agree on where to stop.
        wait_until(lambda: agreement.request is not None)

    def evaluate_batch(  # type: ignore[override]
        self, dataloader_iter: Any, batch_idx: int
    ) -> dict[str, Any]:
        if self.is_pipeline:
            return {"loss": self.engine.eval_batch(dataloader_iter)}
        return {"loss": self._loss(dataloader_iter)}

    def _loss(self, batches: Any) -> torch.Tensor:
        values, sums = next(batches)
        return torch.nn.functional.mse_loss(self.engine(values), sums)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_records(), batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_records(), batch_size=4)


def _records() -> TensorDataset:
    values = torch.rand(40, 6, generator=torch.Generator().manual_seed(5))
    return TensorDataset(values, values.sum(1, keepdim=True))


def prepare(root: Path, name: str, **spec: Any) -> Path:
    """Make the folder of a trial of 10 batches, with workloads of 3 and epochs of 5."""
    rules = {"metric": "loss", "checkpoint_policy": "none", "scheduling_unit": 3}
    trial = make_trial(root / name, **{**rules, "min_validation_batches": 5, **spec})
    direct(trial, revision=1, length=10, closed=True)
    return trial


def run(folder: Path) -> None:
    """Train the trial in `folder` from its latest checkpoint, and save the weights."""
    os.environ["DETCLOUD_TRIAL_DIR"] = str(folder)
    if (folder / "out").exists() and (stored := reports(folder, "checkpoint")):
        names = ("uuid", "path", "steps_completed", "manifest_sha256")
        latest = {"trial_id": 4, **{name: stored[-1][name] for name in names}}
        spec = json.loads((folder / "in" / "spec.json").read_text())
        (folder / "in" / "spec.json").write_text(
            json.dumps({**spec, "epoch": 2, "latest_checkpoint": latest})
        )
    with detcloud.deepspeed.init() as context:
        trial = SumTrial(context)
        detcloud.deepspeed.Trainer(trial, context).fit()
        weights = dict(trial.engine.module.state_dict())
        rank = context.distributed.rank
        torch.save({"weights": weights, "calls": trial.calls}, folder / f"weights-{rank}.pth")


def run_slowly(folder: Path) -> None:
    """Train the trial with a store that hangs in the second checkpoint after metadata.json.

    Saves assume a speed of one byte per second.
    """
    put, stored = DirectoryStore.put, folder / "out" / "report-0.jsonl"

    def put_or_hang(store: DirectoryStore, key: str, source: Path) -> None:
        is_first = '"checkpoint"' not in stored.read_text()
        if not is_first and not key.endswith("/metadata.json"):
            threading.Event().wait()
        put(store, key, source)

    changes: list[tuple[Any, str, Any]] = [
        (DirectoryStore, "put", put_or_hang),
        (Save, "bytes_per_second", 1.0),
    ]
    for kind, name, value in changes:
        setattr(kind, name, value)
    run(folder)


def run_example(folder: Path) -> None:
    """Train the trial class of the example."""
    os.environ["DETCLOUD_TRIAL_DIR"] = str(folder)
    os.chdir(EXAMPLE)
    train_class("model_def:DigitsTrial")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    ways = {"example": run_example, "slow": run_slowly}
    for name in sys.argv[2:]:
        ways.get(name, run)(Path(sys.argv[1]) / name / "trial")
