"""The use of GPUs, as the profilers of running trials reported last."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.agents.metric_rows import epoch_range, to_segment
from control_plane.metrics.segment import decode_segment, decode_summary, is_readable
from control_plane.state.table import Row, StateTable

GROUP = "gpu"
"""The group of the profiler's reports about GPUs."""
RECENT_SECONDS = 300
"""The age up to which a report counts."""
_UTILIZATION = "gpu_util_"
_FREE_MEMORY = "gpu_free_memory_"
_GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The use of the GPUs of an allocation."""

    utilization: tuple[float, ...]
    """The utilization of each GPU, from 0 to 1."""
    free_bytes: tuple[float, ...]
    """The free memory of each GPU in bytes."""


def read_gpu_use(
    table: StateTable, allocations: Iterable[tuple[int, int]], now_ms: int
) -> Iterator[GpuUse]:
    """Yield the use of the GPUs of each allocation with a recent report.

    Each allocation costs a query of a single row. Only the first node of a gang is measured. Skip
    rows that this release cannot decode. Raises TableError.

    Args:
        table: the state table.
        allocations: the trial id and the epoch of each allocation.
        now_ms: the present time in epoch ms.
    """
    for trial, epoch in allocations:
        first, last = epoch_range(GROUP, epoch)
        rows = table.query(addresses.trial(trial), first, last, limit=1, descending=True).rows
        use = _use_of_row(rows[0], now_ms) if rows else None
        if use is not None:
            yield use


def _use_of_row(row: Row, now_ms: int) -> GpuUse | None:
    """Return the last values of a row of metrics. Return None if they are old or not readable."""
    try:
        steps, values = _last_values(row)
    except ValueError:
        return None
    # The steps of the profiler's reports are epoch seconds.
    if not values or now_ms // 1000 - steps > RECENT_SECONDS:
        return None
    utilization = [value for name, value in values.items() if name.startswith(_UTILIZATION)]
    free = [value for name, value in values.items() if name.startswith(_FREE_MEMORY)]
    return GpuUse(
        tuple(min(1.0, max(0.0, percent / 100)) for percent in utilization),
        tuple(max(0.0, gibibytes * _GIBIBYTE) for gibibytes in free),
    )


def _last_values(row: Row) -> tuple[int, dict[str, float]]:
    """Return the steps of a row's last report, and the last number of each metric.

    A full row has a summary with these values. Raises ValueError for a row that cannot be decoded.
    """
    if not is_readable(row.body):
        return 0, {}
    summary = decode_summary(row.body)
    if summary is not None:
        return summary.steps_max, {name: found.last for name, found in summary.names.items()}
    columns = decode_segment(row.body, to_segment(row).offset)
    values: dict[str, float] = {}
    for name in columns.names:
        _, numbers = columns.numeric_values(name)
        if numbers:
            values[name] = numbers[-1]
    return max(columns.steps, default=0), values
