import random
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.actors.messages.experiment import PauseRequested
from control_plane.actors.messages.experiment_events import WebhooksChanged
from control_plane.actors.messages.pool import AgentLost, PoolConfigured, SlotsRequested
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.engine import due_rows, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.engine.mailbox import ISOLATE_FROM_ATTEMPTS
from control_plane.state.memory import MemoryTable
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import SHARDS, Conflict, Expect, Key, Put
from tests.changed_actors import change_actor_type
from tests.engine_timing import UNHURRIED

POOL = "pool#a"
NOW_MS = 1_700_000_000_000


class Clock:
    now_ms = NOW_MS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[Engine]:
    table = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    created = Engine(table, lambda: clock.now_ms, UNHURRIED)
    created.execute_command(POOL, PoolConfigured("a"))
    yield created
    table.close()


@pytest.fixture
def commits(engine: Engine) -> list[str]:
    committed: list[str] = []
    engine.on_commit = committed.append
    return committed


def send(engine: Engine, tick: int, trial_id: int, attempts: int = 0, sender: str = "") -> Key:
    """Mail a request for slots with this number of earlier attempts. Return the key of the row."""
    clock = mailbox.next_clock(0, NOW_MS) + tick
    sender = sender or f"trial#{trial_id}"
    key = mailbox.mail_key(POOL, clock, sender)
    encoded = [encode_message_for(POOL, SlotsRequested(trial_id, 1, 1, f"{tick:06d}"))]
    put = mailbox.mail_write(key, sender, mailbox.UNKNOWN, clock, encoded, NOW_MS)
    body = put.body.replace(b'"attempts":0', b'"attempts":%d' % attempts)
    engine.table.commit([replace(put, body=body)])
    return key


def poison(monkeypatch: pytest.MonkeyPatch, *trial_ids: int) -> list[int]:
    """Make the pool fail on requests of these trials; return a list that receives folded trials."""
    folded: list[int] = []

    def step(state: Any, message: Any, context: StepContext) -> Any:
        if isinstance(message, SlotsRequested):
            if message.trial_id in trial_ids:
                raise ValueError(f"poison {message.trial_id}")
            folded.append(message.trial_id)
        return healthy.step(state, message, context)

    healthy = change_actor_type(monkeypatch, "pool", step=step)
    return folded


def test_folds_100_messages_in_two_commits(engine: Engine, commits: list[str]) -> None:
    for n in range(100):
        send(engine, n, n)
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == 100
    # A commit has at most 60 operations: head, journal, the queue and up to 3 leaves of the queue.
    assert commits == [POOL] * 2


def test_folds_more_mail_than_a_page(engine: Engine) -> None:
    for n in range(250):
        send(engine, n, n)
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == 250


def test_commit_folds_at_most_the_bytes_of_a_journal_row(
    engine: Engine, commits: list[str]
) -> None:
    # 6 rows of 150,000 characters that zlib makes 25 % shorter, where a row has 400,000 bytes.
    draw = random.Random(1)
    for n in range(6):
        reason = "".join(draw.choices(string.ascii_letters + string.digits, k=150_000))
        clock = mailbox.next_clock(0, NOW_MS) + n
        encoded = [encode_message_for(POOL, AgentLost("nobody", 1, reason))]
        key = mailbox.mail_key(POOL, clock, "x")
        engine.table.commit([mailbox.mail_write(key, "x", mailbox.UNKNOWN, clock, encoded, NOW_MS)])
    engine.advance(POOL)
    assert commits == [POOL] * 6
    assert engine.table.query(POOL, mailbox.MAIL, mailbox.MAIL_END).rows == ()


def test_row_with_many_attempts_is_folded_alone(engine: Engine, commits: list[str]) -> None:
    for n, attempts in enumerate((0, 0, ISOLATE_FROM_ATTEMPTS, 0, 0)):
        send(engine, n, n, attempts)
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == 5
    # Commits: the first two rows, the third row alone, the last two rows.
    assert commits == [POOL] * 3


def test_rows_with_few_attempts_are_folded_together(engine: Engine, commits: list[str]) -> None:
    for n in range(5):
        send(engine, n, n, ISOLATE_FROM_ATTEMPTS - 1)
    engine.advance(POOL)
    assert commits == [POOL]


def test_failing_message_blocks_only_messages_of_the_same_sender(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = poison(monkeypatch, 1)
    for tick, trial_id, sender in ((0, 1, "x"), (1, 2, "x"), (2, 3, "y"), (3, 4, "x")):
        send(engine, tick, trial_id, sender=sender)
    engine.advance(POOL)
    assert folded == [3]
    assert engine.read_state(POOL).queued == 1


def test_effects_of_failing_message_are_discarded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(state: Any, message: Any, context: StepContext) -> Any:
        after = healthy.step(state, message, context)
        if isinstance(message, SlotsRequested) and message.trial_id == 2:
            raise ValueError("too late")
        return after

    healthy = change_actor_type(monkeypatch, "pool", step=step)
    for n in (1, 2, 3):
        send(engine, n, n)
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == 2


def test_command_and_mail_are_folded_in_a_single_commit(engine: Engine, commits: list[str]) -> None:
    send(engine, 0, 1)
    engine.execute_command(POOL, PoolConfigured("a"))
    assert commits == [POOL]
    assert engine.read_state(POOL).queued == 1


def test_committed_command_succeeds_despite_a_damaged_head(engine: Engine) -> None:
    def damage_head(address: str) -> None:
        row = engine.table.get(Key(address, HEAD))
        assert row is not None
        engine.table.commit([Put(row.key, row.revision + 1, b"damaged", row.revision)])

    engine.on_commit = damage_head
    engine.execute_command(POOL, PoolConfigured("a"))
    with pytest.raises(ValueError, match="Invalid JSON"):
        engine.advance(POOL)


def test_command_to_missing_actor_is_not_found(engine: Engine) -> None:
    with pytest.raises(CommandRefused) as raised:
        engine.execute_command("experiment#9", PauseRequested())
    assert raised.value.code == "not_found"
    assert engine.table.get(Key("experiment#9", HEAD)) is None


def test_failed_extra_condition_discards_the_command(engine: Engine) -> None:
    extra_writes = (Put(Key("idempotency#me", "k"), 1, b"", Expect.PRESENT),)
    before = engine.table.get(Key(POOL, HEAD))
    with pytest.raises(Conflict):
        engine.execute_command(POOL, PoolConfigured("a"), extra_writes=lambda reply: extra_writes)
    assert engine.table.get(Key(POOL, HEAD)) == before


def test_recovery_pass_folds_mail_left_by_an_expired_budget(engine: Engine, clock: Clock) -> None:
    send(engine, 0, 1)
    engine.advance_until_idle((POOL,), budget_ms=0)
    assert engine.read_state(POOL).queued == 0
    assert due_rows.process_due_rows(engine).redriven == 1
    assert engine.read_state(POOL).queued == 1


def test_pass_ignores_rows_that_are_not_due(engine: Engine, clock: Clock) -> None:
    send(engine, 0, 1)
    clock.now_ms = NOW_MS - 1
    assert due_rows.process_due_rows(engine) == due_rows.DueRowCounts()


def test_pass_over_other_shards_ignores_the_row(engine: Engine) -> None:
    send(engine, 0, 1)
    others = [n for n in range(SHARDS) if not engine.table.due_keys(n, NOW_MS)]
    assert len(others) == SHARDS - 1
    assert due_rows.process_due_rows(engine, others) == due_rows.DueRowCounts()


def test_rows_with_attempts_are_retried_last(engine: Engine, commits: list[str]) -> None:
    """A message that crashes the process must not keep the pass from other actors."""
    engine.execute_command("pool#b", PoolConfigured("b"))
    send(engine, 0, 1, attempts=2)
    key = mailbox.mail_key("pool#b", 1, "s")
    encoded = [encode_message_for("pool#b", SlotsRequested(2, 1, 1, "1"))]
    engine.table.commit([mailbox.mail_write(key, "s", mailbox.FIRST, 1, encoded, NOW_MS)])
    commits.clear()
    due_rows.process_due_rows(engine)
    assert commits.index("pool#b") < commits.index(POOL)


def test_post_message_folds_the_message(engine: Engine) -> None:
    engine.post_message(POOL, SlotsRequested(1, 1, 1, "1"), sender="audit#a")
    engine.post_message(POOL, SlotsRequested(2, 1, 1, "2"), sender="audit#a")
    assert engine.read_state(POOL).queued == 2


def test_messages_to_many_actors_are_stored_without_an_advance() -> None:
    table = MemoryTable()
    engine = Engine(table, lambda: 1_000, UNHURRIED)
    receivers = [f"experiment#{number}" for number in range(1, 251)]
    engine.store_messages(receivers, WebhooksChanged(), sender="webhook#1")
    for receiver in (receivers[0], receivers[-1]):
        assert engine.has_mail(receiver)
    engine.store_messages([], WebhooksChanged(), sender="webhook#1")
