"""The agent's processor time to compare a fast log with log policies."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

from bench.figures import Row, Scale, at_most, progress, row_without_target
from control_plane.config.log_policies import effective_policies
from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.log_watch import LogWatch

RATE_BYTES = 10 << 20
# The log of 10 MiB a second grows by this size between two scans of the agent.
STEP_BYTES = RATE_BYTES // 10
SHARE_MAX = 5.0
LINE = b"2026-11-28 12:00:00 INFO: epoch 3, batch 1200: loss 0.2381, accuracy 0.918, 412 a second\n"
SEVERAL = [
    {"name": "NaN", "pattern": "(?i)loss(=|: )nan"},
    {"name": "NCCL", "pattern": r"NCCL (WARN|ERROR).*unhandled", "action": "exclude_node"},
    {"name": "disk", "pattern": r"No space left on device|ENOSPC", "action": "cancel_retries"},
]
NO_TEXT = [{"name": "code", "pattern": r"E[0-9]{4}"}]


def log_policies(scale: Scale) -> Iterator[Row]:
    """Measure the share of a processor that the search of a log of 10 MiB a second takes."""
    size = max(STEP_BYTES, scale.log_bytes // 16)
    for what, policies in {"default policies": [], "five policies": SEVERAL}.items():
        with progress(f"a log of {size >> 20} MiB, {what}"):
            share = _processor_share(policies, size)
        yield at_most(f"log of 10 MiB/s, {what}: processor", share, SHARE_MAX, "%")
    with progress("a pattern without a fixed text"):
        share = _processor_share(NO_TEXT, min(size, RATE_BYTES))
    yield row_without_target("log of 10 MiB/s, no fixed text: processor", share, "%")


def _processor_share(policies: list[dict[str, Any]], size: int) -> float:
    """Return the processor time for each second of the log, in percent."""
    with tempfile.TemporaryDirectory(prefix="detcloud-bench-") as folder:
        directory = AllocationDirectory(Path(folder), "1.1")
        directory.create()
        spec = {"log_policies": effective_policies(policies)}
        watch = LogWatch(directory, spec, AgentReport(directory.report), size)
        step = LINE * (STEP_BYTES // len(LINE))
        spent = 0.0
        written = 0
        with directory.log.open("ab", buffering=0) as log:
            while written < size:
                log.write(step)
                written += len(step)
                began = process_time()
                while not watch.search(ended=False):
                    pass
                spent += process_time() - began
    return 100 * spent * RATE_BYTES / written
