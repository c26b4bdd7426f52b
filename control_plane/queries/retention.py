"""Queries of the retention of logs and metrics: days, due times, and the bytes of single trials."""

from itertools import islice

from control_plane.actors.experiment.expiry import DAY_MS, with_defaults
from control_plane.actors.experiment.listing import decode_listing
from control_plane.actors.experiment.state import Definition, ExperimentState, Settings
from control_plane.actors.records import DataRetention, Status
from control_plane.actors.trial.state import TrialState
from control_plane.agents.logs import TrialLogs
from control_plane.agents.metric_rows import (
    METRICS,
    METRICS_END,
    RANK_METRICS,
    RANK_METRICS_END,
    read_segments,
    segment_object,
)
from control_plane.agents.metric_rows import NAMESPACE as METRIC_OBJECTS
from control_plane.checkpoint_gc.data_expiry import VALIDATIONS
from control_plane.objects.store import ObjectKey
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.cluster_configuration import data_retention
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.row_pages import read_row_page
from control_plane.rows.experiment_rows import LISTING
from control_plane.services import Services
from control_plane.state.table import Row

ENDED = frozenset({Status.COMPLETED, Status.CANCELED, Status.ERROR, Status.DELETE_FAILED})
TRIALS_MAX = 20
"""The most trials of a page, because each trial costs several reads."""
RUNS_MAX = 50
"""The most runs of a trial whose logs are measured."""
ROWS_MAX = 500
"""The most rows of metrics of a trial that are measured."""
PAGE_MAX = 50
"""The most experiments of a page, because each experiment costs several reads."""
_TRIALS = "retention-trials"


class TrialDays(Answer):
    """The days for which the logs of a single trial are kept; -1 for ever."""

    trial_id: int
    log_retention_days: int


class ExperimentRetention(Answer):
    """The retention of an experiment's logs and metrics.

    The days include the cluster's present defaults; null or -1 keeps the data. `logs_due_ms` and
    `metrics_due_ms` are the ends of the retention, in epoch ms: null before the experiment's end,
    without an end, and after the deletion. `planned_ms` is the time at which the cluster deletes
    data by itself; null if only a cleanup deletes data. `logs_deleted_ms` and `metrics_deleted_ms`
    are the times of the last deletion, or null. `due` is whether a cleanup would delete anything.
    """

    experiment_id: int
    name: str
    user: str
    ended_ms: int | None
    log_retention_days: int | None
    metrics_retention_days: int | None
    trial_days: list[TrialDays]
    logs_due_ms: int | None
    metrics_due_ms: int | None
    planned_ms: int | None
    logs_deleted_ms: int | None
    metrics_deleted_ms: int | None
    due: bool


class TrialData(Answer):
    """The stored logs and detailed metrics of a trial that the end of the retention deletes.

    `log_bytes` is the length of the logs of the last 50 runs. `metrics_bytes` is the compressed
    size of at most 500 rows of the trial's own metrics, and of 500 rows of separate ranks. Some
    values of each metric stay. `logs_due` and `metrics_due` say whether a cleanup would delete the
    data now.
    """

    trial_id: int
    log_bytes: int
    metrics_bytes: int
    logs_due: bool
    metrics_due: bool


def describe_retention(services: Services, experiment_id: int) -> ExperimentRetention:
    """Return the retention of an experiment.

    Raises:
        RequestError: not_found, if the experiment does not exist.
    """
    state, definition = experiments.get_experiment(services, experiment_id)
    return _retention_of(services, state, definition, data_retention(services.table))


def list_retentions(
    services: Services, page: PageRequest, *, due: bool
) -> Page[ExperimentRetention]:
    """Return the retention of ended experiments, commands, notebooks and shells, in order of ids.

    A page with a cursor may be short or empty.

    Args:
        services: the services that read experiments.
        page: the request.
        due: list only experiments with logs or metrics whose retention has ended.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """

    def has_ended(row: Row) -> bool:
        return decode_listing(row.body).state in ENDED

    short_page = PageRequest(min(page.limit, PAGE_MAX), page.cursor)
    rows, cursor = read_row_page(services.table, LISTING.partition, short_page, is_wanted=has_ended)
    defaults = data_retention(services.table)
    found, _ = services.experiments.read_experiments([int(row.key.sort) for row in rows])
    items = [_retention_of(services, *pair, defaults) for pair in found if pair is not None]
    return Page(items=[item for item in items if item.due or not due], next_cursor=cursor)


def list_trial_data(services: Services, experiment_id: int, page: PageRequest) -> Page[TrialData]:
    """Return the sizes of logs and detailed metrics of an experiment's trials, sorted by number.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a cursor of another
            list.
        TableError, OSError: the state table or the object store failed.
    """
    state, definition = experiments.get_experiment(services, experiment_id)
    after = page.start_after(_TRIALS, (int,))
    first = 0 if after is None else max(0, int(after[0]) + 1)
    end = min(state.trials, first + min(page.limit, TRIALS_MAX))
    ids = list(experiments.trial_ids(services, state, first, end))
    heads = services.experiments.read_trials(ids)
    defaults = data_retention(services.table)
    retention = _retention_of(services, state, definition, defaults)
    items = [
        _trial_data(services, head, retention)
        for head in heads
        if head is not None and not head.deleted
    ]
    cursor = encode_cursor(_TRIALS, (end - 1,)) if end < state.trials else None
    return Page(items=items, next_cursor=cursor)


def _retention_of(
    services: Services, state: ExperimentState, definition: Definition, defaults: DataRetention
) -> ExperimentRetention:
    """Return the retention of an experiment, given the cluster's defaults. Reads the settings."""
    settings: Settings = experiments.current_settings(services, state, definition)
    days = with_defaults(settings.data_retention, defaults)
    planned = state.expiry.planned
    ended_ms = state.ended_ms if state.status.is_final else None
    logs_due_ms = _due_ms(ended_ms, days.log_days, state.expiry.logs_deleted_ms)
    metrics_due_ms = _due_ms(ended_ms, days.metrics_days, state.expiry.metrics_deleted_ms)
    trial_ends = [_end_ms(ended_ms, trial_days) for _, trial_days in settings.trial_log_days]
    due_ms = [logs_due_ms, metrics_due_ms]
    due_ms += [end_ms for end_ms in trial_ends if end_ms and end_ms > state.expiry.until_ms]
    return ExperimentRetention(
        experiment_id=state.experiment_id,
        name=state.name,
        user=state.owner,
        ended_ms=ended_ms,
        log_retention_days=days.log_days,
        metrics_retention_days=days.metrics_days,
        trial_days=[
            TrialDays(trial_id=trial_id, log_retention_days=log_days)
            for trial_id, log_days in settings.trial_log_days
        ],
        logs_due_ms=logs_due_ms,
        metrics_due_ms=metrics_due_ms,
        planned_ms=None if planned is None else planned.due_ms,
        logs_deleted_ms=state.expiry.logs_deleted_ms,
        metrics_deleted_ms=state.expiry.metrics_deleted_ms,
        due=any(end_ms is not None and end_ms <= services.now_ms() for end_ms in due_ms),
    )


def _due_ms(ended_ms: int | None, days: int | None, deleted_ms: int | None) -> int | None:
    """Return the end of a retention. None if the data was deleted after the experiment's end."""
    if ended_ms is None or (deleted_ms is not None and deleted_ms >= ended_ms):
        return None
    return _end_ms(ended_ms, days)


def _end_ms(ended_ms: int | None, days: int | None) -> int | None:
    """Return the end of a retention. None for data that is kept for ever, and before the end."""
    return None if ended_ms is None or days is None or days < 0 else ended_ms + days * DAY_MS


def _trial_data(services: Services, trial: TrialState, retention: ExperimentRetention) -> TrialData:
    """Return the sizes of a trial's logs and detailed metrics."""
    own = {one.trial_id: one.log_retention_days for one in retention.trial_days}
    log_days = own.get(trial.trial_id, retention.log_retention_days)
    ends = [
        _end_ms(retention.ended_ms, days) for days in (log_days, retention.metrics_retention_days)
    ]
    logs_due, metrics_due = (end_ms is not None and end_ms <= services.now_ms() for end_ms in ends)
    return TrialData(
        trial_id=trial.trial_id,
        log_bytes=_log_bytes(services, trial),
        metrics_bytes=_metrics_bytes(services, trial),
        logs_due=logs_due,
        metrics_due=metrics_due,
    )


def _log_bytes(services: Services, trial: TrialState) -> int:
    """Return the size of a trial's logs that are not marked as deleted.

    Each run costs a query. Runs before the last RUNS_MAX are left out.
    """
    logs = TrialLogs(services.table, services.objects)
    first = max(trial.expired_data.logs_epoch, trial.epoch - RUNS_MAX)
    chunks = (
        logs.read_chunk_before(trial.trial_id, epoch) for epoch in range(first + 1, trial.epoch + 1)
    )
    return sum(chunk.end for chunk in chunks if chunk is not None)


def _metrics_bytes(services: Services, trial: TrialState) -> int:
    """Return the bytes of a trial's metrics, except validations and kept values.

    At most ROWS_MAX rows of each kind, and as many objects, are read.
    """
    folder = ObjectKey(f"{METRIC_OBJECTS}/{trial.trial_id}")
    listed = islice(services.objects.list_objects(folder), ROWS_MAX)
    sizes = {str(one.key): one.size for one in listed}
    size = 0
    for first, end in ((METRICS, METRICS_END), (RANK_METRICS, RANK_METRICS_END)):
        segments = read_segments(services.table, trial.trial_id, first, end)
        for segment in islice(segments, ROWS_MAX):
            stream = segment.stream
            is_kept = stream.rank is None and stream.group == VALIDATIONS
            if not is_kept and stream.epoch > trial.expired_data.metrics_epoch:
                key = segment_object(segment.row)
                size += len(segment.row.body) + sizes.get(str(key), 0)
    return size
