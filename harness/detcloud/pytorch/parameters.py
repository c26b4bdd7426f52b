"""The parameters of models: set to what they are when a model is new."""

from __future__ import annotations

import torch


def reset_parameters(model: torch.nn.Module) -> None:
    """Draw new parameters for every layer that can do so."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
