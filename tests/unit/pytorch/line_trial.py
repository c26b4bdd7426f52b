"""A minimal trial with workloads that tests read from the reports, and a cluster to run trials."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from detcloud import core, pytorch
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports

SPEC: dict[str, Any] = {
    "scheduling_unit": 5,
    "checkpoint_policy": "none",
    "metric": "loss",
    "threads": 1,
}


class LineTrial(pytorch.PyTorchTrial):
    """Trial that fits a line to 12 points in batches of 3; `losses` replaces validation losses."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.losses: list[Any] = []
        self.callbacks: dict[str, pytorch.PyTorchCallback] = {}
        self.after_batch: Callable[[int], None] = lambda _steps: None
        self.after_validation_batch: Callable[[], None] = lambda: None

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return self.callbacks

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(), batch_size=3)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(), batch_size=12)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = ((self.model(batch[0]) - batch[1]) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.after_batch(batch_idx + 1)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        self.after_validation_batch()
        if self.losses:
            return {"loss": self.losses.pop(0)}
        return {"loss": ((self.model(batch[0]) - batch[1]) ** 2).mean()}


class Cluster:
    """Trial directory in which trials of a kind run in this process, as on a cluster."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: type[LineTrial] = LineTrial,
        /,
        **spec: Any,
    ) -> None:
        self._kind = kind
        self._running: core.Context | None = None
        # Background saves would be reported in an unpredictable order.
        optimizations = {"asynchronous_checkpoints": spec.pop("asynchronous", False)}
        config = {"optimizations": optimizations, **spec.pop("config", {})}
        self.trial = make_trial(root, **{**SPEC, "config": config, **spec})
        enter(self.trial, monkeypatch)

    def direct(self, **directives: Any) -> None:
        """Replace the directives. A running trial sees a request to stop before the return."""
        direct(self.trial, **directives)
        if self._running is not None and "preempt" in directives:
            wait_until(self._running.preempt.is_requested)

    def run(
        self, prepare: Callable[[LineTrial], None] = lambda _trial: None, **fit: Any
    ) -> LineTrial:
        """Train a trial until the trial exits, and return the trial; `prepare` runs first."""
        try:
            with pytorch.init() as context:
                self._running = context.core
                trial = self._kind(context)
                prepare(trial)
                pytorch.Trainer(trial, context).fit(**fit)
        finally:
            self._running = None
        return trial

    @property
    def workloads(self) -> str:
        """The reported workloads, such as "T5 V5 C5 D5".

        T5: trained to batch 5. V5: validated at batch 5. C5: checkpoint at batch 5. D5: operation
        of length 5 completed.
        """
        return " ".join(filter(None, map(_workload, reports(self.trial))))

    @property
    def exit_reason(self) -> str:
        return str(reports(self.trial)[-1]["reason"])

    def latest_checkpoint(self) -> dict[str, Any]:
        return {**reports(self.trial, "checkpoint")[-1], "trial_id": 4}


def _workload(line: dict[str, Any]) -> str:
    match line["kind"]:
        case "metrics":
            return f"{line['group'][0].upper()}{line['steps_completed']}"
        case "checkpoint":
            return f"C{line['steps_completed']}"
        case "completed":
            return f"D{line['length']}"
    return ""


def _points() -> TensorDataset:
    inputs = torch.arange(12, dtype=torch.float32).reshape(12, 1) / 12
    return TensorDataset(inputs, 2 * inputs + 1)
