"""Custom search methods, which run outside the cluster. The names are those of determined.searcher.

from detcloud import searcher

searcher.LocalSearchRunner(MyMethod(), "my-search").run("custom.yaml", "model_dir")
"""

from detcloud.searcher.method import ExitedReason, SearcherState, SearchMethod
from detcloud.searcher.operations import (
    Close,
    Create,
    Operation,
    Progress,
    Shutdown,
    ValidateAfter,
)
from detcloud.searcher.runner import LocalSearchRunner, SearchRunner

__all__ = [
    "Close",
    "Create",
    "ExitedReason",
    "LocalSearchRunner",
    "Operation",
    "Progress",
    "SearchMethod",
    "SearchRunner",
    "SearcherState",
    "Shutdown",
    "ValidateAfter",
]
