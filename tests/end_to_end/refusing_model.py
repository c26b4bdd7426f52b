"""A PyTorchTrial on two processes, where only rank 1 refuses the hyperparameters of trial 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MESSAGE = "InvalidHP: rank 1 finds no room for a width of 7"
MODEL = """\
import torch
from detcloud import InvalidHP, pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        data = [torch.ones(1)] * 8
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader([torch.ones(1)] * 2)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.context.get_trial_id() == 1 and batch_idx == 2:
            print("comes to batch 2", flush=True)
            if self.context.distributed.rank == 1:
                raise InvalidHP("rank 1 finds no room for a width of 7")
        loss = self.model(batch).square().mean()
        # Rank 0 waits here for the gradients of the other.
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch).mean()}
"""


def write_refusing_model(folder: Path, searcher: dict[str, Any]) -> tuple[Path, Path]:
    """Write the configuration for two slots, and the model; return the paths of both."""
    model = folder / "model"
    model.mkdir()
    (model / "model_def.py").write_text(MODEL)
    config = {
        "name": "refused",
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"global_batch_size": 4, "width": 7},
        "searcher": {"metric": "loss", "max_length": {"batches": 4}, **searcher},
        "resources": {"slots_per_trial": 2},
        "max_restarts": 3,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path, model
