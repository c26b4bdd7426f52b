"""Queries of replacements: the time in which trials do not train after a loss of slots.

A replacement is described in actors/replacement.py.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.replacement import (
    Cause,
    Phase,
    ReplacementRecord,
    decode_replacement,
    phase_durations,
    replacements_partition,
)
from control_plane.actors.trial.state import TrialState
from control_plane.queries.answer import Answer
from control_plane.queries.pool import get_pool
from control_plane.rows import trial_rows
from control_plane.services import Services

SHOWN_MAX = 10
"""The most ended replacements in the answer about a trial."""
SUMMED_MAX = 1_000
"""The most replacements that a sum covers, so that its cost does not grow with the cluster."""
LATEST_MAX = 20
"""The most replacements that a sum lists."""
DAY_MS = 24 * 3_600_000


class PhaseDuration(Answer):
    """The duration of a phase of a replacement."""

    phase: str
    duration_ms: int


class ReplacementView(Answer):
    """A replacement of a run. `ended_ms` is null until a later run has trained its first step.

    `phases` has the known phases in the order of the timeline. Their sum is the time from
    `begun_ms` to `ended_ms`, or to now. `has_first_step` is false if the run did not report its
    first step, so that the replacement ended with a later report. `epoch` and `agent_ids` are those
    of the later run. `early_pull_failure` is why its machine could not pull the image before the
    assignment, or empty.
    """

    experiment_id: int
    trial_id: int
    cause: str
    reason: str
    from_epoch: int
    from_agent_id: str
    epoch: int
    agent_ids: list[str]
    begun_ms: int
    ended_ms: int | None
    attempts: int
    duration_ms: int
    phases: list[PhaseDuration]
    has_first_step: bool
    early_pull_failure: str


class PhaseSum(Answer):
    """A phase over several replacements. `count` is the number of replacements with the phase.

    The phase `total` is the whole replacement.
    """

    phase: str
    count: int
    median_ms: int
    p90_ms: int


class CauseSum(Answer):
    """The replacements with a cause, summed up by phase in the order of the timeline.

    The phase `total` comes first. `unmeasured` is the number of further replacements whose run did
    not report its first step. The sums leave them out.
    """

    cause: str
    count: int
    unmeasured: int
    phases: list[PhaseSum]


class ReplacementSums(Answer):
    """The sums of a pool's replacements that ended since `since_ms`, by cause.

    `is_cut` is whether there were more: only the latest SUMMED_MAX replacements are summed, and
    `since_ms` is the end of the earliest of them. `latest` are the latest replacements, the newest
    first.
    """

    resource_pool: str
    since_ms: int
    is_cut: bool
    causes: list[CauseSum]
    latest: list[ReplacementView]


def trial_replacements(services: Services, state: TrialState) -> list[ReplacementView]:
    """Return the latest replacements of a trial, the newest first, at most SHOWN_MAX ended.

    A replacement that has not ended comes first. A trial without a second run needs no read. Raises
    TableError.
    """
    shown = list(_open_replacement(services, state))
    if state.epoch < 2:
        return shown
    page = services.table.query(
        addresses.trial(state.trial_id),
        trial_rows.TRIAL_REPLACEMENT.sort,
        trial_rows.TRIAL_REPLACEMENT.sort_end,
        limit=SHOWN_MAX,
        descending=True,
    )
    return shown + [_view(decode_replacement(row.body)) for row in page.rows]


def replacement_sums(services: Services, pool: str, days: int) -> ReplacementSums:
    """Return the sums of a pool's replacements that ended in the last days.

    At most the latest SUMMED_MAX replacements are read.

    Raises:
        RequestError: not_found, if the pool does not exist.
        TableError: the state table failed.
    """
    get_pool(services, pool)
    since_ms = services.now_ms() - days * DAY_MS
    sums = sum_latest(services, replacements_partition(pool), f"{since_ms:015d}", "\x7f", since_ms)
    return ReplacementSums(resource_pool=pool, **sums)


def sum_latest(
    services: Services, partition: str, first_sort: str, end_sort: str, since_ms: int
) -> dict[str, Any]:
    """Return the fields `since_ms`, `is_cut`, `causes` and `latest` of the rows in a range.

    At most the latest SUMMED_MAX rows are read, in one query. Raises TableError.

    Args:
        partition: the partition of rows that sort by the end of the replacement.
        first_sort: the first sort key of the range.
        end_sort: a sort key after all keys of the range.
        since_ms: the answer's `since_ms` unless the sums are cut.
    """
    page = services.table.query(partition, first_sort, end_sort, limit=SUMMED_MAX, descending=True)
    records = [decode_replacement(row.body) for row in page.rows]
    is_cut = page.next_sort is not None
    return {
        "since_ms": records[-1].ended_ms if is_cut else since_ms,
        "is_cut": is_cut,
        "causes": sum_replacements(records),
        "latest": [_view(record) for record in records[:LATEST_MAX]],
    }


def sum_replacements(records: Iterable[ReplacementRecord]) -> list[CauseSum]:
    """Return the sums of replacements by cause, in the order of Cause. Unknown causes come last."""
    by_cause = defaultdict[str, list[ReplacementRecord]](list)
    for record in records:
        by_cause[record.cause].append(record)
    known = [cause.value for cause in Cause]
    return [
        _cause_sum(cause, by_cause[cause])
        for cause in (*known, *sorted(by_cause.keys() - set(known)))
        if cause in by_cause
    ]


def _cause_sum(cause: str, records: Sequence[ReplacementRecord]) -> CauseSum:
    """Return the sum of the replacements with a cause."""
    measured = [record for record in records if record.has_first_step]
    durations = defaultdict[str, list[int]](list)
    for record in measured:
        durations["total"].append(record.ended_ms - record.begun_ms)
        for phase, duration_ms in record.phases.items():
            durations[phase].append(duration_ms)
    order = ("total", *(phase.value for phase in Phase))
    return CauseSum(
        cause=cause,
        count=len(measured),
        unmeasured=len(records) - len(measured),
        phases=[
            PhaseSum(
                phase=phase,
                count=len(durations[phase]),
                median_ms=quantile(durations[phase], 0.5),
                p90_ms=quantile(durations[phase], 0.9),
            )
            for phase in order
            if phase in durations
        ],
    )


def quantile(values: Sequence[int], share: float) -> int:
    """Return the least of the values that is not below `share` of the values.

    The values must not be empty, and `share` is above 0 and at most 1.
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _view(record: ReplacementRecord) -> ReplacementView:
    """Return the answer about an ended replacement."""
    return ReplacementView(
        experiment_id=record.experiment,
        trial_id=record.trial,
        cause=record.cause,
        reason=record.reason,
        from_epoch=record.from_epoch,
        from_agent_id=record.from_agent,
        epoch=record.epoch,
        agent_ids=list(record.agents),
        begun_ms=record.begun_ms,
        ended_ms=record.ended_ms,
        attempts=record.attempts,
        duration_ms=record.ended_ms - record.begun_ms,
        phases=[
            PhaseDuration(phase=phase, duration_ms=duration_ms)
            for phase, duration_ms in record.phases.items()
        ],
        has_first_step=record.has_first_step,
        early_pull_failure=record.early_pull_failure,
    )


def _open_replacement(services: Services, state: TrialState) -> list[ReplacementView]:
    """Return the replacement of a trial that has not ended, or an empty list.

    A run that still holds the slots that the cluster has asked for counts, too.
    """
    replacement, allocation = state.replacement, state.allocation
    if replacement is None or state.status.is_final:
        return []
    now_ms = max(services.now_ms(), replacement.begun_ms)
    assigned_ms = allocation.placed_ms if allocation is not None else 0
    is_new = bool(replacement.released_ms)
    phases = phase_durations(replacement, assigned_ms if is_new else 0, now_ms)
    return [
        ReplacementView(
            experiment_id=state.experiment_id,
            trial_id=state.trial_id,
            cause=replacement.cause,
            reason=replacement.reason,
            from_epoch=replacement.epoch,
            from_agent_id=replacement.agent,
            epoch=state.epoch,
            agent_ids=list(allocation.agents) if allocation is not None and is_new else [],
            begun_ms=replacement.begun_ms,
            ended_ms=None,
            attempts=replacement.attempts,
            duration_ms=now_ms - replacement.begun_ms,
            phases=[
                PhaseDuration(phase=phase, duration_ms=duration_ms)
                for phase, duration_ms in phases.items()
            ],
            has_first_step=False,
            early_pull_failure=replacement.early_pull_failure,
        )
    ]
