"""Trainings of a small model for tests, each in a trial directory of its own; also a script that
runs several of them in each worker of one launcher: `gang_training.py ROOT`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from detcloud import pytorch
from detcloud.shared.trial_directory import Preemption
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, make_trial

LENGTH = 10
# Odd, so that one rank of two has a batch more than the other.
VALIDATION_RECORDS = 20
SPEC: dict[str, Any] = {
    "scheduling_unit": 5,
    "checkpoint_policy": "none",
    "min_validation_batches": 5,
    "metric": "loss",
    "threads": 2,
    "slots": [0, 1],
}


class CurveTrial(pytorch.PyTorchTrial):
    """Fits a parabola in shuffled batches; a `noisy` one draws random numbers as it trains."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        noise = (
            [torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)] if context.get_hparam("noisy") else []
        )
        layers = [torch.nn.Linear(1, 8), *noise, torch.nn.Tanh(), torch.nn.Linear(8, 1)]
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(_points(48), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(VALIDATION_RECORDS), batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == self.context.get_hparams().get("notice_at", -1) and (
            self.context.distributed.rank == 1
        ):
            # What a notice on the machine of another node than the chief's looks like.
            preempt = self.context.core.preempt
            preempt.request(Preemption(1, "a notice"))
            agreement = preempt._agreement
            assert agreement is not None
            # The few batches that are left take less time than to agree on where to stop.
            wait_until(lambda: agreement.request is not None)
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}


def _points(count: int) -> TensorDataset:
    x = torch.linspace(-1, 1, count).reshape(-1, 1)
    return TensorDataset(x, x * x)


def train(root: Path) -> dict[str, torch.Tensor]:
    """Trains the trial below `root` until it ends or is stopped; the weights then."""
    os.environ["DETCLOUD_TRIAL_DIR"] = str(root / "trial")
    with pytorch.init() as context:
        trial = CurveTrial(context)
        pytorch.Trainer(trial, context).fit()
        return {name: value.clone() for name, value in trial.model.state_dict().items()}


def prepare(root: Path, **spec: Any) -> None:
    """Makes the trial's directory, for LENGTH batches."""
    hparams = {"global_batch_size": 8, "noisy": False, **spec.pop("hparams", {})}
    direct(make_trial(root, **{**SPEC, "hparams": hparams, **spec}), **DIRECTIVES)


DIRECTIVES = {"revision": 1, "length": LENGTH, "closed": True}


def main(root: Path) -> None:
    """Trains what the test prepared in every worker, and one trial again where it was stopped."""
    states = {name: train(root / name) for name in ("plain", "unbroken", "stopped")}
    if os.environ["RANK"] == "0":
        report = root / "stopped" / "trial" / "out" / "report-0.jsonl"
        lines = map(json.loads, report.read_text().splitlines())
        kept = next(line for line in lines if line["kind"] == "checkpoint")
        reference = {name: kept[name] for name in ("uuid", "path", "steps_completed")}
        resumed = root / "stopped" / "trial" / "in" / "spec.json"
        spec = json.loads(resumed.read_text())
        spec["hparams"].pop("notice_at")
        resumed.write_text(
            json.dumps({**spec, "latest_checkpoint": {**reference, "trial_id": spec["trial_id"]}})
        )
    torch.distributed.barrier()
    states["resumed"] = train(root / "stopped")
    torch.save(states, root / f"states-{os.environ['RANK']}.pth")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
