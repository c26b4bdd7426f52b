"""Training with PyTorch: users write a PyTorchTrial, and the Trainer trains the model."""

from detcloud.pytorch.batch_data import TorchData, data_length
from detcloud.pytorch.callback import ClipGradsL2Norm, ClipGradsL2Value, PyTorchCallback
from detcloud.pytorch.checkpoint_loading import (
    CheckpointLoadContext,
    load_trial_from_checkpoint_path,
)
from detcloud.pytorch.context import PyTorchTrialContext, init
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.experimental import PyTorchExperimentalContext
from detcloud.pytorch.optimization import LRScheduler, StepMode
from detcloud.pytorch.parameters import reset_parameters
from detcloud.pytorch.periods import Batch, Epoch
from detcloud.pytorch.reducers import MetricReducer
from detcloud.pytorch.samplers import adapt_batch_sampler
from detcloud.pytorch.trainer import Trainer
from detcloud.pytorch.trial import PyTorchTrial, Reducer

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "ClipGradsL2Norm",
    "ClipGradsL2Value",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "StepMode",
    "TorchData",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "reset_parameters",
]
