"""The settings of an experiment that only some training loops read.

The loop of a framework or of the user follows its own arguments. Notices in the log of each run
name the configured settings that have no effect. The submission cannot name these settings, because
only the running code chooses the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from detcloud.shared.unused_settings import asks_for_something


class TrainingLoop(Enum):
    """The owner of the training loop. The value names the place of the effective settings."""

    TRAINER = "the Trainer reads the configuration"
    DEEPSPEED = "DeepSpeed's own configuration says it"
    FRAMEWORK = "the framework's own arguments say it"
    SCRIPT = "the training code itself says it"


class TrainingSetting(NamedTuple):
    """A setting that the Trainer of a PyTorchTrial reads."""

    path: tuple[str, ...]
    """The names of the section and the setting."""
    neutral: tuple[object, ...]
    """The values that need no notice, such as defaults."""
    readers: frozenset[TrainingLoop] = frozenset()
    """The other loops that read the setting."""


_DEEPSPEED = frozenset({TrainingLoop.DEEPSPEED})
_LOOPS_OF_OURS = frozenset({TrainingLoop.DEEPSPEED, TrainingLoop.FRAMEWORK})
_NO_PERIOD: tuple[object, ...] = (None, 0, {}, {"batches": 0}, {"records": 0}, {"epochs": 0})
TRAINING_SETTINGS = (
    # A DeepSpeedTrial refuses the first two settings.
    TrainingSetting(("optimizations", "mixed_precision"), ("O0",), _DEEPSPEED),
    TrainingSetting(("optimizations", "aggregation_frequency"), (1,), _DEEPSPEED),
    TrainingSetting(("optimizations", "average_aggregated_gradients"), (True,)),
    TrainingSetting(("optimizations", "average_training_metrics"), (True,), _DEEPSPEED),
    TrainingSetting(("optimizations", "gradient_compression"), (False,)),
    TrainingSetting(("optimizations", "tensor_fusion_threshold"), (64, 0)),
    # A script chooses this for each checkpoint.
    TrainingSetting(("optimizations", "asynchronous_checkpoints"), (None, False), _LOOPS_OF_OURS),
    TrainingSetting(("min_validation_period",), _NO_PERIOD, _DEEPSPEED),
    TrainingSetting(("min_checkpoint_period",), _NO_PERIOD, _DEEPSPEED),
    TrainingSetting(("perform_initial_validation",), (False,), _DEEPSPEED),
    TrainingSetting(("scheduling_unit",), (None, 100), _DEEPSPEED),
    TrainingSetting(("checkpoint_policy",), ("best",), _LOOPS_OF_OURS),
)


@dataclass
class LoopOfTrial:
    """The training loop of a trial's process. A script's own loop until an adapter sets another."""

    kind: TrainingLoop = TrainingLoop.SCRIPT
    ignored: set[tuple[str, ...]] = field(default_factory=set)
    """The paths of settings that the adapter, with its present arguments, does not read."""

    def unread_setting_notices(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each configured setting that this loop does not read.

        `config` is the configuration as JSON values. Settings with default values are skipped. The
        paths in `ignored` count as not read. Yield nothing for the Trainer's loop.
        """
        if self.kind is TrainingLoop.TRAINER:
            return
        for setting in TRAINING_SETTINGS:
            is_read = self.kind in setting.readers and setting.path not in self.ignored
            if not is_read and asks_for_something(config, setting.path, setting.neutral):
                yield f"{'.'.join(setting.path)} is not used: {self.kind.value}"
