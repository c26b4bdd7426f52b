"""Resetting the parameters of models."""

from __future__ import annotations

import torch


def reset_parameters(model: torch.nn.Module) -> None:
    """Initialize the parameters again, by `reset_parameters` of every layer with this method."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
