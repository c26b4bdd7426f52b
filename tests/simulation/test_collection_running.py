"""Collections in the middle of a search: whatever is asked for and whenever the collector gets its
turn, every trial that goes on finds the checkpoint it goes on from.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    DeleteRequested,
    PauseRequested,
    SettingsChanged,
)
from control_plane.actors.records import Retention, Status
from control_plane.actors.step import Refused
from control_plane.actors.trial_checkpoints import COLLECTIONS, CheckpointState
from control_plane.api.signing import Signer
from control_plane.collection.collector import Collector
from control_plane.collection.ranking import unwanted
from control_plane.collection.stores import Stores
from control_plane.collection.survey import candidates_of, records_of
from control_plane.dispatch.replay import replay
from control_plane.objects.directory import DirectoryStore
from tests.simulation.cluster import Cluster, submitted
from tests.simulation.scripted_agent import Line, Run, metric_of
from tests.unit.collection.yard import CONFIG

EXPERIMENT = "experiment#1"
TRIALS = 5


class Search:
    """A search whose trials make a checkpoint at each step and die now and then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.root = folder / "checkpoints"
        self.root.mkdir()
        self.cluster = Cluster(folder / "table.db")
        self.cluster.add_pool()
        self.cluster.add_agent("a", 3, self.script)
        asked = submitted(1, TRIALS, max_restarts=100)
        self.cluster.command(EXPERIMENT, replace(asked, config=CONFIG))
        engine = self.cluster.engine
        objects = DirectoryStore(folder / "objects", Signer(b"s" * 32))
        self.collector = Collector(Stores(engine, objects, self.root))

    def script(self, run: Run) -> list[Line]:
        if run.killed:
            return [{"kind": "exited", "reason": "killed"}]
        if run.turns and self.random.random() < 0.15:
            return [{"kind": "exited", "reason": "errored", "code": 1}]
        steps = self.steps(run) + run.turns + 1
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
        """Where the allocation began: at the checkpoint that its trial went on from."""
        if not hasattr(run, "began"):
            state = self.cluster.shadow.state(f"trial#{run.spec['trial_id']}")
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
            # It dies before the report: the files are nobody's.
            return [intent, {"kind": "exited", "reason": "errored", "code": 1}]
        return [intent, {"kind": "checkpoint", **line, **more}]

    def trials(self) -> Iterator[int]:
        yield from (state.trial_id for state in self.cluster.shadow.states("trial"))

    def check(self) -> None:
        """No complete checkpoint lacks its files, and no trial its latest checkpoint."""
        table = self.cluster.engine.table
        for trial_id in self.trials():
            records = {record.checkpoint.uuid: record for record in records_of(table, trial_id)}
            for record in records.values():
                there = (self.root / record.checkpoint.path / "w").exists()
                assert there or record.state is not CheckpointState.COMPLETED, record
                assert not there or record.state is not CheckpointState.DELETED, record
            state = self.cluster.engine.state(addresses.trial(trial_id))
            if state.checkpoint is not None:
                latest = records[state.checkpoint.uuid]
                assert latest.state is CheckpointState.COMPLETED, (trial_id, latest)
            elif not state.status.final:
                assert not records, (trial_id, records)

    def meddle(self) -> None:
        """Asks for something, whatever the experiment says to it."""
        numbers = (self.random.choice((0, 0, 1, 2)) for _ in range(3))
        wishes = (
            SettingsChanged(retention=Retention(*numbers)),
            PauseRequested(),
            ActivateRequested(),
        )
        try:
            self.cluster.command(EXPERIMENT, self.random.choice(wishes))
        except Refused:
            assert self.status.final or self.status.stopping

    @property
    def status(self) -> Status:
        status: Status = self.cluster.engine.state(EXPERIMENT).status
        return status


@pytest.mark.parametrize("seed", range(12))
def test_trials_that_go_on_keep_what_they_go_on_from(seed: int, tmp_path: Path) -> None:
    search = Search(tmp_path, seed)
    for _ in range(40):
        search.cluster.round()
        if search.random.random() < 0.3:
            search.meddle()
        for _ in range(search.random.randrange(8)):
            search.collector.collect(budget_seconds=0)
            search.check()
    settled(search)
    expect_the_rule(search)
    expect_replays(search)
    search.cluster.command(EXPERIMENT, DeleteRequested())
    collected(search)
    assert list(search.root.rglob("*")) == []
    search.cluster.close()


def settled(search: Search) -> None:
    """Lets the search end and its last collection after it."""
    if not search.status.final:
        search.cluster.command(EXPERIMENT, ActivateRequested())
    search.cluster.settle()
    collected(search)


def collected(search: Search) -> None:
    while search.collector.collect(budget_seconds=60):
        search.cluster.round()
    rows = search.cluster.engine.table.query(COLLECTIONS, " ", "~").rows
    assert rows == ()


def expect_the_rule(search: Search) -> None:
    """What is left is what the rule keeps, and nothing else is on the disk."""
    search.check()
    engine = search.cluster.engine
    settings = engine.part(EXPERIMENT, "settings")
    retention = settings.retention if settings else Retention()
    left = [one for trial in search.trials() for one in candidates_of(engine.table, trial)]
    assert unwanted(left, retention, True, lambda one: False) == []
    there = {path.parent.name for path in search.root.rglob("w")}
    assert there == {one.uuid for one in left}


def expect_replays(search: Search) -> None:
    """What the trials decided about their checkpoints follows from what they recorded."""
    for trial_id in search.trials():
        found = replay(search.cluster.engine.table, addresses.trial(trial_id))
        assert found.entries > 0
        assert found.difference is None, found
