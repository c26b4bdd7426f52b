"""The deletion of logs and metrics after their retention, on a real folder of objects."""

from functools import partial
from pathlib import Path

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import ContinueRequested, SettingsChanged
from control_plane.actors.messages.experiment_expiry import ExpiryRequested
from control_plane.actors.records import DataRetention
from control_plane.agents.metric_rows import (
    RANK_METRICS,
    RANK_METRICS_END,
)
from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import Stores
from control_plane.engine.due_rows import process_due_rows
from control_plane.engine.engine import Engine
from control_plane.objects.store import ObjectKey
from simulator.faults.table_faults import Crash, CrashingTable, CrashMoment
from tests.engine_timing import UNHURRIED
from tests.unit.checkpoint_gc.collection_cluster import EXPERIMENT, CollectionCluster
from tests.unit.checkpoint_gc.expired_data import (
    BEST,
    DAY_MS,
    LAST,
    WORST,
    keep_for,
    log_text,
    pass_days,
    set_epoch,
    steps_of,
    trial,
    write_data,
)


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A cluster with two ended trials, each with logs and metrics of one run."""
    cluster = CollectionCluster.after_search(tmp_path)
    for trial_id in cluster.trials:
        set_epoch(cluster, trial_id, 1)
        write_data(cluster, trial_id, 1)
    return cluster


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
    assert cluster.experiment.expiry.logs_deleted_ms is not None
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
    assert cluster.experiment.expiry.metrics_deleted_ms is not None


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
        set_epoch(cluster, trial_id, 2)
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
        set_epoch(cluster, 1, 1)
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
