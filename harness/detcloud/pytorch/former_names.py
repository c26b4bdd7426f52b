"""Names that a context's methods had in Determined before 0.12.13, and private names in use."""

from __future__ import annotations

from collections.abc import Mapping

FORMER_NAMES: Mapping[str, str] = {
    "Model": "wrap_model",
    "Optimizer": "wrap_optimizer",
    "LRScheduler": "wrap_lr_scheduler",
    "wrap_lrscheduler": "wrap_lr_scheduler",
    "_Model": "wrap_model",
    "_Optimizer": "wrap_optimizer",
    "_LRScheduler": "wrap_lr_scheduler",
    "_to_device": "to_device",
    "_backward": "backward",
    "_step_optimizer": "step_optimizer",
    "_core": "core",
    "_current_batch_idx": "_batch_idx",
}
