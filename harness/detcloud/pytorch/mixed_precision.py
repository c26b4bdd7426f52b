"""Mixed precision: torch's autocast for whole batches, or apex if installed."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch

from detcloud.shared.errors import DetcloudError

LEVELS = ("O0", "O1", "O2", "O3")


class MixedPrecision:
    """The precision of a trial's batches: full, torch's autocast, or apex's."""

    def __init__(self, device: torch.device) -> None:
        """Create full precision. `device` is the device of the batches."""
        self._device = device
        self.is_automatic = False
        # Whether gradients are computed with apex.
        self.uses_apex = False
        self._apex: Any = None
        self._apex_optimizers: list[torch.optim.Optimizer] = []

    def make_automatic(self, reason: str) -> None:
        """Run later batches in autocast on a GPU, and set `is_automatic`.

        Without a GPU, batches stay in full precision; print this to stderr. `reason`, the text of
        the setting that requires autocast, begins the message.
        """
        self.is_automatic = True
        if self._device.type != "cuda":
            print(
                f"[detcloud] {reason}: batches run in full precision, since there is no GPU",
                file=sys.stderr,
                flush=True,
            )

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the block in which to compute a batch: autocast, or an empty block."""
        if self.is_automatic and self._device.type == "cuda":
            return torch.autocast("cuda")
        return nullcontext()

    def wrap_forward(self, model: torch.nn.Module) -> None:
        """Replace the model's `forward` by a version that runs in autocast on a GPU."""
        forward, kind = model.forward, self._device.type
        model.forward = torch.autocast(kind, enabled=kind == "cuda")(forward)

    def configure_apex(self, models: Any, optimizers: Any, enabled: bool, **options: Any) -> Any:
        """Return the models and optimizers of `apex.amp.initialize`, or unchanged if not `enabled`.

        From then on, gradients are computed with apex. Raises DetcloudError if apex is not
        installed, and errors of apex.
        """
        if not enabled:
            return models, optimizers
        try:
            self._apex = import_module("apex.amp")
        except ImportError:
            raise DetcloudError(
                "configure_apex_amp needs the package apex, which is not installed: call "
                "context.experimental.use_amp() instead, which is torch's own"
            ) from None
        self.uses_apex = True
        models, optimizers = self._apex.initialize(
            models=models, optimizers=optimizers, enabled=enabled, **options
        )
        several = isinstance(optimizers, list | tuple)
        self._apex_optimizers = list(optimizers) if several else [optimizers]
        return models, optimizers

    def compute_scaled_gradients(self, loss: torch.Tensor, is_last: bool, **options: Any) -> None:
        """Compute gradients of a loss that apex scales.

        `is_last`: an optimizer step follows. `options` go to torch.autograd.backward.
        """
        optimizers = self._apex_optimizers
        with self._apex.scale_loss(loss, optimizers, delay_unscale=not is_last) as scaled:
            torch.autograd.backward(scaled, **options)

    def step_parameters(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter] | None:
        """Return the parameters that apex steps, or None without apex."""
        if self._apex is None:
            return None
        return list(self._apex.master_params(optimizer))

    def state_dict(self) -> dict[str, Any]:
        """Return apex's state for checkpoints. Empty without apex."""
        return dict(self._apex.state_dict()) if self._apex is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore apex's state. Do nothing without apex or for an empty state."""
        if self._apex is not None and state:
            self._apex.load_state_dict(state)
