"""Lightning: `TrialCallback` makes a call of `trainer.fit` a trial's training, and `DetLogger`
reports what it logs.
"""

from detcloud.lightning.callback import TrialCallback
from detcloud.lightning.logger import DetLogger

__all__ = ["DetLogger", "TrialCallback"]
