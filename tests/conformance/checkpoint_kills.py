"""Kills of trials, servers and collectors at drawn moments of work on checkpoints.

No checkpoint that the cluster lists is lost or damaged, and no file remains. Moments are drawn by
phases, not by time: each phase is drawn equally often, and then a moment within the usual duration
of the phase.
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
# Only every second server is killed; otherwise servers would be killed more often than other
# processes.
SERVERS_KILLED = 0.5
# For two collections of an experiment, this gives about as many kills as in other phases.
KILLS_OF_COLLECTION = 4
# For kills of collectors, a trial has the same number of checkpoints from fewer runs.
KILLS_OF_COLLECTED_TRIAL, COMMITS_OF_COLLECTED_TRIAL = 3, 8
# Collectors that were killed so often without an end make no progress.
COLLECTORS_MAX = 400
# Collectors are killed later after many kills: some in every part of their work, and the last
# completes.
KILLS_BEFORE_MORE_WORK = 8


@dataclass
class CheckpointKills(CheckpointCluster):
    """A cluster with processes that are killed at drawn moments."""

    random: random.Random = field(default_factory=lambda: random.Random(1))
    counts: KillCounts = field(default_factory=KillCounts)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawer = MomentDrawer(self.random)
        self._journals = itertools.count()
        self._commits_max = COMMITS_MAX
        self._collector_kills_max = KILLS_OF_COLLECTION

    def run(self, kills: int) -> KillCounts:
        """Run experiments until `kills` processes were killed; return the counts.

        Raises AssertionError for lost or damaged checkpoints and for remaining files.
        """
        while self.counts.total < kills:
            self._run_experiment(min(KILLS_OF_TRIAL, kills - self.counts.total))
        return self.counts

    def run_collections(self, kills: int) -> KillCounts:
        """Run experiments until `kills` collectors were killed.

        Raises AssertionError as `run` does.
        """
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
        """Run collectors, some of which are killed, until all garbage is collected."""
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
        """Run an allocation of the trial, which stores checkpoints until the kill."""
        entry = self.next_allocation()
        place = self.make_place(entry)
        # A large file is rare, and a run opens its store once.
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
        """Report the lines of a killed trial, often to a server that is killed first."""
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
