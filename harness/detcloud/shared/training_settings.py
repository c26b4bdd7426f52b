"""The settings of an experiment that its training code reads, and which of the training loops do.

A loop that belongs to a framework, or to the user, follows its own arguments. One notice in the
log of each run names what the configuration asks for in vain. Nobody knows of it at the submission,
since only the code that runs chooses the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from detcloud.shared.unused_settings import asks_for_something


class TrainingLoop(Enum):
    """The owner of the loop that trains; the value says where that is configured instead."""

    TRAINER = "the Trainer reads the configuration"
    DEEPSPEED = "DeepSpeed's own configuration says it"
    FRAMEWORK = "the framework's own arguments say it"
    SCRIPT = "the training code itself says it"


class TrainingSetting(NamedTuple):
    """A setting's path, the values with which it asks for nothing, and the loops that read it
    besides the Trainer of a PyTorchTrial.
    """

    path: tuple[str, ...]
    neutral: tuple[object, ...]
    readers: frozenset[TrainingLoop] = frozenset()


_DEEPSPEED = frozenset({TrainingLoop.DEEPSPEED})
_LOOPS_OF_OURS = frozenset({TrainingLoop.DEEPSPEED, TrainingLoop.FRAMEWORK})
_NO_PERIOD: tuple[object, ...] = (None, 0, {}, {"batches": 0}, {"records": 0}, {"epochs": 0})
TRAINING_SETTINGS = (
    # Of a DeepSpeedTrial the first two are refused.
    TrainingSetting(("optimizations", "mixed_precision"), ("O0",), _DEEPSPEED),
    TrainingSetting(("optimizations", "aggregation_frequency"), (1,), _DEEPSPEED),
    TrainingSetting(("optimizations", "average_aggregated_gradients"), (True,)),
    TrainingSetting(("optimizations", "average_training_metrics"), (True,), _DEEPSPEED),
    TrainingSetting(("optimizations", "gradient_compression"), (False,)),
    TrainingSetting(("optimizations", "tensor_fusion_threshold"), (64, 0)),
    # A script says so with each checkpoint, and without that stores it at once.
    TrainingSetting(("optimizations", "asynchronous_checkpoints"), (None, False), _LOOPS_OF_OURS),
    TrainingSetting(("min_validation_period",), _NO_PERIOD, _DEEPSPEED),
    TrainingSetting(("min_checkpoint_period",), _NO_PERIOD, _DEEPSPEED),
    TrainingSetting(("perform_initial_validation",), (False,), _DEEPSPEED),
    TrainingSetting(("scheduling_unit",), (None, 100), _DEEPSPEED),
    TrainingSetting(("checkpoint_policy",), ("best",), _LOOPS_OF_OURS),
)


@dataclass
class LoopOfTrial:
    """The loop that a trial's process runs, as far as is known by now: a script's own until an
    adapter says another. `ignored`: the paths that an adapter does not read as it was set up.
    """

    kind: TrainingLoop = TrainingLoop.SCRIPT
    ignored: set[tuple[str, ...]] = field(default_factory=set)

    def unread_setting_notices(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each setting of a configuration, as JSON has it, that asks for
        something and that this loop does not read.
        """
        if self.kind is TrainingLoop.TRAINER:
            return
        for setting in TRAINING_SETTINGS:
            is_read = self.kind in setting.readers and setting.path not in self.ignored
            if not is_read and asks_for_something(config, setting.path, setting.neutral):
                yield f"{'.'.join(setting.path)} is not used: {self.kind.value}"
