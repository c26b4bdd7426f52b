"""Crash tests of the collector: a new process finishes the collection with an equal end.

The process dies before or after a commit, or before or after the removal of a file or folder. The
numbers of commits and removals come from `crash_points`. The next process uses the same files.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.step import CommandRefused
from control_plane.checkpoint_stores import folder_files as folders
from control_plane.objects import directory
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import StateTable
from simulator.faults.table_faults import Crash, CrashingTable, CrashMoment
from tests.simulation.crash_points import STRIDE_SHORT, WHENS, crash_points
from tests.unit.checkpoint_gc.collection_cluster import EXPERIMENT, CollectionCluster


@dataclass
class Disk:
    """A count of removals from the disk; the process dies at removal `crash_at`, from 1."""

    crash_at: int = 0
    when: CrashMoment = "before"
    removed: int = 0

    def remove(self, really: Callable[..., None], *args: Any, **more: Any) -> None:
        self.removed += 1
        if self.removed != self.crash_at:
            really(*args, **more)
            return
        if self.when == "after":
            with suppress(OSError):
                really(*args, **more)
        raise Crash(f"{self.when} entry {self.removed}")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Patch the functions that remove files, so that `remove` counts the removals."""
        watched = SimpleNamespace(**vars(os))
        watched.unlink = partial(self.remove, os.unlink)
        watched.rmdir = partial(self.remove, os.rmdir)
        for module in (folders, directory):
            monkeypatch.setattr(module, "os", watched)


@pytest.fixture(scope="module")
def ended_experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an ended experiment with checkpoints, logs and an interrupted upload.

    One checkpoint is marked for deletion by a user.
    """
    folder = tmp_path_factory.mktemp("ended")
    table = SqliteTable(folder / "state.db", synchronous="NORMAL")
    cluster = CollectionCluster(folder, table)
    cluster.run_search()
    cluster.add_other_data()
    cluster.intend(1, 1, {"uuid": "0000000a-0000-4000-8000-00000000000a"})
    cluster.write("1/1/1/0000000a-0000-4000-8000-00000000000a/half")
    cluster.request_checkpoint_deletion(2, 10)
    table.close()
    return folder


def keep_the_best(cluster: CollectionCluster) -> None:
    # The best checkpoints are 1/20 and 2/20, the latest are 1/30 and 2/30.
    cluster.request_retention(2, 0, 1)


def delete(cluster: CollectionCluster) -> None:
    cluster.request_deletion()


ASKED: dict[str, Callable[[CollectionCluster], None]] = {"keep": keep_the_best, "delete": delete}
by_request = pytest.mark.parametrize("asked", ASKED)


@by_request
@pytest.mark.parametrize("when", WHENS)
def test_crash_at_any_commit_keeps_the_collections_end(
    asked: str,
    when: CrashMoment,
    ended_experiment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, commits, _ = run_without_crash(
        asked, ended_experiment, tmp_path / "undisturbed", monkeypatch
    )
    assert commits > 5
    for n in crash_points(commits, stride=STRIDE_SHORT):
        folder = shutil.copytree(ended_experiment, tmp_path / f"{n}")
        with pytest.raises(Crash):
            live(asked, folder, partial(CrashingTable, crash_at=n, when=when))
        assert live(asked, folder) == expected, (asked, when, n)


@by_request
@pytest.mark.parametrize("when", WHENS)
def test_crash_at_any_removal_keeps_the_collections_end(
    asked: str,
    when: CrashMoment,
    ended_experiment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, _, removals = run_without_crash(
        asked, ended_experiment, tmp_path / "undisturbed", monkeypatch
    )
    assert removals > 10
    for n in crash_points(removals, stride=STRIDE_SHORT):
        folder = shutil.copytree(ended_experiment, tmp_path / f"{n}")
        Disk(n, when).install(monkeypatch)
        with pytest.raises(Crash):
            live(asked, folder)
        Disk().install(monkeypatch)
        assert live(asked, folder) == expected, (asked, when, n)


@by_request
def test_two_concurrent_collectors_reach_the_end_of_a_single_collector(
    asked: str, ended_experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _, _ = run_without_crash(
        asked, ended_experiment, tmp_path / "undisturbed", monkeypatch
    )
    for lead in range(12):
        folder = shutil.copytree(ended_experiment, tmp_path / f"{lead}")
        table = SqliteTable(folder / "state.db", synchronous="NORMAL")
        first, second = (CollectionCluster(folder, table, trials=[1, 2]) for _ in range(2))
        ASKED[asked](first)
        for _ in range(lead):
            first.collector.collect(budget_seconds=0)
        while second.collector.collect(budget_seconds=0):
            first.collector.collect(budget_seconds=0)
        first.work_off()
        assert end_of(first) == expected, (asked, lead)
        table.close()


def run_without_crash(
    asked: str, ended_experiment: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], int, int]:
    """Run without a crash; return the end, the number of commits and the number of removals."""
    shutil.copytree(ended_experiment, folder)
    disk, tables = Disk(), list[CrashingTable]()
    disk.install(monkeypatch)

    def counting_table(table: StateTable) -> StateTable:
        tables.append(CrashingTable(table))
        return tables[0]

    end = live(asked, folder, counting_table)
    return end, tables[0].commits, disk.removed


def live(
    asked: str, folder: Path, faults: Callable[[StateTable], StateTable] = lambda table: table
) -> dict[str, Any]:
    """Run a process that sends the request `asked` and collects all garbage; return the end."""
    table = SqliteTable(folder / "state.db", synchronous="NORMAL")
    cluster = CollectionCluster(folder, faults(table), trials=[1, 2])
    try:
        with suppress(CommandRefused):
            # A user without an answer repeats the request, which may be refused as done.
            ASKED[asked](cluster)
        cluster.work_off()
        return end_of(cluster)
    finally:
        table.close()


def end_of(cluster: CollectionCluster) -> dict[str, Any]:
    trials = [addresses.trial(trial_id) for trial_id in cluster.trials]
    left = cluster.root.rglob("*")
    return {
        "status": cluster.experiment.status.value,
        "checkpoints": cluster.checkpoint_states(),
        "files": sorted(path.relative_to(cluster.root).as_posix() for path in left),
        "objects": cluster.objects_left(),
        "rows": {name: cluster.rows(name) for name in ("collections", "pins", "checkpoints")},
        "kinds": [
            sorted({sort.partition("#")[0] for sort in cluster.rows(address)} - {"Z"})
            for address in (*trials, addresses.trial(9), EXPERIMENT)
        ],
    }
