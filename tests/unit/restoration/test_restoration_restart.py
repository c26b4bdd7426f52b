"""The restart of a cluster from an older copy of the state."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.actors.messages.experiment import ContinueRequested
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.agents.reports import Report
from control_plane.agents.service import AgentService
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.engine.engine import Engine
from control_plane.restoration.incarnation import read_incarnation
from control_plane.restoration.restart import (
    SKIPPED_IDS,
    begin_incarnation,
    keep_used_ids,
    read_next_ids,
)
from control_plane.state.sqlite import SqliteTable, copy_table_file
from control_plane.state.table import Expect, Key, Put, StateTable
from simulator.faults.table_faults import Crash, CrashingTable
from tests.engine_timing import UNHURRIED
from tests.unit.actors.sample_messages import experiment_submitted, random_plan, trial_settings

NOW_MS = 1_000_000
RUNNING: dict[str, Any] = {"kind": "container", "state": "RUNNING"}
SLOTS = ((0, "cpu", "u0", "n"), (1, "cpu", "u1", "n"))


@dataclass
class Site:
    """An engine and the service of agents on a table."""

    engine: Engine
    service: AgentService

    def submit(self, number: int, trials: int = 3) -> None:
        message = replace(
            experiment_submitted(random_plan(trials), experiment_id=number),
            settings=trial_settings(slots=1),
        )
        counter = Key("counters", "experiment")
        put = Put(counter, number + 1, b"%d" % (number + 1), Expect.ANYTHING)
        self.engine.execute_command(
            f"experiment#{number}", message, extra_writes=lambda reply: (put,)
        )

    def trial_ids(self, number: int) -> list[int]:
        """Return the experiment's trials, as known to the pool's queue and to agents."""
        ids = []
        for trial_id in range(1, 400):
            state = self.engine.read_state(f"trial#{trial_id}")
            if state is not None and state.experiment_id == number:
                ids.append(trial_id)
        return ids

    def sync(self, epoch: int, *known: str, reports: tuple[Report, ...] = ()) -> list[str]:
        """Return the allocations that the agent is to run."""
        answer = self.service.sync("a", SyncRequest(epoch, known, reports))
        return [entry["allocation"] for entry in answer.desired if entry["state"] == "run"]


def build_site(table: StateTable) -> Site:
    engine = Engine(table, lambda: NOW_MS, UNHURRIED)
    service = AgentService(
        engine,
        lambda experiment, definition, trial: {"spec": 1},
        lambda trial_id, chunk: Put(Key(f"trial#{trial_id}", "L"), 1, b"", Expect.ANYTHING),
        lambda put: put,
    )
    return Site(engine, service)


@contextmanager
def open_site(path: Path) -> Iterator[Site]:
    with closing(SqliteTable(path, synchronous="NORMAL")) as table:
        yield build_site(table)


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """Return the file of a state in which two trials of experiment 1 run.

    `copy.db` in the same folder is older. Since the copy, a run has ended and another has begun,
    and experiment 2 was submitted.
    """
    path = tmp_path / "state.db"
    with open_site(path) as site:
        site.engine.execute_command("pool#default", PoolConfigured("default"))
        epoch = site.service.enrol("a", "default", SLOTS, "1")
        site.submit(1)
        assert site.sync(epoch) == ["1.1", "2.1"]
        site.sync(epoch, "1.1", "2.1", reports=(Report(1, 1, "agent", 10, RUNNING),))
        copy_table_file(path, tmp_path / "copy.db")
        lost = Report(1, 1, "agent", 20, {"kind": "exited", "reason": "errored"})
        assert site.sync(epoch, "1.1", "2.1", reports=(lost,)) == ["2.1", "1.2"]
        site.submit(2)
    return path


def test_restart_ends_every_run_and_repeats_no_ids(newest: Path) -> None:
    copy = newest.with_name("copy.db")
    with closing(SqliteTable(newest)) as table:
        given = read_next_ids(table)
    with open_site(copy) as site:
        report = begin_incarnation(site.engine, given)
        assert (report.agents, report.experiments) == (("a",), 1)
        assert report.next_ids["experiment"] == given["experiment"] == 3
        trial = site.engine.read_state("trial#1")
        # The loss does not count as a failure of the trial, which waits for slots again.
        assert (trial.status, trial.losses, trial.restarts, trial.epoch) == ("ACTIVE", 1, 0, 2)
        # The old agent still has run 1.2; the restarted cluster uses the name for a new run.
        with pytest.raises(CommandRefused, match="enrol again"):
            site.sync(1, "2.1", "1.2")
        epoch = site.service.enrol("a", "default", SLOTS, "1")
        assert sorted(site.sync(epoch)) == ["1.2", "2.2"]
        site.submit(3)
        assert min(site.trial_ids(3)) >= given["trial"]


def test_restart_skips_ids_if_newest_state_is_lost(newest: Path) -> None:
    with open_site(newest.with_name("copy.db")) as site:
        before = read_next_ids(site.engine.table)
        begin_incarnation(site.engine)
        after = read_next_ids(site.engine.table)
    assert after == {
        "experiment": before["experiment"] + SKIPPED_IDS["experiment"],
        "trial": before["trial"] + SKIPPED_IDS["trial"],
        "token": 1 + SKIPPED_IDS["token"],
        "report": 1 + SKIPPED_IDS["report"],
    }


def test_used_ids_survive_a_copy_of_older_rows(newest: Path) -> None:
    """Counters of the lost state are exact; a counter that was lost, too, gets a gap."""
    with closing(SqliteTable(newest)) as table:
        before = read_next_ids(table)
        for _ in range(2):
            keep_used_ids(table, {"experiment": before["experiment"] - 1, "token": 5})
            after = read_next_ids(table)
            assert after == {**before, "token": 5 + SKIPPED_IDS["token"]}


def test_reserved_ids_are_discarded(newest: Path) -> None:
    with open_site(newest.with_name("copy.db")) as site:
        state = site.engine.read_state("experiment#1")
        assert state.ids.first < state.ids.end
        begin_incarnation(site.engine, {"trial": state.ids.end})
        state = site.engine.read_state("experiment#1")
        assert state.ids.first == state.ids.end


def test_continued_experiment_draws_new_ids(tmp_path: Path) -> None:
    with open_site(tmp_path / "state.db") as site:
        site.engine.execute_command("pool#default", PoolConfigured("default"))
        site.submit(1, trials=1)
        epoch = site.service.enrol("a", "default", SLOTS, "1")
        site.sync(epoch)
        exits = [
            Report(1, n, "agent", 10, {"kind": "exited", "reason": "errored"}) for n in range(1, 7)
        ]
        for report in exits:
            site.sync(epoch, f"1.{report.epoch}", reports=(report,))
        assert site.engine.read_state("experiment#1").status is Status.ERROR
        assert begin_incarnation(site.engine, {}).experiments == 0
        state = site.engine.read_state("experiment#1")
        assert state.ids.first == state.ids.end
        site.engine.execute_command("experiment#1", ContinueRequested())
        assert site.engine.read_state("trial#1").epoch > 0


def test_incarnations_have_different_names(newest: Path) -> None:
    with open_site(newest) as site:
        names = [read_incarnation(site.engine.table, "cluster-1")]
        for _ in range(2):
            names.append(begin_incarnation(site.engine, {}).incarnation)
            assert read_incarnation(site.engine.table, "cluster-1") == names[-1]
    assert names[0] == "cluster-1"
    assert len(set(names)) == 3


def test_interrupted_restart_is_repeated(newest: Path) -> None:
    copy = newest.with_name("copy.db")
    for commits in range(1, 30):
        again = copy.with_name(f"{commits}.db")
        again.write_bytes(copy.read_bytes())
        with closing(SqliteTable(again, synchronous="NORMAL")) as table:
            try:
                begin_incarnation(build_site(CrashingTable(table, commits)).engine, {})
            except Crash:
                is_cut = True
            else:
                is_cut = False
            assert (read_incarnation(table, "") == "") is is_cut
            begin_incarnation(build_site(table).engine, {})
            trial = build_site(table).engine.read_state("trial#1")
            assert (trial.status, trial.losses, trial.epoch) == ("ACTIVE", 1, 2)
        if not is_cut:
            return
    raise AssertionError("a restart makes too many commits for this test")
