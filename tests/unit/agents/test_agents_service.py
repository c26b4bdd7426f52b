"""The agent's two calls against the real engine."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest

from control_plane.actors.agent.actor import AGENTS, SESSIONS, AgentState, leases_partition
from control_plane.actors.messages.agent import AgentDeclaredLost
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.leases import (
    FORGOTTEN_AFTER_MS,
    LEASE_MS,
    PASS_INTERVAL_MS,
    forget_lost_agents,
    mark_lost_agents,
)
from control_plane.agents.metric_rows import METRICS, METRICS_END, store_full_segment, to_segment
from control_plane.agents.reports import Report
from control_plane.agents.service import AgentService
from control_plane.agents.sessions import MERGE_FROM_ROWS, LogChunk
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.engine.engine import Engine
from control_plane.engine.engine_timing import EngineTiming
from control_plane.engine.experiment_reader import ExperimentReader
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row, instance_key
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, Row, Write
from simulator.faults.table_faults import Crash, CrashingTable, TableDecorator
from tests.engine_timing import UNHURRIED
from tests.unit.actors.sample_messages import (
    LENGTH,
    experiment_submitted,
    random_plan,
    trial_settings,
)

RUNNING: dict[str, Any] = {"kind": "container", "state": "RUNNING"}


class Table(TableDecorator):
    """A SQLite table with hooks that run once.

    `before_get` runs before the read of the key, `before_commit` before a commit.
    """

    def __init__(self, path: Path) -> None:
        file = SqliteTable(path, synchronous="NORMAL")
        super().__init__(file)
        self.close = file.close
        self.before_get: tuple[Key, Callable[[], object]] | None = None
        self.before_commit: Callable[[], object] | None = None
        self.reads: list[tuple[Key, ...]] = []

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        self.reads.append(tuple(keys))
        return super().get_many(keys)

    def get(self, key: Key) -> Row | None:
        if self.before_get and self.before_get[0] == key:
            _, act = self.before_get
            self.before_get = None
            act()
        return super().get(key)

    def commit(self, writes: Sequence[Write]) -> None:
        if self.before_commit:
            act, self.before_commit = self.before_commit, None
            act()
        super().commit(writes)


class Objects(DirectoryObjectStore):
    """An object store that can be made unreachable."""

    is_reached = True

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        if not self.is_reached:
            raise OSError("the store cannot be reached")
        return super().put(key, content, if_absent=if_absent)


@dataclass
class Site:
    """A pool, an experiment, and a service for agent a."""

    table: Table
    engine: Engine
    service: AgentService
    objects: Objects
    now_ms: int = 1_000_000
    engine_seconds: Iterator[float] = field(default_factory=lambda: repeat(0.0))

    def submit(self, trials: int, slots: int = 1) -> None:
        message = replace(
            experiment_submitted(random_plan(trials)), settings=trial_settings(slots=slots)
        )
        self.engine.execute_command("experiment#1", message)

    def enrol(self, slots: int = 1) -> int:
        ids = tuple((n, "cpu", f"u{n}", "n") for n in range(slots))
        return self.service.enrol("a", "default", ids, "1")

    def trial(self, trial_id: int = 1) -> TrialState:
        found = ExperimentReader(self.engine).read_trial(trial_id)
        assert found is not None
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    table = Table(tmp_path / "state.db")
    engine = Engine(table, lambda: made.now_ms, EngineTiming(lambda: next(made.engine_seconds)))
    objects = Objects(tmp_path / "objects", HmacUrlSigner(b"s" * 32))
    service = AgentService(
        engine,
        lambda experiment, definition, trial: {"spec": 1},
        _log_write,
        partial(store_full_segment, objects),
    )
    made = Site(table, engine, service, objects)
    engine.execute_command("pool#default", PoolConfigured("default"))
    yield made
    table.close()


def _log_write(trial_id: int, chunk: LogChunk) -> Put:
    return Put(Key(f"trial#{trial_id}", f"L#{chunk.offset}"), 1, chunk.text, Expect.ANYTHING)


def report(fields: dict[str, Any], offset: int, *, trial: int = 1, writer: str = "") -> Report:
    by_agent = fields["kind"] in ("container", "exited")
    return Report(trial, 1, writer or ("agent" if by_agent else "0"), offset, fields)


def test_sync_accepts_reports_and_returns_desired_state(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    answer = site.service.sync("a", SyncRequest(epoch))
    assert [(entry["allocation"], entry["state"]) for entry in answer.desired] == [("1.1", "run")]
    assert answer.acked == {}
    lines = (
        report(RUNNING, 10),
        report({"kind": "completed", "length": LENGTH, "metric": 0.5}, 20),
        report({"kind": "exited", "reason": "completed"}, 30),
    )
    answer = site.service.sync("a", SyncRequest(epoch, ("1.1",), lines))
    assert answer.acked == {"1.1": {"agent": 30, "0": 20}}
    assert [entry["state"] for entry in answer.desired] == ["forget"]
    assert site.engine.read_state("experiment#1").status == "COMPLETED"


def test_repeated_sync_has_one_effect(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    failed = report({"kind": "exited", "reason": "errored"}, 10)
    request = SyncRequest(epoch, ("1.1",), (failed,))
    first = site.service.sync("a", request)
    assert site.trial().restarts == 1
    again = site.service.sync("a", request)
    assert site.trial().restarts == 1
    assert (again.acked, again.logs_acked) == (first.acked, first.logs_acked)


def test_sync_reads_all_states_at_once(site: Site) -> None:
    site.submit(trials=2)
    epoch = site.enrol(slots=2)
    started = site.service.sync("a", SyncRequest(epoch))
    assert [entry["spec"] for entry in started.desired]
    assert [*started.experiments] == [1]
    known = tuple(entry["allocation"] for entry in started.desired)
    site.table.reads.clear()
    answer = site.service.sync("a", SyncRequest(epoch, known))
    assert {
        number: experiment.experiment_id for number, experiment in answer.experiments.items()
    } == {1: 1}
    # The agent and the session, the lease, then the trials and the experiment.
    heads = [Key(name, "M") for name in ("trial#1", "trial#2", "experiment#1")]
    assert [len(keys) for keys in site.table.reads] == [2, 1, 3]
    assert site.table.reads[-1] == tuple(heads)


def test_unknown_agent_must_enrol(site: Site) -> None:
    with pytest.raises(CommandRefused, match="there is no agent a; enrol first") as refused:
        site.service.sync("a", SyncRequest(1))
    assert refused.value.code == "not_found"


@pytest.mark.parametrize("epoch", [1, 3])
def test_sync_with_a_wrong_epoch_is_refused(site: Site, epoch: int) -> None:
    site.enrol()
    site.submit(1)
    site.enrol()
    failed = report({"kind": "exited", "reason": "errored"}, 10)
    with pytest.raises(CommandRefused, match=f"session {epoch} is over") as refused:
        site.service.sync("a", SyncRequest(epoch, ("1.1",), (failed,)))
    assert refused.value.code == "conflict"
    assert site.trial().restarts == 0


def test_session_ended_during_sync_is_refused(site: Site) -> None:
    # The lease was renewed, then the agent enrolled again, then the session's row was read.
    epoch = site.enrol()
    site.submit(1)
    site.table.before_get = (Key("sessions", "a"), site.enrol)
    failed = report({"kind": "exited", "reason": "errored"}, 10)
    with pytest.raises(CommandRefused, match="session 1 is over"):
        site.service.sync("a", SyncRequest(epoch, ("1.1",), (failed,)))
    assert site.trial().restarts == 0


def test_lost_agent_is_refused_and_may_enrol_again(site: Site) -> None:
    epoch = site.enrol()
    row = site.table.get(Key("leases#default", "a"))
    assert row is not None
    body = row.body.replace(b'"lost": false', b'"lost": true')
    site.table.commit((Put(row.key, row.revision + 1, body, row.revision),))
    site.engine.post_message("agent#a", AgentDeclaredLost(epoch), sender="test")
    with pytest.raises(CommandRefused, match="has ended; enrol again"):
        site.service.sync("a", SyncRequest(epoch))
    site.now_ms += LEASE_MS
    site.service.sync("a", SyncRequest(site.enrol()))


def test_vanished_allocation_is_lost_and_restarted(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    site.service.sync("a", SyncRequest(epoch, ("1.1",), (report(RUNNING, 10),)))
    answer = site.service.sync("a", SyncRequest(epoch))
    assert (site.trial().losses, site.trial().restarts, site.trial().epoch) == (1, 0, 2)
    assert [entry["allocation"] for entry in answer.desired] == ["1.2"]


def test_forgotten_allocation_with_reported_exit_is_not_lost(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    # The host has no time left to advance the trial. The trial's mail waits for the tick.
    site.engine_seconds = count(0.0, 3600.0)
    failed = report({"kind": "exited", "reason": "errored"}, 10)
    site.service.sync("a", SyncRequest(epoch, ("1.1",), (failed,)))
    before = site.table.get(Key("sessions", "a"))
    for _ in range(3):
        site.service.sync("a", SyncRequest(epoch))
    assert (site.table.get(Key("sessions", "a")), site.trial().restarts) == (before, 0)
    site.engine_seconds = repeat(0.0)
    site.engine.advance_until_idle(("trial#1",))
    assert (site.trial().losses, site.trial().restarts) == (0, 1)


def test_allocation_that_never_reached_the_agent_is_not_lost(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    for _ in range(2):
        answer = site.service.sync("a", SyncRequest(epoch))
        assert [entry["allocation"] for entry in answer.desired] == ["1.1"]
    assert site.trial().losses == 0


def test_reports_about_other_agents_trials_are_discarded(site: Site) -> None:
    epoch = site.enrol()
    site.submit(2)
    # Trial 2 waits for a slot, so no agent has the allocation.
    failed = report({"kind": "exited", "reason": "completed"}, 10, trial=2)
    site.service.sync("a", SyncRequest(epoch, ("1.1", "2.1"), (failed,)))
    assert site.trial(2).status == "ACTIVE"


def test_checkpoints_announced_after_a_runs_end_are_recorded(site: Site) -> None:
    epoch = site.enrol()
    site.submit(2)
    begun = {"kind": "checkpoint_intent", "uuid": "0000000a-0000-4000-8000-000000000001"}
    stored = {"kind": "checkpoint", "uuid": begun["uuid"], "steps_completed": 3}
    # Trial 2 does not run on the agent. Trial 7 does not exist.
    lines = [report(begun, 10, trial=2), report(stored, 20, trial=2), report(begun, 10, trial=7)]
    site.service.sync("a", SyncRequest(epoch, ("1.1", "2.1", "7.1"), tuple(lines)))
    [row] = site.table.query("trial#2", "I#", "I$").rows
    assert json.loads(row.body) == {"uuid": begun["uuid"]}
    assert site.trial(2).checkpoint is None
    assert site.table.query("trial#7", " ", "~").rows == ()


def test_next_run_gets_metadata_of_previous_run(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    spec = site.service.sync("a", SyncRequest(epoch)).desired[0]["spec"]
    assert spec["metadata"] == {}
    line = report({"kind": "trial_metadata", "metadata": {"note": "x"}}, 10)
    site.service.sync("a", SyncRequest(epoch, ("1.1",), (line,)))
    # The agent has lost the allocation, so the trial gets a new allocation.
    spec = site.service.sync("a", SyncRequest(epoch)).desired[0]["spec"]
    assert spec["metadata"] == {"note": "x"}


def lose(site: Site, epoch: int) -> None:
    """Advance the clock until the silent agent is marked as lost."""
    site.now_ms += 10 * LEASE_MS
    # The first pass after a gap pauses loss detection.
    for _ in range(3):
        mark_lost_agents(site.table, "default", site.now_ms, site.engine.advance_until_idle)
        site.now_ms += PASS_INTERVAL_MS
    state = site.engine.read_state("agent#a")
    assert isinstance(state, AgentState)
    assert (state.epoch, state.lost) == (epoch, True)


def partitions_of_agent(site: Site) -> set[str]:
    partitions = (AGENTS, SESSIONS, leases_partition("default"))
    return {
        partition for partition in partitions if site.table.get(Key(partition, "a")) is not None
    }


def test_agent_lost_a_day_ago_is_forgotten(site: Site) -> None:
    heard_ms = site.now_ms
    lose(site, site.enrol())
    site.now_ms = heard_ms + FORGOTTEN_AFTER_MS
    assert forget_lost_agents(site.engine, "default") == ()
    assert len(partitions_of_agent(site)) == 3
    site.now_ms += 1
    assert forget_lost_agents(site.engine, "default") == ("a",)
    assert not partitions_of_agent(site)
    assert forget_lost_agents(site.engine, "default") == ()
    # Only the agent's head remains, which has the number of the last session.
    with pytest.raises(CommandRefused, match="session 1 is over") as refused:
        site.service.sync("a", SyncRequest(1))
    assert refused.value.code == "conflict"
    assert site.enrol() == 2


def test_interrupted_forgetting_is_repeated(site: Site) -> None:
    lose(site, site.enrol())
    site.now_ms += FORGOTTEN_AFTER_MS
    dying = CrashingTable(site.table, 2, "before")
    with pytest.raises(Crash):
        forget_lost_agents(Engine(dying, lambda: site.now_ms, UNHURRIED), "default")
    assert partitions_of_agent(site) == {leases_partition("default")}
    assert forget_lost_agents(site.engine, "default") == ("a",)
    assert not partitions_of_agent(site)


def test_agent_that_enrols_meanwhile_is_not_forgotten(site: Site) -> None:
    lose(site, site.enrol())
    site.now_ms += FORGOTTEN_AFTER_MS
    # The agent enrols after the leases were read and before the agent's actor is changed.
    site.table.before_commit = site.enrol
    assert forget_lost_agents(site.engine, "default") == ()
    assert len(partitions_of_agent(site)) == 3
    assert site.service.sync("a", SyncRequest(2)).revision


def test_logs_of_assigned_allocations_are_stored(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    logs = (LogChunk("1.1", 0, b"hello"), LogChunk("9.1", 0, b"other"))
    answer = site.service.sync("a", SyncRequest(epoch, ("1.1", "9.1"), logs=logs))
    assert answer.logs_acked == {"1.1": 5, "9.1": 5}
    kept = site.table.get(Key("trial#1", "L#0"))
    assert kept is not None
    assert kept.body == b"hello"
    assert site.table.get(Key("trial#9", "L#0")) is None


def test_full_rows_are_stored_before_the_commit(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    note = Random(1).randbytes(70_000).hex()
    fields = {"kind": "metrics", "group": "training", "steps_completed": 3}
    line = report(fields | {"metrics": {"note": note}}, 9)
    site.service.sync("a", SyncRequest(epoch, ("1.1",), (line,)))
    [row] = site.table.query("trial#1", METRICS, METRICS_END).rows
    [kept] = site.objects.list_objects(ObjectKey("metrics/1"))
    assert len(row.body) < 100 < 70_000 < kept.size
    [found] = to_segment(row).read_columns(site.objects).reports()
    assert (found.steps, found.metrics) == (3, {"note": note})


def test_reports_are_accepted_if_merging_fails(site: Site) -> None:
    site.objects.is_reached = False
    epoch = site.enrol()
    site.submit(1)
    fields = {"kind": "metrics", "group": "training", "steps_completed": 3}
    for n in range(1, MERGE_FROM_ROWS + 2):
        # Eight rows of 9,000 bytes are merged into a full row.
        note = Random(n).randbytes(9_000).hex()
        line = report(fields | {"metrics": {"note": note}}, n)
        answer = site.service.sync("a", SyncRequest(epoch, ("1.1",), (line,)))
        assert answer.acked == {"1.1": {"0": n}}
    assert len(site.table.query("trial#1", METRICS, METRICS_END).rows) == MERGE_FROM_ROWS + 1


def test_too_many_reports_are_accepted_in_halves(site: Site) -> None:
    # 150 lines need separate rows. A commit has at most 100 operations.
    epoch = site.enrol()
    site.submit(1)
    begun = [
        {"kind": "checkpoint_intent", "uuid": f"{n:08x}-0000-4000-8000-000000000000"}
        for n in range(1, 151)
    ]
    lines = tuple(report(line, n) for n, line in enumerate(begun, 1))
    answer = site.service.sync("a", SyncRequest(epoch, ("1.1",), lines))
    assert answer.acked == {"1.1": {"0": 150}}
    assert len(site.table.query("trial#1", "I#", "I$").rows) == 150


def test_too_many_log_chunks_are_accepted_in_halves(site: Site) -> None:
    epoch = site.enrol()
    site.submit(1)
    logs = tuple(LogChunk("1.1", n, b"x") for n in range(150))
    lines = (report({"kind": "environment"}, 1),)
    answer = site.service.sync("a", SyncRequest(epoch, ("1.1",), lines, logs))
    assert answer.acked == {"1.1": {"0": 1}}
    assert answer.logs_acked == {"1.1": 150}
    assert len(site.table.query("trial#1", "L#", "L$").rows) == 150


def test_megabyte_of_validations_is_accepted(site: Site) -> None:
    # 8,000 messages of about 60 bytes exceed a row of mail.
    epoch = site.enrol()
    site.submit(1)
    fields = {"kind": "metrics", "group": "validation", "metrics": {"loss": 0.5}}
    lines = tuple(report(fields | {"steps_completed": n}, n) for n in range(1, 8_001))
    answer = site.service.sync("a", SyncRequest(epoch, ("1.1",), lines))
    assert answer.acked == {"1.1": {"0": 8_000}}
    assert site.trial().steps == 8_000


def test_checkpoints_with_large_metadata_are_accepted(site: Site) -> None:
    # 60 messages of 15,000 bytes exceed a row of mail.
    epoch = site.enrol()
    site.submit(1)
    lines = []
    for n in range(1, 61):
        uuid = f"{n:08x}-0000-4000-8000-000000000000"
        place = {"uuid": uuid, "path": f"1/1/1/{uuid}", "manifest_sha256": "0" * 64}
        sizes = {"size_bytes": 1, "files": 1, "steps_completed": n}
        metadata = {"metadata": {"note": "x" * 15_000}}
        lines.append(report({"kind": "checkpoint"} | place | sizes | metadata, n))
    site.service.sync("a", SyncRequest(epoch, ("1.1",), tuple(lines)))
    checkpoint = site.trial().checkpoint
    assert checkpoint is not None
    assert checkpoint.steps_completed == 60


def test_many_lost_allocations_are_reported_over_several_calls(site: Site) -> None:
    # The agent lost all 110 running allocations and sends no report.
    epoch = site.enrol(slots=110)
    site.submit(110)
    site.engine.advance_until_idle(["experiment#1"])
    known = tuple(f"{n}.1" for n in range(1, 111))
    lines = tuple(report(RUNNING, 10, trial=n) for n in range(1, 111))
    site.service.sync("a", SyncRequest(epoch, known, lines))
    for _ in range(5):
        site.service.sync("a", SyncRequest(epoch))
    assert [site.trial(n).losses for n in range(1, 111)] == [1] * 110


def test_table_errors_are_raised(site: Site) -> None:
    epoch = site.enrol()
    site.table.close()
    with pytest.raises(sqlite3.ProgrammingError):
        site.service.sync("a", SyncRequest(epoch))


def test_terminating_instance_cannot_enrol(site: Site) -> None:
    write_instance_row(site, InstanceState.TERMINATING, 1)
    with pytest.raises(CommandRefused, match="no longer needs instance a"):
        site.enrol()
    assert site.engine.read_state("agent#a") is None


def test_instance_terminated_during_enrolment_gets_no_session(site: Site) -> None:
    """The provisioner looks for a session before a termination, so that either side notices."""
    write_instance_row(site, InstanceState.STARTING, 1)
    site.table.before_commit = lambda: write_instance_row(site, InstanceState.TERMINATING, 2)
    with pytest.raises(CommandRefused, match="no longer needs"):
        site.enrol()
    assert site.engine.read_state("agent#a") is None


def write_instance_row(site: Site, state: InstanceState, revision: int) -> None:
    """Write the row of instance `a`, as the provisioner does."""
    offering = Offering("local", "small", "a", Market.ON_DEMAND, 1)
    row = InstanceRow("a", "default", offering, state, launched_ms=1, intent="i")
    site.table.commit((Put(instance_key(row), revision, encode_row(row), Expect.ANYTHING),))
