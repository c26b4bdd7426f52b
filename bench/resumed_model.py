"""The model of the group `resume`: a trial with a large state that writes the times of its start.

Each line of the file `times` is the name of a moment and the time in epoch seconds.
"""

import time

first = time.time()

# The first line's time comes before the import of torch.
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from detcloud.pytorch import (  # noqa: E402
    DataLoader,
    PyTorchTrial,
    PyTorchTrialContext,
    snapshot,
)

WIDTH, BATCH_SIZE, PAUSE_SECONDS = 4096, 2, 0.2
imported = time.time()


class ResumedTrial(PyTorchTrial):
    """A trial with a single layer. Weights and momenta have `mib` / 2 MiB each."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        outputs = (int(context.get_hparam("mib")) << 20) // 2 // (4 * WIDTH)
        # As in training code for large models, a restore does not initialize the weights first.
        layer = torch.nn.Linear(WIDTH, outputs, bias=False, device="meta").to_empty(device="cpu")
        if context.core.info.latest_checkpoint is None:
            torch.nn.init.uniform_(layer.weight, -0.01, 0.01)
        self.model = context.wrap_model(layer)
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        )
        self.times = {"first": first, "imported": imported, "built": time.time()}
        self._load_state = snapshot.load_state
        vars(snapshot)["load_state"] = self.load_state

    def load_state(self, *arguments: Any) -> dict[str, Any]:
        """Load the state of a checkpoint, and record the times before and after."""
        self.times["fetched"] = time.time()
        state = self._load_state(*arguments)
        self.times["loaded"] = time.time()
        return state

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.rand(64, WIDTH)), batch_size=BATCH_SIZE)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.rand(1, WIDTH)), batch_size=1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if "step" not in self.times:
            self.times["step"] = time.time()
            self._write_times()
        # The rest of the training only waits for the end of the measurement.
        time.sleep(PAUSE_SECONDS)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": 0.0}

    def _write_times(self) -> None:
        place = Path(self.context.get_hparam("times"))
        new = place.with_suffix(".new")
        new.write_text("\n".join(f"{name} {moment!r}" for name, moment in self.times.items()))
        new.rename(place)
