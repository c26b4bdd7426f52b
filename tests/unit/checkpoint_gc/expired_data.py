"""Ended trials with logs and metrics, and the passes that delete expired data."""

from random import Random

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import SettingsChanged
from control_plane.actors.records import DataRetention
from control_plane.actors.trial.state import TrialState
from control_plane.agents.logs import TrialLogs
from control_plane.agents.metric_rows import (
    Stream,
    merge_allocation,
    read_segments,
    segment_writes,
    store_full_segment,
)
from control_plane.agents.sessions import LogChunk
from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import Stores
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.due_rows import process_due_rows
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD, decode_head, encode_head
from control_plane.evolve import evolve
from control_plane.metrics.columns import MetricReport
from control_plane.state.table import Key, Put
from tests.engine_timing import UNHURRIED
from tests.unit.checkpoint_gc.collection_cluster import EXPERIMENT, START_MS, CollectionCluster

DAY_MS = 86_400_000
BEST, WORST, LAST = 1_234, 3_456, 4_500


def set_epoch(cluster: CollectionCluster, trial_id: int, epoch: int) -> None:
    """Write the trial's state with another epoch, and open the state again."""
    address = addresses.trial(trial_id)
    row = cluster.table.get(Key(address, HEAD))
    assert row is not None
    header, body = decode_head(row.body)
    state = evolve(actor_type_at(address).decode_state(body), epoch=epoch)
    head = encode_head(header, actor_type_at(address).encode_state(state))
    cluster.table.commit((Put(row.key, row.revision + 1, head, row.revision),))
    cluster.engine = Engine(cluster.table, lambda: cluster.now_ms, UNHURRIED)
    cluster.stores = Stores(**{**vars(cluster.stores), "engine": cluster.engine})
    cluster.collector = Collector(cluster.stores, UNHURRIED.monotonic_seconds)


def write_data(cluster: CollectionCluster, trial_id: int, epoch: int) -> None:
    """Write logs in rows and objects, and metrics of training, validation and rank 1."""
    logs = TrialLogs(cluster.table, cluster.objects)
    name = f"{trial_id}.{epoch}"
    for start, text in ((0, b"small\n"), (6, b"large " * 1_000)):
        put = logs.store_chunk(trial_id, LogChunk(name, start, text, ((start, START_MS),)))
        cluster.table.commit((put,))
    random = Random(trial_id)

    def value(step: int) -> float:
        return {BEST: -1.0, WORST: 2.0}.get(step, random.random())

    training = [
        MetricReport(step * 100, step, START_MS + step, {"loss": value(step)})
        for step in range(1, LAST + 1)
    ]
    validation = [
        MetricReport(step * 10, step, START_MS + step, {"accuracy": random.random()})
        for step in range(1, 50)
    ]
    streams = (
        (Stream("training", epoch, "0"), training),
        (Stream("validation", epoch, "0"), validation),
        (Stream("training", epoch, "1", 1), training[:900]),
    )
    for stream, reports in streams:
        for start in range(0, len(reports), 1_000):
            for put in segment_writes(trial_id, stream, reports[start : start + 1_000]):
                cluster.table.commit((put,))
    merge_allocation(
        cluster.table, trial_id, epoch, lambda put: store_full_segment(cluster.objects, put)
    )


def steps_of(cluster: CollectionCluster, trial_id: int, group: str, epoch: int = 1) -> list[int]:
    stream = Stream(group, epoch, "0")
    segments = read_segments(cluster.table, trial_id, stream.range_start, stream.range_end)
    return [step for segment in segments for step in segment.read_columns(cluster.objects).steps]


def log_text(cluster: CollectionCluster, trial_id: int, epochs: int = 1) -> str:
    logs = TrialLogs(cluster.table, cluster.objects)
    return logs.read_text(trial_id, epochs, 0, 1_000_000, ended=True).text


def trial(cluster: CollectionCluster, trial_id: int) -> TrialState:
    state = cluster.engine.read_state(addresses.trial(trial_id))
    assert isinstance(state, TrialState)
    return state


def keep_for(cluster: CollectionCluster, logs: int | None, metrics: int | None) -> None:
    change = SettingsChanged(data_retention=DataRetention(logs, metrics))
    cluster.engine.execute_command(EXPERIMENT, change)


def pass_days(cluster: CollectionCluster, days: int) -> None:
    """Advance the clock, and run the passes of the tick and of the collector."""
    cluster.now_ms += days * DAY_MS
    process_due_rows(cluster.engine)
    cluster.engine.advance_until_idle((EXPERIMENT,))
    cluster.work_off()
