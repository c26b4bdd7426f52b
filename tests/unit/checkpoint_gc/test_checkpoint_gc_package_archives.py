"""Removal of package archives after the experiment's end, late uploads included."""

from pathlib import Path

from control_plane.checkpoint_gc.package_archives import sweep_package_archives
from control_plane.objects.package_archives import NAMESPACE, PackageArchive
from control_plane.objects.store import ObjectKey
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster


def store(cluster: CollectionCluster, experiment_id: int) -> None:
    archive = PackageArchive(experiment_id, "hook", "a" * 64, "b" * 64, 1)
    cluster.objects.put(archive.object_key, b"x")


def stored_experiments(cluster: CollectionCluster) -> list[str]:
    archives = cluster.objects.list_objects(ObjectKey(NAMESPACE))
    return [archive.key.parts[1] for archive in archives]


def test_end_of_an_experiment_removes_package_archives(tmp_path: Path) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(1)
    store(cluster, 1)
    cluster.collector.collect()
    assert stored_experiments(cluster) == ["1"]
    cluster.end_experiment()
    assert stored_experiments(cluster) == []


def test_deletion_removes_late_package_archives(tmp_path: Path) -> None:
    cluster = CollectionCluster.after_search(tmp_path)
    store(cluster, 1)
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert stored_experiments(cluster) == []


def test_sweep_removes_archives_of_ended_and_unknown_experiments(tmp_path: Path) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(1)
    store(cluster, 1)
    store(cluster, 7)
    list(sweep_package_archives(cluster.stores))
    assert stored_experiments(cluster) == ["1"]
    cluster.end_experiment()
    store(cluster, 1)
    list(sweep_package_archives(cluster.stores))
    assert stored_experiments(cluster) == []


def test_collector_sweeps_archives_once_a_day_after_work(tmp_path: Path) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(1)
    store(cluster, 7)
    assert not cluster.collector.collect()
    # Without other work the collector lists no archives.
    assert stored_experiments(cluster) == ["7"]
    cluster.end_experiment()
    assert stored_experiments(cluster) == []
    store(cluster, 7)
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert stored_experiments(cluster) == ["7"]
