"""DeepSpeed: users write a DeepSpeedTrial, DeepSpeed's engines train, and the Trainer runs the
loop.
"""

from detcloud.deepspeed.context import (
    DeepSpeedTrialContext,
    ModelParallelUnit,
    init,
    make_data_parallel_mpu,
    make_deepspeed_mpu,
    overwrite_deepspeed_config,
)
from detcloud.deepspeed.trainer import Trainer
from detcloud.deepspeed.trial import DeepSpeedTrial

__all__ = [
    "DeepSpeedTrial",
    "DeepSpeedTrialContext",
    "ModelParallelUnit",
    "Trainer",
    "init",
    "make_data_parallel_mpu",
    "make_deepspeed_mpu",
    "overwrite_deepspeed_config",
]
