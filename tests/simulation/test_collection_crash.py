"""A collector that dies anywhere is finished by the next one, and it ends the same.

The process dies at every commit, before or after it happened, and at every entry it removes from
the disk, before or after it is gone. What follows is a fresh process on the same files.
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
from control_plane.actors.step import Refused
from control_plane.collection import folders
from control_plane.objects import directory
from control_plane.state.faults import Crash, CrashingTable, When
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import StateTable
from tests.unit.collection.yard import EXPERIMENT, Yard

WHENS: tuple[When, When] = ("before", "after")


@dataclass
class Disk:
    """Counts what is removed from the disk; the process dies at number `crash_at`."""

    crash_at: int = 0
    when: When = "before"
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
        """Lets the code that removes files meet this disk."""
        watched = SimpleNamespace(**vars(os))
        watched.unlink = partial(self.remove, os.unlink)
        watched.rmdir = partial(self.remove, os.rmdir)
        monkeypatch.setattr(folders, "os", watched)
        monkeypatch.setattr(directory, "os", watched)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment that has ended, with checkpoints, logs and an upload cut short;
    one of its checkpoints was condemned by hand.
    """
    folder = tmp_path_factory.mktemp("ended")
    table = SqliteTable(folder / "state.db", synchronous="NORMAL")
    yard = Yard(folder, table)
    yard.search()
    yard.fill()
    yard.intend(1, 1, {"uuid": "0000000a-0000-4000-8000-00000000000a"})
    yard.write("1/1/1/0000000a-0000-4000-8000-00000000000a/half")
    yard.condemn(2, 10)
    table.close()
    return folder


def keep_the_best(yard: Yard) -> None:
    # Best of all 1/20 and 2/20, latest of each 1/30 and 2/30.
    yard.keep(2, 0, 1)


def delete(yard: Yard) -> None:
    yard.delete()


ASKED: dict[str, Callable[[Yard], None]] = {"keep": keep_the_best, "delete": delete}
by_request = pytest.mark.parametrize("asked", ASKED)


@by_request
@pytest.mark.parametrize("when", WHENS)
def test_a_crash_at_any_commit_changes_nothing(
    asked: str, when: When, ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, commits, _ = undisturbed(asked, ended, tmp_path / "undisturbed", monkeypatch)
    assert commits > 5
    for n in range(1, commits + 1):
        folder = shutil.copytree(ended, tmp_path / f"{n}")
        with pytest.raises(Crash):
            live(asked, folder, partial(CrashingTable, crash_at=n, when=when))
        assert live(asked, folder) == expected, (asked, when, n)


@by_request
@pytest.mark.parametrize("when", WHENS)
def test_a_crash_at_any_removal_changes_nothing(
    asked: str, when: When, ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _, removals = undisturbed(asked, ended, tmp_path / "undisturbed", monkeypatch)
    assert removals > 10
    for n in range(1, removals + 1):
        folder = shutil.copytree(ended, tmp_path / f"{n}")
        Disk(n, when).install(monkeypatch)
        with pytest.raises(Crash):
            live(asked, folder)
        Disk().install(monkeypatch)
        assert live(asked, folder) == expected, (asked, when, n)


@by_request
def test_two_collectors_at_any_distance_end_as_one(
    asked: str, ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _, _ = undisturbed(asked, ended, tmp_path / "undisturbed", monkeypatch)
    for lead in range(12):
        folder = shutil.copytree(ended, tmp_path / f"{lead}")
        table = SqliteTable(folder / "state.db", synchronous="NORMAL")
        first, second = (Yard(folder, table, trials=[1, 2]) for _ in range(2))
        ASKED[asked](first)
        for _ in range(lead):
            first.collector.collect(budget_seconds=0)
        while second.collector.collect(budget_seconds=0):
            first.collector.collect(budget_seconds=0)
        first.work_off()
        assert end_of(first) == expected, (asked, lead)
        table.close()


def undisturbed(
    asked: str, ended: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], int, int]:
    """How it ends, and how many commits and removals that takes."""
    shutil.copytree(ended, folder)
    disk, tables = Disk(), list[CrashingTable]()
    disk.install(monkeypatch)

    def counted(table: StateTable) -> StateTable:
        tables.append(CrashingTable(table))
        return tables[0]

    end = live(asked, folder, counted)
    return end, tables[0].commits, disk.removed


def live(
    asked: str, folder: Path, faults: Callable[[StateTable], StateTable] = lambda table: table
) -> dict[str, Any]:
    """A process that asks for something and works it off; how it ends."""
    table = SqliteTable(folder / "state.db", synchronous="NORMAL")
    yard = Yard(folder, faults(table), trials=[1, 2])
    try:
        with suppress(Refused):
            # A user who got no answer asks again, and may learn that it was done.
            ASKED[asked](yard)
        yard.work_off()
        return end_of(yard)
    finally:
        table.close()


def end_of(yard: Yard) -> dict[str, Any]:
    trials = [addresses.trial(trial_id) for trial_id in yard.trials]
    return {
        "status": yard.experiment.status.value,
        "checkpoints": yard.states(),
        "files": sorted(path.relative_to(yard.root).as_posix() for path in yard.root.rglob("*")),
        "objects": yard.objects_left(),
        "rows": {name: yard.rows(name) for name in ("collections", "pins", "checkpoints")},
        "kinds": [
            sorted({sort.partition("#")[0] for sort in yard.rows(address)} - {"Z"})
            for address in (*trials, addresses.trial(9), EXPERIMENT)
        ],
    }
