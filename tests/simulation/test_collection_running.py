"""Collections during a search: active trials find the latest checkpoint.

User requests and turns of the collector come at random moments.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    DeleteRequested,
    PauseRequested,
    SettingsChanged,
)
from control_plane.actors.records import Retention, Status
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.checkpoints import CheckpointState
from control_plane.checkpoint_gc.checkpoint_inventory import (
    checkpoint_records,
    completed_checkpoints,
)
from control_plane.checkpoint_gc.ranking import unwanted_checkpoints
from control_plane.engine.replay import replay_actor
from simulator.machines.report_stream import Line
from simulator.stepped.scripted_agent import Run
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.simulation.scripts import metric_of
from tests.unit.checkpoint_gc.collection_cluster import CONFIG

EXPERIMENT = "experiment#1"
TRIALS = 5


class Search:
    """A search with trials that save a checkpoint in each round and fail at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.root = folder / "checkpoints"
        self.root.mkdir()
        self.cluster = SteppedCluster(folder / "table.db")
        self.cluster.add_pool()
        self.cluster.add_agent("a", 3, self.script)
        message = submission(1, TRIALS, max_restarts=100)
        self.cluster.command(EXPERIMENT, replace(message, config=CONFIG))
        self.collector = self.cluster.host.collector

    def script(self, run: Run) -> list[Line]:
        if run.killed:
            return [{"kind": "exited", "reason": "killed"}]
        if run.rounds and self.random.random() < 0.15:
            return [{"kind": "exited", "reason": "errored", "code": 1}]
        steps = self.steps(run) + run.rounds + 1
        lines = self.checkpoint(run, steps)
        if self.random.random() < 0.7:
            metrics = {run.spec["metric"]: round(metric_of(run) / steps, 6)}
            validation = {"group": "validation", "steps_completed": steps, "metrics": metrics}
            lines.append({"kind": "metrics", **validation})
        if steps >= run.directives["length"]:
            done = {"kind": "completed", "length": steps, "metric": metric_of(run)}
            return [*lines, done, {"kind": "exited", "reason": "completed"}]
        if run.directives["preempt"]:
            lines.append({"kind": "exited", "reason": "preempted"})
        return lines

    def steps(self, run: Run) -> int:
        """Return the steps of the trial's checkpoint at the start of the allocation.

        Raise AssertionError if the files of the checkpoint are missing.
        """
        if not hasattr(run, "began"):
            state = self.cluster.checker.actor_state(f"trial#{run.spec['trial_id']}")
            reference = state.checkpoint
            assert reference is None or (self.root / reference.path / "w").exists()
            run.began = reference.steps_completed if reference else 0  # type: ignore[attr-defined]
        began: int = run.began  # type: ignore[attr-defined]
        return began

    def checkpoint(self, run: Run, steps: int) -> list[Line]:
        trial_id, epoch = run.allocation.split(".")
        uuid = f"{int(trial_id):08x}-{int(epoch):04x}-4000-8000-{steps:012x}"
        path = f"1/{trial_id}/{epoch}/{uuid}"
        (self.root / path).mkdir(parents=True)
        (self.root / path / "w").touch()
        line = {"uuid": uuid, "steps_completed": steps, "path": path}
        more = {"size_bytes": 0, "files": 1, "manifest_sha256": "0" * 64, "metadata": {}}
        intent = {"kind": "checkpoint_intent", **line}
        if self.random.random() < 0.1:
            # The run fails before its report, so that no record owns the files.
            return [intent, {"kind": "exited", "reason": "errored", "code": 1}]
        return [intent, {"kind": "checkpoint", **line, **more}]

    def trials(self) -> Iterator[int]:
        yield from (state.trial_id for state in self.cluster.checker.actor_states("trial"))

    def check(self) -> None:
        """Assert that complete checkpoints have files and trials have the latest checkpoint."""
        table = self.cluster.engine.table
        for trial_id in self.trials():
            records = {
                record.checkpoint.uuid: record for record in checkpoint_records(table, trial_id)
            }
            for record in records.values():
                exists = (self.root / record.checkpoint.path / "w").exists()
                assert exists or record.state is not CheckpointState.COMPLETED, record
                assert not exists or record.state is not CheckpointState.DELETED, record
            state = self.cluster.engine.read_state(addresses.trial(trial_id))
            if state.checkpoint is not None:
                latest = records[state.checkpoint.uuid]
                assert latest.state is CheckpointState.COMPLETED, (trial_id, latest)
            elif not state.status.is_final:
                assert not records, (trial_id, records)

    def meddle(self) -> None:
        """Send a random command of a user; only stopping and ended experiments may refuse."""
        numbers = (self.random.choice((0, 0, 1, 2)) for _ in range(3))
        wishes = (
            SettingsChanged(retention=Retention(*numbers)),
            PauseRequested(),
            ActivateRequested(),
        )
        try:
            self.cluster.command(EXPERIMENT, self.random.choice(wishes))
        except CommandRefused:
            assert self.status.is_final or self.status.is_stopping

    @property
    def status(self) -> Status:
        status: Status = self.cluster.engine.read_state(EXPERIMENT).status
        return status


@pytest.mark.parametrize("seed", range(6))
def test_collections_keep_the_checkpoints_of_active_trials(seed: int, tmp_path: Path) -> None:
    search = Search(tmp_path, seed)
    for _ in range(40):
        search.cluster.round()
        if search.random.random() < 0.3:
            search.meddle()
        for _ in range(search.random.randrange(8)):
            search.collector.collect(budget_seconds=0)
            search.check()
    run_to_end(search)
    expect_the_rule(search)
    expect_replays(search)
    search.cluster.command(EXPERIMENT, DeleteRequested())
    collect_all(search)
    assert list(search.root.rglob("*")) == []
    search.cluster.close()


def run_to_end(search: Search) -> None:
    """Run until the end of the search and of the last collection."""
    if not search.status.is_final:
        search.cluster.command(EXPERIMENT, ActivateRequested())
    search.cluster.run_to_rest()
    collect_all(search)


def collect_all(search: Search) -> None:
    while search.collector.collect(budget_seconds=60):
        search.cluster.round()
    rows = search.cluster.engine.table.query(COLLECTIONS, " ", "~").rows
    assert rows == ()


def expect_the_rule(search: Search) -> None:
    """Assert that the disk has exactly the checkpoints of the retention rule."""
    search.check()
    engine = search.cluster.engine
    settings = engine.read_part(EXPERIMENT, "settings")
    retention = settings.retention if settings else Retention()
    left = [
        checkpoint
        for trial in search.trials()
        for checkpoint in completed_checkpoints(engine.table, trial)
    ]
    assert unwanted_checkpoints(left, retention, True, lambda checkpoint: False) == []
    on_disk = {path.parent.name for path in search.root.rglob("w")}
    assert on_disk == {checkpoint.uuid for checkpoint in left}


def expect_replays(search: Search) -> None:
    """Assert that the journal of every trial replays without a difference."""
    for trial_id in search.trials():
        replay = replay_actor(search.cluster.engine.table, addresses.trial(trial_id))
        assert replay.entries > 0
        assert replay.difference is None, replay
