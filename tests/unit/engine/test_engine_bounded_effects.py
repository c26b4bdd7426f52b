"""Messages with effects beyond a commit, failing messages, and undecodable messages."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.engine import due_rows, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD, Spill, decode_head, encode_head
from control_plane.engine.spilled_outbox import encode_spill, spill_key
from control_plane.evolve import evolve
from control_plane.state.memory import MemoryTable
from control_plane.state.table import (
    COMMIT_BYTES_MAX,
    OPERATIONS_MAX,
    ROW_BYTES_MAX,
    Expect,
    InvalidCommit,
    Key,
    Put,
    Row,
    Unavailable,
)
from simulator.faults.table_faults import TableDecorator
from tests.changed_actors import change_actor_type
from tests.engine_timing import UNHURRIED

POOL = "pool#a"
NOW_MS = 1_700_000_000_000

StepHook = Callable[[SlotsRequested, StepContext], None]


class Clock:
    now_ms = NOW_MS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Engine:
    engine = Engine(MemoryTable(), lambda: clock.now_ms, UNHURRIED)
    engine.execute_command(POOL, PoolConfigured("a"))
    return engine


def hook_requests(monkeypatch: pytest.MonkeyPatch, hook: StepHook) -> None:
    """Call `hook` whenever a pool has folded a request for slots. The fallback writes a row."""

    def step(state: Any, message: Any, context: StepContext) -> Any:
        after = healthy.step(state, message, context)
        if isinstance(message, SlotsRequested):
            hook(message, context)
        return after

    def fallback(state: Any, message: object, context: StepContext) -> Any:
        context.write_row("fallbacks", message_name(message), b"x")
        return state

    healthy = change_actor_type(monkeypatch, "pool", step=step, fallback=fallback)


def mail_requests(engine: Engine, *trial_ids: int, tick: int = 0, sender: str = "s") -> Key:
    """Mail requests for slots in a single row. Return the key of the row."""
    clock = mailbox.next_clock(0, NOW_MS) + tick
    key = mailbox.mail_key(POOL, clock, sender)
    encoded = [
        encode_message_for(POOL, SlotsRequested(number, 1, 1, f"{number:06d}"))
        for number in trial_ids
    ]
    write = mailbox.mail_write(key, sender, mailbox.UNKNOWN, clock, encoded, NOW_MS)
    engine.table.commit((write,))
    return key


def pass_seconds(engine: Engine, clock: Clock, seconds: int) -> None:
    """Process the due rows once per second, for this number of seconds."""
    for _ in range(seconds):
        due_rows.process_due_rows(engine)
        clock.now_ms += 1000


def letters(engine: Engine) -> tuple[Row, ...]:
    """Return the dead letters of the pool."""
    return engine.table.query(POOL, mailbox.LETTERS, f"{mailbox.LETTERS}~").rows


@pytest.mark.parametrize("rows_each", [1, 7, 30, 59, 60, 61, OPERATIONS_MAX - 10])
def test_row_with_too_many_effects_is_folded_in_parts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, rows_each: int
) -> None:
    order: list[int] = []

    def write_rows(message: SlotsRequested, context: StepContext) -> None:
        context.write_row("order", f"{message.trial_id}", b"")
        for number in range(rows_each - 1):
            context.write_row("rows", f"{message.trial_id}-{number}", b"x")

    hook_requests(monkeypatch, write_rows)
    engine.on_row = lambda key: order.append(int(key.sort)) if key.partition == "order" else None
    mail_requests(engine, *range(30))
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == 30
    assert order == list(range(30))
    assert not engine.has_mail(POOL)
    assert not letters(engine)


@pytest.mark.parametrize("in_one_row", [True, False])
@pytest.mark.parametrize("kilobytes", [60, 300])
def test_messages_with_too_many_bytes_are_folded_in_several_commits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, kilobytes: int, in_one_row: bool
) -> None:
    body = bytes(kilobytes * 1024)
    count = 2 * COMMIT_BYTES_MAX // len(body)
    hook_requests(
        monkeypatch,
        lambda message, context: context.write_row("rows", f"{message.trial_id}", body),
    )
    if in_one_row:
        mail_requests(engine, *range(count))
    else:
        for number in range(count):
            mail_requests(engine, number, tick=number)
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == count
    assert not engine.has_mail(POOL)


def test_message_larger_than_a_commit_blocks_only_the_sender(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_rows(message: SlotsRequested, context: StepContext) -> None:
        for number in range(OPERATIONS_MAX if message.trial_id == 2 else 1):
            context.write_row("rows", f"{message.trial_id}-{number}", b"x")

    hook_requests(monkeypatch, write_rows)
    mail_requests(engine, 1, 2, 3)
    mail_requests(engine, 4, tick=1, sender="other")
    engine.advance(POOL)
    assert engine.read_state(POOL).queued == 2
    pass_seconds(engine, clock, 90)
    assert engine.read_state(POOL).queued == 3
    assert len(letters(engine)) == 1


def test_each_failing_message_of_a_row_becomes_a_dead_letter(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_two(message: SlotsRequested, context: StepContext) -> None:
        if message.trial_id in (2, 4):
            raise ValueError("poison")

    hook_requests(monkeypatch, fail_at_two)
    mail_requests(engine, 1, 2, 3, 4, 5)
    pass_seconds(engine, clock, 180)
    assert engine.read_state(POOL).queued == 3
    bodies = [row.body for row in letters(engine)]
    assert [body.count(b"SlotsRequested") for body in bodies] == [1, 1]
    assert not engine.has_mail(POOL)


NESTED = b'{"a":' * 300 + b"1" + b"}" * 300
HEADER = b'{"v":1,"from":"s","prev":"","clock":5,"attempts":0,"messages":['


@pytest.mark.parametrize(
    "body",
    [
        HEADER + b'["SlotsRequested",' + NESTED + b"]]}",
        HEADER + b'["SlotsRequested",{"trial_id":"no number"}]]}',
        HEADER + b'["NoSuchMessage",{}]]}',
        HEADER,
        b"{}",
        b"",
    ],
)
def test_unreadable_mail_becomes_a_dead_letter_and_calls_the_fallback(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    hook_requests(monkeypatch, lambda message, context: None)
    key = mailbox.mail_key(POOL, 5, "s")
    engine.table.commit((Put(key, 1, body, Expect.ABSENT, NOW_MS),))
    mail_requests(engine, 1, tick=1, sender="other")
    pass_seconds(engine, clock, 90)
    assert engine.read_state(POOL).queued == 1
    assert not engine.has_mail(POOL)
    [letter] = letters(engine)
    assert letter.body.replace(b'"attempts":5', b'"attempts":0') == body
    assert len(engine.table.query("fallbacks", "A", "z").rows) == 1


def test_mail_is_folded_before_a_command_that_does_not_fit(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(300 * 1024)
    hook_requests(
        monkeypatch,
        lambda message, context: context.write_row("rows", f"{message.trial_id}", body),
    )
    mail_requests(engine, *range(40))
    engine.execute_command(POOL, PoolConfigured("a"))
    assert engine.read_state(POOL).queued == 40


def test_command_larger_than_a_commit_is_refused(engine: Engine) -> None:
    rows = tuple(
        Put(Key("rows", f"{number}"), 1, b"x", Expect.ANYTHING) for number in range(OPERATIONS_MAX)
    )
    with pytest.raises(CommandRefused) as raised:
        engine.execute_command(POOL, PoolConfigured("b"), extra_writes=lambda reply: rows)
    assert raised.value.code == "too_large"


class SilentRow(TableDecorator):
    """A table that does not answer reads of the partition `silent` while `silent` is True."""

    silent = True

    def get(self, key: Key) -> Row | None:
        if self.silent and key.partition == "silent":
            raise Unavailable("throttled")
        return super().get(key)


def test_failed_read_is_not_counted_as_an_attempt(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SilentRow(MemoryTable())
    engine = Engine(table, lambda: clock.now_ms, UNHURRIED)
    engine.execute_command(POOL, PoolConfigured("a"))

    def read_row(message: SlotsRequested, context: StepContext) -> None:
        if message.trial_id == 2:
            context.row("silent", "row")

    hook_requests(monkeypatch, read_row)
    key = mail_requests(engine, 1, 2, 3)
    for _ in range(300):
        with suppress(Unavailable):
            due_rows.process_due_rows(engine)
        clock.now_ms += 1000
    assert engine.read_state(POOL).queued == 1
    row = table.get(key)
    assert row is not None
    assert mailbox.read_mail(row).attempts == 0
    table.silent = False
    pass_seconds(engine, clock, 10)
    assert engine.read_state(POOL).queued == 3
    assert not letters(engine)


def test_spilled_message_too_large_for_a_row_is_reported(engine: Engine) -> None:
    head = engine.table.get(Key(POOL, HEAD))
    assert head is not None
    header, state = decode_head(head.body)
    body = encode_head(evolve(header, spill=Spill(0, 0)), state)
    requested = SlotsRequested(1, 1, 1, "0" * ROW_BYTES_MAX)
    spill = encode_spill([("pool#b", [encode_message_for("pool#b", requested)])])
    engine.table.commit(
        [
            Put(head.key, head.revision + 1, body, head.revision),
            Put(spill_key(POOL, 0), head.revision + 1, spill, Expect.ABSENT),
        ]
    )
    with pytest.raises(InvalidCommit, match="pool#b"):
        engine.advance(POOL)
