"""Lightning in a trial: `TrialCallback` connects `trainer.fit`, and `DetLogger` reports logged
metrics.
"""

from detcloud.lightning.callback import TrialCallback
from detcloud.lightning.logger import DetLogger

__all__ = ["DetLogger", "TrialCallback"]
