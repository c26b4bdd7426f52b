"""Journals of real scenarios, replayed with the original code and with changed code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass, replace
from dataclasses import field as field_of
from pathlib import Path
from typing import Any

import pytest

from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.messages.trial import AllocationExited, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import TrialState
from control_plane.engine import actor_types, journal, mailbox
from control_plane.engine.actor_types import actor_type_at, encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD, decode_head, encode_head
from control_plane.engine.replay import replay_actor
from control_plane.engine.replay_differences import Difference
from control_plane.evolve import evolve
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Delete, Expect, Key, Put
from simulator.checks.state_checker import StateChecker
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.changed_actors import change_actor_type
from tests.engine_timing import UNHURRIED
from tests.simulation.scenarios import SCENARIOS, Scenario, error_out, restart_twice

TRIAL = "trial#1"
# tests/journals replays recordings of the other scenarios.
REPLAYED_HERE = [scenario for scenario in SCENARIOS if scenario.name in ("pause", "lost-agent")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SteppedCluster]:
    created_cluster = SteppedCluster(tmp_path / "table.db", checker=StateChecker(unchecked=True))
    yield created_cluster
    created_cluster.close()


def find_difference(cluster: SteppedCluster, address: str = TRIAL) -> Difference | None:
    return replay_actor(cluster.engine.table, address).difference


def rewrite(cluster: SteppedCluster, place: int, change: Callable[[bytes], bytes]) -> int:
    """Change the trial's journal entry number `place`. Return the revision of the entry."""
    table = cluster.engine.table
    row = list(journal.read_entry_rows(table, TRIAL))[place]
    put = Put(row.key, row.revision, change(row.body), Expect.ANYTHING)
    # Bypasses the checking table, which would report the change.
    cluster.host.rows.commit([put])
    return journal.entry_revision(row)


@pytest.mark.parametrize("scenario", REPLAYED_HERE, ids=lambda scenario: str(scenario.name))
def test_replay_of_every_actor_equals_the_stored_actor(
    cluster: SteppedCluster, scenario: Scenario
) -> None:
    scenario.play(cluster)
    addresses = {key.partition for key in cluster.checker.rows if key.sort == HEAD}
    assert len(addresses) >= 4
    for address in addresses:
        result = replay_actor(cluster.engine.table, address)
        assert result.difference is None
        assert result.complete
        assert result.entries > 0


def test_changed_rule_is_reported_by_message_and_field(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial with one restart failed twice and ended. With one more restart it would continue."""
    error_out(cluster)
    assert find_difference(cluster) is None
    healthy = actor_types.ACTOR_TYPES["trial"].step

    def lenient(state: TrialState, message: Any, context: StepContext) -> Any:
        if not isinstance(message, AllocationExited):
            return healthy(state, message, context)
        settings = state.settings
        more = replace(settings, max_restarts=settings.max_restarts + 1)
        return evolve(healthy(evolve(state, settings=more), message, context), settings=settings)

    change_actor_type(monkeypatch, "trial", step=lenient)
    difference = find_difference(cluster)
    assert difference is not None
    assert "AllocationExited" in difference.message
    assert (difference.field, difference.recorded, difference.replayed) == (
        "status",
        "ERROR",
        "ACTIVE",
    )
    assert replay_actor(cluster.engine.table, "experiment#1").difference is None


def test_changed_message_is_shown_with_the_recorded_message(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    restart_twice(cluster)
    healthy = actor_types.ACTOR_TYPES["trial"].step

    def step(state: Any, message: Any, context: StepContext) -> Any:
        after = healthy(state, message, context)
        context.sends = [replace(s, message=_longer(s.message)) for s in context.sends]
        return after

    change_actor_type(monkeypatch, "trial", step=step)
    difference = find_difference(cluster)
    assert difference is not None
    assert difference.message == "TrialCreated"
    # The trial requested one slot. The recorded message is found in the pool's journal.
    assert difference.field == "messages to pool#default.0.1.slots"
    assert (difference.recorded, difference.replayed) == (1, 2)


def _longer(message: Any) -> Any:
    return replace(message, slots=message.slots + 1) if hasattr(message, "slots") else message


def test_message_that_raises_today_is_a_difference(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    restart_twice(cluster)
    healthy = actor_types.ACTOR_TYPES["trial"].step

    def step(state: Any, message: Any, context: StepContext) -> Any:
        if isinstance(message, AllocationExited):
            raise ValueError("too many")
        return healthy(state, message, context)

    change_actor_type(monkeypatch, "trial", step=step)
    difference = find_difference(cluster)
    assert difference is not None
    assert (difference.message, difference.field) == ("AllocationExited", "error")
    assert difference.replayed == "ValueError: too many"


def test_new_field_with_default_is_no_difference(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an unchanged new field nor a new field that today's rules change is a difference."""
    restart_twice(cluster)

    def more(*changes: tuple[str, Any, Any]) -> type:
        extended = [
            (name, of_type, field_of(default=default)) for name, of_type, default in changes
        ]
        return make_dataclass("TrialState", extended, bases=(TrialState,), frozen=True)

    extended = more(("patience", int, 3), ("heard", int, 0))
    healthy = actor_types.ACTOR_TYPES["trial"].step

    def step(state: Any, message: Any, context: StepContext) -> Any:
        after = healthy(state, message, context)
        if type(after) is TrialState:
            after = extended(**after.__dict__)
        return evolve(after, heard=after.heard + 1)

    change_actor_type(monkeypatch, "trial", state_type=extended, step=step)
    assert list(actor_type_at(TRIAL).stored_names)[-2:] == ["patience", "heard"]
    assert replay_actor(cluster.engine.table, TRIAL).entries > 3
    assert find_difference(cluster) is None


def test_new_nested_field_with_default_is_no_difference() -> None:
    @dataclass(frozen=True)
    class Inner:
        size: int

    @dataclass(frozen=True)
    class Longer(Inner):
        color: str = "blue"

    def encode_inner(inner: type, value: object) -> bytes:
        outer = make_dataclass("Outer", [("inner", inner)], frozen=True)
        actor_type = replace(actor_types.ACTOR_TYPES["pool"], state_type=outer)
        return actor_type.encode_field("inner", value)

    assert encode_inner(Inner, Inner(1)) == encode_inner(Longer, Longer(1))
    assert encode_inner(Inner, Inner(1)) != encode_inner(Longer, Longer(1, "red"))


def test_undecodable_journal_row_is_a_difference(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    revision = rewrite(cluster, 2, lambda body: body[:-5])
    difference = find_difference(cluster)
    assert difference is not None
    assert (difference.revision, difference.field) == (revision, "journal")
    assert "not a journal entry" in str(difference.recorded)


def test_missing_journal_row_is_a_difference(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    rows = list(journal.read_entry_rows(cluster.engine.table, TRIAL))
    for place in (1, len(rows) - 1):
        cluster.host.rows.commit([Delete(rows[place].key, Expect.ANYTHING)])
        difference = find_difference(cluster)
        revision = journal.entry_revision(rows[place])
        assert difference == Difference(
            revision, "", "journal", f"no entry of revision {revision}", None
        )
        cluster.host.rows.commit([Put(rows[place].key, 1, rows[place].body, Expect.ANYTHING)])
    assert find_difference(cluster) is None


def test_unknown_message_is_a_difference(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    revision = rewrite(cluster, 0, lambda body: body.replace(b"TrialCreated", b"TrialHatched"))
    difference = find_difference(cluster)
    expected = Difference(
        revision, "TrialHatched", "message", "folded", "is not a message of this version"
    )
    assert difference == expected


def test_unknown_message_field_is_named(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    rewrite(cluster, 0, lambda body: body.replace(b'"seed":', b'"seeds":'))
    difference = find_difference(cluster)
    assert difference is not None
    assert "seed: Field required" in str(difference.replayed)


def test_changed_head_is_reported_by_field(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    row = cluster.engine.table.get(Key(TRIAL, HEAD))
    assert row is not None
    header, state = decode_head(row.body)
    for garbled, field in (
        (state.replace(b'"restarts":2', b'"restarts":5'), "restarts"),
        (b"{}", "head"),
    ):
        put = Put(row.key, row.revision, encode_head(header, garbled), Expect.ANYTHING)
        cluster.host.rows.commit([put])
        difference = find_difference(cluster)
        assert difference is not None
        assert (difference.revision, difference.field) == (row.revision, field)
    assert difference is not None
    assert "trial_id: Field required" in str(difference.recorded)


def test_changed_part_is_reported_by_path(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    key = Key("experiment#1", "P#trials/0")
    row = cluster.engine.table.get(key)
    assert row is not None
    body = row.body.replace(b"COMPLETED", b"CANCELED", 1)
    cluster.host.rows.commit([Put(key, row.revision, body, Expect.ANYTHING)])
    difference = find_difference(cluster, "experiment#1")
    assert difference is not None
    # The status is the second of a summary's values.
    assert difference.field == "part trials/0.trials.0.1"
    assert (difference.recorded, difference.replayed) == ("CANCELED", "COMPLETED")


def test_secret_part_is_never_shown(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    key = Key("experiment#1", "P#definition")
    row = cluster.engine.table.get(key)
    assert row is not None
    body = row.body.replace(b'"config":"{}"', b'"config":"canary"')
    cluster.host.rows.commit([Put(key, row.revision, body, Expect.ANYTHING)])
    difference = find_difference(cluster, "experiment#1")
    assert difference is not None
    assert difference.field == "part definition"
    assert "canary" not in str(difference)


def test_dead_letter_is_replayed_with_the_fallback(
    cluster: SteppedCluster,
) -> None:
    restart_twice(cluster)
    engine = cluster.engine
    clock = mailbox.next_clock(0, cluster.now_ms) + 10
    # Ids come in blocks of 64: the second experiment's first trial is 65.
    cluster.command("experiment#2", submission(2, 1))
    key = mailbox.mail_key("trial#65", clock, "x")
    encoded = [encode_message_for("trial#65", WorkAssigned(3, False))]
    put = mailbox.mail_write(key, "x", mailbox.UNKNOWN, clock, encoded, cluster.now_ms)
    engine.table.commit([put])
    row = engine.table.get(key)
    assert row is not None
    engine.dead_letter_mail(mailbox.read_mail(row))
    assert cluster.checker.actor_state("trial#65").status is Status.ERROR
    assert find_difference(cluster, "trial#65") is None


def test_command_is_recorded_with_the_user(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    cluster.engine.execute_command("pool#default", PoolConfigured("default"), by="ana")
    *_, last = journal.read_entry_rows(cluster.engine.table, "pool#default")
    assert journal.read_entry(last).user == "ana"
    assert find_difference(cluster, "pool#default") is None


def test_row_of_format_1_is_compared_by_the_single_digest(cluster: SteppedCluster) -> None:
    cluster.add_pool()
    state = actor_type_at("pool#default").encode_state(cluster.checker.actor_state("pool#default"))
    digest = journal.format_1_digest(state, {})
    head = (
        '{"now":%d,"out":"%s","in":[],"command":[["PoolConfigured",{"name":"default"}]],"read":{}}'
    )
    key = Key("pool#default", "Z#000000000001")
    for out, field in ((digest, None), ("0" * 16, "unknown")):
        body = (head % (cluster.now_ms, out)).encode()
        cluster.host.rows.commit([Put(key, 1, body, Expect.ANYTHING)])
        difference = find_difference(cluster, "pool#default")
        assert (difference and difference.field) == field
    assert difference == Difference(1, "PoolConfigured", "unknown", "0" * 16, digest)


def test_replay_stops_after_entries_max(cluster: SteppedCluster) -> None:
    restart_twice(cluster)
    result = replay_actor(cluster.engine.table, TRIAL, entries_max=2)
    assert (result.entries, result.difference, result.complete) == (2, None, False)


def test_missing_actor_has_no_entries_and_unknown_type_is_a_difference(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "table.db")
    Engine(table, lambda: 1, UNHURRIED).execute_command("pool#a", PoolConfigured("a"))
    assert replay_actor(table, "trial#9").entries == 0
    assert replay_actor(table, "trial#9").difference is None
    unknown = replay_actor(table, "robot#9").difference
    assert unknown is not None
    assert unknown.field == "actor"
    table.close()
