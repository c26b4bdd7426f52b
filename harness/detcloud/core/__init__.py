"""The Core API: reports, checkpoints, preemption and the searcher's operations for any script."""

from detcloud.core.checkpoint import CheckpointContext
from detcloud.core.context import Context, init
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.preempt import PreemptContext, PreemptMode
from detcloud.core.searcher import SearcherContext, SearcherMode, SearcherOperation
from detcloud.core.train import EarlyExitReason, TrainContext
from detcloud.shared.errors import InvalidHP
from detcloud.shared.trial_directory import CheckpointReference, TrialSpec

__all__ = [
    "CheckpointContext",
    "CheckpointReference",
    "Context",
    "DistributedContext",
    "EarlyExitReason",
    "InvalidHP",
    "PreemptContext",
    "PreemptMode",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TrainContext",
    "TrialSpec",
    "init",
]
