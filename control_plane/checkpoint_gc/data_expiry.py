"""The deletion of expired logs and detailed metrics.

Each trial is marked before its data is deleted, so that no query takes missing data for a trial
without output. Every step may be repeated: the objects of a row are deleted before the row, and the
kept reports of a stream are written before the other rows are deleted.
"""

import logging
from collections.abc import Iterator

from control_plane.actors import addresses
from control_plane.actors.experiment.expiry import is_due
from control_plane.actors.experiment.state import ExperimentState, Expiry, Settings
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.step import CommandRefused
from control_plane.agents.logs import NAMESPACE as LOGS
from control_plane.agents.logs import chunk_epoch, log_range
from control_plane.agents.metric_rows import (
    METRICS,
    METRICS_END,
    RANK_METRICS,
    RANK_METRICS_END,
    Stream,
    group_range,
    kept_writes,
    read_first_segment,
    read_segments,
    segment_object,
)
from control_plane.checkpoint_gc.checkpoint_inventory import trial_ids
from control_plane.checkpoint_gc.erasure import delete_rows
from control_plane.checkpoint_gc.package_archives import remove_object
from control_plane.checkpoint_gc.rate_limit import NO_FILES, Steps
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.metrics.kept_reports import ReportSelection
from control_plane.objects.store import ObjectKey
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Check, Delete, Put, Row

log = logging.getLogger(__name__)

VALIDATIONS = "validation"
"""The group of metrics that keeps all reports: searches, lists and importance compare them."""


def delete_expired_data(
    stores: Stores, experiment: ExperimentState, expiry: Expiry, current: Check
) -> Steps:
    """Delete the expired logs and detailed metrics of an ended experiment.

    Args:
        stores: the stores of the data.
        experiment: the experiment.
        expiry: the days of the experiment, and the time by which a retention must have ended.
        current: the condition of each mark, that no later request has replaced the request.

    Raises:
        CollectionFailed: an object cannot be deleted or read.
        Conflict: a later request replaced the request, or another process changed a row.
        TableError: the state table failed.
    """
    ended_ms = experiment.ended_ms
    if ended_ms is None or not experiment.status.is_final:
        return
    address = addresses.experiment(experiment.experiment_id)
    settings = stores.engine.read_part(address, "settings")
    trial_days = dict(settings.trial_log_days) if isinstance(settings, Settings) else {}
    metrics = is_due(ended_ms, expiry.metrics_days, expiry.until_ms)
    try:
        for trial_id in trial_ids(stores.engine, experiment):
            log_days = trial_days.get(trial_id, expiry.log_days)
            logs = is_due(ended_ms, log_days, expiry.until_ms)
            if logs or metrics:
                yield from _expire_trial(stores, trial_id, DataExpired(logs, metrics), current)
    except OSError as error:
        raise CollectionFailed(f"cannot delete expired data: {error}") from None


def _expire_trial(stores: Stores, trial_id: int, message: DataExpired, current: Check) -> Steps:
    """Mark a trial, and delete the marked data. Raises OSError, Conflict and TableError."""
    address = addresses.trial(trial_id)
    try:
        reply = stores.engine.execute_command(
            address, message, extra_writes=lambda reply: (current,)
        )
    except CommandRefused as refused:
        if refused.code != "not_found":
            raise
        return
    yield NO_FILES
    logs_epoch, metrics_epoch = reply if isinstance(reply, tuple | list) else (0, 0)
    if message.logs and logs_epoch:
        yield from _delete_logs(stores, trial_id, logs_epoch)
    if message.metrics and metrics_epoch:
        yield from _delete_metrics(stores, trial_id, metrics_epoch)


def _delete_logs(stores: Stores, trial_id: int, last_epoch: int) -> Steps:
    """Delete the logs of a trial's runs up to an epoch: first the objects, then the rows."""
    for listed in stores.objects.list_objects(ObjectKey(f"{LOGS}/{trial_id}")):
        if chunk_epoch(listed.key) <= last_epoch:
            yield from remove_object(stores.objects, listed.key)
    first, end = log_range(last_epoch)
    rows = read_rows(stores.engine.table, addresses.trial(trial_id), first, end)
    yield from delete_rows(stores.engine.table, (row.key for row in rows))


def _delete_metrics(stores: Stores, trial_id: int, last_epoch: int) -> Steps:
    """Delete detailed metrics of a trial's runs up to an epoch.

    Metrics of separate ranks are deleted as a whole. Of the trial's own metrics, validations stay,
    and each other stream keeps its extreme and last values.
    """
    ranges = ((METRICS, METRICS_END), (RANK_METRICS, RANK_METRICS_END))
    for first, end in ranges:
        for stream in _read_streams(stores, trial_id, last_epoch, first, end):
            if stream.rank is not None or stream.group != VALIDATIONS:
                yield from _thin_stream(stores, trial_id, stream)


def _read_streams(
    stores: Stores, trial_id: int, last_epoch: int, first: str, end: str
) -> Iterator[Stream]:
    """Yield the streams in a range of sort keys, of runs up to an epoch.

    Each stream costs a query or two. Raises TableError.
    """
    while segment := read_first_segment(stores.engine.table, trial_id, first, end):
        stream = segment.stream
        if stream.epoch <= last_epoch:
            yield stream
            first = stream.range_end
        else:
            first = group_range(stream.group, stream.rank)[1]


def _thin_stream(stores: Stores, trial_id: int, stream: Stream) -> Steps:
    """Replace the rows of a stream by rows with the kept reports. Separate ranks keep no reports.

    The kept reports are committed before any object or row is deleted. A repeated call therefore
    selects the same reports, also after a crash. A stream with a row that this release cannot read
    stays as it is.
    """
    table = stores.engine.table
    bounds = (trial_id, stream.range_start, stream.range_end)
    writes: list[Put] = []
    if stream.rank is None:
        selection = ReportSelection()
        for segment in read_segments(table, *bounds):
            try:
                selection.add(segment.read_columns(stores.objects))
            except ValueError as error:
                log.warning("metrics of trial %d stay: %s", trial_id, error)
                return
            yield NO_FILES
        writes = list(kept_writes(trial_id, stream, selection.reports()))
    kept = {write.key for write in writes}
    replaced = [row for row in table.get_many([*kept]) if row is not None] if kept else []
    for write in writes:
        table.commit((write,))
        yield NO_FILES
    for row in replaced:
        yield from _remove_reports(stores, row)
    for segment in read_segments(table, *bounds):
        if segment.row.key not in kept:
            yield from _remove_reports(stores, segment.row)
            table.commit((Delete(segment.row.key, segment.row.revision),))
            yield NO_FILES


def _remove_reports(stores: Stores, row: Row) -> Steps:
    """Remove the object with the reports of a row, if the row has an object."""
    key = segment_object(row)
    if key is not None:
        yield from remove_object(stores.objects, key)
