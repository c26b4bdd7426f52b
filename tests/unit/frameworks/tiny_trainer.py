"""A Hugging Face Trainer of a tiny model, for tests; also a script for several processes."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from detcloud import core
from detcloud.shared.trial_directory import Preemption


class Sums(Dataset[dict[str, torch.Tensor]]):
    """40 records of six numbers and their sum."""

    def __init__(self) -> None:
        self.values = torch.rand(40, 6, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"values": self.values[index], "labels": self.values[index].sum()}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1))

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        sums = self.layers(values)[:, 0]
        return {"loss": nn.functional.mse_loss(sums, labels), "logits": sums}


def train(
    context: core.Context,
    stop_at: int = 0,
    resumes: bool = True,
    callback_options: dict[str, Any] | None = None,
    on_save: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Network:
    """Trains; a request to stop comes at step `stop_at`. `on_save` is called once a checkpoint is
    written, and before it is stored.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    from detcloud.transformers import DetCallback

    class Stop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if stop_at and state.global_step + 1 == stop_at:
                context.preempt.request(Preemption(None, "test"))

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            on_save(state.global_step)

    set_seed(3)
    arguments: dict[str, Any] = {
        "output_dir": "out",
        "max_steps": 12,
        "per_device_train_batch_size": 8 // context.distributed.size,
        "learning_rate": 0.01,
        "logging_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 6,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        **options,
    }
    args = TrainingArguments(**arguments)
    callback = DetCallback(context, args, **(callback_options or {}))
    model = Network()
    trainer = Trainer(
        model, args, train_dataset=Sums(), eval_dataset=Sums(), callbacks=[Stop(), callback]
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint if resumes else None)
    return model


if __name__ == "__main__":
    with core.init() as own_context:
        train(own_context, max_steps=int(sys.argv[1]))
