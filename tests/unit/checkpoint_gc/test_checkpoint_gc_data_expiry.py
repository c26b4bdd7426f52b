"""The deletion of logs and metrics after their retention, on a real folder of objects."""

from functools import partial
from pathlib import Path
from random import Random

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import ContinueRequested, SettingsChanged
from control_plane.actors.messages.experiment_expiry import ExpiryRequested
from control_plane.actors.records import DataRetention
from control_plane.actors.trial.state import TrialState
from control_plane.agents.logs import TrialLogs
from control_plane.agents.metric_rows import (
    RANK_METRICS,
    RANK_METRICS_END,
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
from control_plane.objects.store import ObjectKey
from control_plane.state.table import Key, Put
from simulator.faults.table_faults import Crash, CrashingTable, CrashMoment
from tests.engine_timing import UNHURRIED
from tests.unit.checkpoint_gc.collection_cluster import EXPERIMENT, START_MS, CollectionCluster

DAY_MS = 86_400_000
BEST, WORST, LAST = 1_234, 3_456, 4_500


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A cluster with two ended trials, each with logs and metrics of one run."""
    cluster = CollectionCluster.after_search(tmp_path)
    for trial_id in cluster.trials:
        _set_epoch(cluster, trial_id, 1)
        write_data(cluster, trial_id, 1)
    return cluster


def _set_epoch(cluster: CollectionCluster, trial_id: int, epoch: int) -> None:
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


def test_logs_are_deleted_after_their_days(cluster: CollectionCluster) -> None:
    keep_for(cluster, 7, None)
    pass_days(cluster, 6)
    assert len(log_text(cluster, 1)) == 6_006
    pass_days(cluster, 1)
    for trial_id in cluster.trials:
        assert log_text(cluster, trial_id) == ""
        assert trial(cluster, trial_id).expired_data.logs_epoch == 1
        assert [*cluster.objects.list_objects(ObjectKey(f"logs/{trial_id}"))] == []
    assert steps_of(cluster, 1, "training") == list(range(1, LAST + 1))
    assert cluster.experiment.logs_deleted_ms is not None
    assert cluster.rows("retention-ends") == []


def test_metrics_keep_validations_extremes_and_last_values(cluster: CollectionCluster) -> None:
    assert [*cluster.objects.list_objects(ObjectKey("metrics/1"))] != []
    keep_for(cluster, -1, 0)
    pass_days(cluster, 0)
    for trial_id in cluster.trials:
        assert steps_of(cluster, trial_id, "training") == [BEST, WORST, LAST]
        assert steps_of(cluster, trial_id, "validation") == list(range(1, 50))
        ranks = cluster.table.query(addresses.trial(trial_id), RANK_METRICS, RANK_METRICS_END)
        assert not ranks.rows
        assert [*cluster.objects.list_objects(ObjectKey(f"metrics/{trial_id}"))] == []
    assert len(log_text(cluster, 1)) == 6_006
    assert cluster.experiment.metrics_deleted_ms is not None


def test_days_of_a_trial_replace_those_of_the_experiment(cluster: CollectionCluster) -> None:
    keep_for(cluster, 7, None)
    change = SettingsChanged(trial_log_days=(1, -1))
    cluster.engine.execute_command(EXPERIMENT, change)
    cluster.engine.execute_command(EXPERIMENT, SettingsChanged(trial_log_days=(2, 1)))
    pass_days(cluster, 1)
    assert (len(log_text(cluster, 1)), log_text(cluster, 2)) == (6_006, "")
    pass_days(cluster, 7)
    assert len(log_text(cluster, 1)) == 6_006


def test_runs_after_a_continuation_keep_their_data(cluster: CollectionCluster) -> None:
    keep_for(cluster, 0, 0)
    pass_days(cluster, 0)
    for trial_id in cluster.trials:
        _set_epoch(cluster, trial_id, 2)
        write_data(cluster, trial_id, 2)
    cluster.engine.execute_command(EXPERIMENT, ContinueRequested())
    pass_days(cluster, 30)
    assert len(log_text(cluster, 1, epochs=2)) == 6_006
    assert steps_of(cluster, 1, "training", epoch=2) == list(range(1, LAST + 1))


def test_schedule_postpones_the_deletion(cluster: CollectionCluster) -> None:
    later_ms = cluster.now_ms + DAY_MS
    cluster.stores = Stores(**{**vars(cluster.stores), "next_deletion_ms": lambda _: later_ms})
    cluster.collector = Collector(cluster.stores, UNHURRIED.monotonic_seconds)
    keep_for(cluster, 0, None)
    pass_days(cluster, 0)
    assert len(log_text(cluster, 1)) == 6_006
    pass_days(cluster, 1)
    assert log_text(cluster, 1) == ""


def test_admins_deletion_does_not_wait_for_the_schedule(cluster: CollectionCluster) -> None:
    later_ms = cluster.now_ms + DAY_MS
    cluster.stores = Stores(**{**vars(cluster.stores), "next_deletion_ms": lambda _: later_ms})
    cluster.collector = Collector(cluster.stores, UNHURRIED.monotonic_seconds)
    reply = cluster.engine.execute_command(EXPERIMENT, ExpiryRequested(DataRetention(0, 0)))
    assert reply is True
    cluster.work_off()
    assert log_text(cluster, 1) == ""
    assert steps_of(cluster, 1, "training") == [BEST, WORST, LAST]


@pytest.mark.parametrize("when", ["before", "after"])
def test_collector_that_dies_at_any_commit_continues(tmp_path: Path, when: CrashMoment) -> None:
    commit = 0
    while True:
        commit += 1
        folder = tmp_path / str(commit)
        folder.mkdir()
        cluster = CollectionCluster.after_search(folder)
        _set_epoch(cluster, 1, 1)
        write_data(cluster, 1, 1)
        keep_for(cluster, 0, 0)
        process_due_rows(cluster.engine)
        cluster.engine.advance_until_idle((EXPERIMENT,))
        table = CrashingTable(cluster.table, commit, when)
        engine = Engine(table, partial(int, cluster.now_ms), UNHURRIED)
        stores = Stores(**{**vars(cluster.stores), "engine": engine})
        died = False
        try:
            Collector(stores, UNHURRIED.monotonic_seconds).collect()
        except Crash:
            died = True
        cluster.work_off()
        assert steps_of(cluster, 1, "training") == [BEST, WORST, LAST]
        assert steps_of(cluster, 1, "validation") == list(range(1, 50))
        assert log_text(cluster, 1) == ""
        assert [*cluster.objects.list_objects(ObjectKey("metrics/1"))] == []
        assert [*cluster.objects.list_objects(ObjectKey("logs/1"))] == []
        if not died:
            assert commit > 5
            return
