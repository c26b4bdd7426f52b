"""The names that a context's methods had in the releases of 0.12 before 0.12.13, and the private
ones that code reads.
"""

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
