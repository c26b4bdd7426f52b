"""Kills trials while they store checkpoints, the server while it records them, and the collector
while it deletes them, at drawn moments: no checkpoint that the cluster knows is lost or damaged,
and nothing is left behind.

Moments are drawn from what a machine does, not from what it takes a quiet one: each phase is drawn
as often as the others, and then a moment within the time that the phase takes here.
"""

from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.checkpoint_cluster import (
    CheckpointCluster,
    count_commits,
    report_lines,
)
from tests.conformance.kill_phases import (
    COMMIT,
    GC_FILES,
    GC_ROWS,
    LARGE_UPLOAD,
    RECORD,
    RESTORE,
    SAVE,
    UPLOAD,
    KillCounts,
    Moment,
    MomentDrawer,
)
from tests.conformance.kill_victims import PARTS_MAX, End, collect, record, run_victim, train

KILLS_OF_TRIAL = 20
# A third of the trials are killed before the first commit, and a third after two.
COMMITS_MAX = 2
# Every second server is killed, else there were more of those than of any other process.
SERVERS_KILLED = 0.5
# So many for each of the two collections of an experiment are about as many as of other phases.
KILLS_OF_COLLECTION = 4
# Where collectors are to be killed, a trial has as many checkpoints of fewer runs.
KILLS_OF_COLLECTED_TRIAL, COMMITS_OF_COLLECTED_TRIAL = 3, 8
# Collectors that were killed so often without an end make no progress.
COLLECTORS_MAX = 400
# Collectors are killed later, the more of them were: some in every part of their work, and at
# last one comes to its end.
KILLS_BEFORE_MORE_WORK = 8


@dataclass
class CheckpointKills(CheckpointCluster):
    """A cluster whose processes are killed at moments that are drawn."""

    random: random.Random = field(default_factory=lambda: random.Random(1))
    counts: KillCounts = field(default_factory=KillCounts)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawer = MomentDrawer(self.random)
        self._journals = itertools.count()
        self._commits_max = COMMITS_MAX
        self._collector_kills_max = KILLS_OF_COLLECTION

    def run(self, kills: int) -> KillCounts:
        """Run experiments, one after the other, until there were so many kills. Raises
        AssertionError for what was lost, damaged or left behind.
        """
        while self.counts.total < kills:
            self._run_experiment(min(KILLS_OF_TRIAL, kills - self.counts.total))
        return self.counts

    def run_collections(self, kills: int) -> KillCounts:
        """Run experiments until so many of the kills hit a collector. Errors as for `run`."""
        self._commits_max, self._collector_kills_max = COMMITS_OF_COLLECTED_TRIAL, COLLECTORS_MAX
        while self.counts.of_collectors < kills:
            self._run_experiment(KILLS_OF_COLLECTED_TRIAL)
        return self.counts

    def _run_experiment(self, kills: int) -> None:
        experiment_id = self.create()
        for _ in range(kills):
            self._train_until_killed()
        self.counts.checkpoints += self.check_to_the_end(experiment_id)

    def collect_all(self) -> None:
        """Let collectors, some of which are killed, do all that is to be collected."""
        for number in range(COLLECTORS_MAX):
            entries_max = 1 + number // KILLS_BEFORE_MORE_WORK
            phases = {GC_ROWS: entries_max, GC_FILES: entries_max}
            is_spared = number >= self._collector_kills_max
            moment = None if is_spared else self._drawer.draw(phases)
            end = self._run(moment, collect, self.folder, self.open_table, self.environment)
            assert not end.error, f"a collector failed: {end.error}"
            if not end.is_killed:
                return
            self.counts.count(end.journal, GC_ROWS)
        raise AssertionError(f"{COLLECTORS_MAX} collectors came to no end")

    def _train_until_killed(self) -> None:
        """Let an allocation of the trial store checkpoints until it is killed."""
        entry = self.next_allocation()
        place = self.make_place(entry)
        # A large file is rare enough, and a run opens its store once.
        more = self._commits_max
        phases = {RESTORE: 0, SAVE: more, UPLOAD: more * PARTS_MAX, LARGE_UPLOAD: 0, COMMIT: more}
        end = self._run(self._drawer.draw(phases), train, place, self.environment)
        assert end.is_killed, f"{entry['allocation']} ended by itself: {end.error}"
        self.counts.count(end.journal, RESTORE)
        lines = report_lines(place)
        begun = sum(line["kind"] == "checkpoint_intent" for line in lines)
        self.counts.incomplete += begun - count_commits(lines)
        shutil.rmtree(place)
        self._record(entry["allocation"], lines)

    def _record(self, allocation: str, lines: list[dict[str, Any]]) -> None:
        """Report the lines of a killed trial, often to a server that is killed before."""
        request = self.exit_request(allocation, lines)
        if self.random.random() < SERVERS_KILLED:
            moment = self._drawer.draw({RECORD: 0})
            end = self._run(moment, record, self.folder, self.open_table, self.agent.token, request)
            assert not end.error, f"a server failed: {end.error}"
            if end.is_killed:
                self.counts.count(end.journal, RECORD)
        self.report_exit(allocation, request)

    def _run(self, moment: Moment | None, *work: Any) -> End:
        journal = self.folder / f"phases-{next(self._journals)}"
        end = run_victim(journal, moment, *work)
        self._drawer.learn(end.journal)
        journal.unlink()
        return end
