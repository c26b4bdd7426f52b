"""The Core API: reports, checkpoints, preemption and searcher operations for training scripts."""

from detcloud.core.checkpoint import CheckpointContext
from detcloud.core.checkpoint_reader import CheckpointDamaged
from detcloud.core.context import AlertLevel, Context
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.notice_plan import Choice
from detcloud.core.preempt import PreemptContext, PreemptMode
from detcloud.core.profiler import ProfilerContext
from detcloud.core.searcher import SearcherContext, SearcherMode, SearcherOperation
from detcloud.core.shared_download import DownloadMode
from detcloud.core.train import EarlyExitReason, TensorboardMode, TrainContext
from detcloud.core.trial_run import init
from detcloud.shared.errors import InvalidHP
from detcloud.shared.trial_directory import CheckpointReference, TrialSpec

__all__ = [
    "AlertLevel",
    "CheckpointContext",
    "CheckpointDamaged",
    "CheckpointReference",
    "Choice",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "InvalidHP",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "TrialSpec",
    "init",
]
