"""Training with PyTorch: write a PyTorchTrial, the Trainer and the cluster do the rest."""

from detcloud.pytorch.batch_data import TorchData, data_length
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext, init
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.optimization import LRScheduler, StepMode
from detcloud.pytorch.periods import Batch, Epoch
from detcloud.pytorch.samplers import adapt_batch_sampler
from detcloud.pytorch.trainer import Trainer
from detcloud.pytorch.trial import PyTorchTrial, Reducer

__all__ = [
    "Batch",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "PyTorchCallback",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "StepMode",
    "TorchData",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "init",
]
