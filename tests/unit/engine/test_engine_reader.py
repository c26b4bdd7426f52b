from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.actors.pool.actor import PoolState
from control_plane.engine import mailbox, reader
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.fold import ActorSnapshot
from control_plane.engine.head import HEAD, PARTS, SENT_MAX, Header, decode_head, encode_head
from control_plane.engine.mailbox import FIRST, UNKNOWN
from control_plane.engine.reader import ActorCache, FoldReader, LoadedActor, TornRead, load_actor
from control_plane.state.faults import TableDecorator
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable
from tests.engine_timing import UNHURRIED

POOL = "pool#a"
NOW_MS = 1_700_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SqliteTable]:
    made = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    Engine(made, lambda: NOW_MS, UNHURRIED).execute_command(POOL, PoolConfigured("a"))
    yield made
    made.close()


def send(table: SqliteTable, clock: int, sender: str, previous: str) -> str:
    key = mailbox.mail_key(POOL, clock, sender)
    encoded = [encode_message_for(POOL, SlotsRequested(clock, 1, 1, f"{clock}"))]
    table.commit([mailbox.mail_write(key, sender, previous, clock, encoded, NOW_MS)])
    return key.sort


def read_mailbox(table: SqliteTable) -> list[str]:
    """Load the mail as from a table whose queries are no snapshots."""
    return [
        mail.key.sort for mail in load_actor(TableDecorator(table), ActorCache(), POOL, None).mail
    ]


def test_mail_is_read_in_the_order_of_its_ids(table: SqliteTable) -> None:
    later = send(table, 9, "trial#1", FIRST)
    earlier = send(table, 3, "trial#2", FIRST)
    assert read_mailbox(table) == [earlier, later]


def test_an_actor_that_is_not_there_has_no_state_but_mail(table: SqliteTable) -> None:
    key = mailbox.mail_key("pool#nobody", 1, "s")
    table.commit([mailbox.mail_write(key, "s", FIRST, 1, [], NOW_MS)])
    reading = load_actor(table, ActorCache(), "pool#nobody", None)
    assert (reading.snapshot.revision, reading.snapshot.state) == (0, None)
    assert [mail.key for mail in reading.mail] == [key]


def test_a_row_whose_forerunner_was_folded_is_complete(table: SqliteTable) -> None:
    row = send(table, 9, "trial#1", previous="M#long gone")
    assert read_mailbox(table) == [row]


def test_a_row_whose_forerunner_is_there_and_was_missed_is_torn(table: SqliteTable) -> None:
    # The forerunner lies outside the mailbox's range, as one that was missed lies outside a page.
    table.commit([Put(Key(POOL, "N#missed"), 1, b"", Expect.ABSENT)])
    send(table, 9, "trial#1", previous="N#missed")
    with pytest.raises(TornRead):
        read_mailbox(table)


def test_a_sender_that_forgot_makes_the_reader_read_twice(
    table: SqliteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = send(table, 9, "trial#1", UNKNOWN)
    asked: list[str] = []
    again = reader._read_again

    def record_read(
        table: StateTable, address: str, mail: tuple[mailbox.MailboxRow, ...]
    ) -> object:
        asked.append(address)
        return again(table, address, mail)

    monkeypatch.setattr(reader, "_read_again", record_read)
    assert read_mailbox(table) == [row]
    assert asked == [POOL]


def test_a_snapshot_needs_no_second_look(
    table: SqliteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = send(table, 9, "trial#1", UNKNOWN)
    monkeypatch.delattr(reader, "_read_again")
    assert [mail.key.sort for mail in load_actor(table, ActorCache(), POOL, None).mail] == [row]


def test_timers_are_read_only_when_asked_for_and_due(table: SqliteTable) -> None:
    for due_ms in (NOW_MS, NOW_MS + 1):
        key = mailbox.timer_key(POOL, due_ms, due_ms)
        table.commit([mailbox.mail_write(key, POOL, FIRST, 1, [], due_ms)])
    assert read_mailbox(table) == []
    assert len(load_actor(table, ActorCache(), POOL, NOW_MS).mail) == 1
    assert len(load_actor(table, ActorCache(), POOL, NOW_MS + 1).mail) == 2


def test_a_part_newer_than_the_head_is_torn(table: SqliteTable) -> None:
    reading = load_actor(table, ActorCache(), POOL, None)
    part = Put(Key(POOL, f"{PARTS}queue"), reading.snapshot.revision + 1, b"{}", Expect.ANYTHING)
    table.commit([part])
    with pytest.raises(TornRead):
        FoldReader(table, reading).part("queue")
    table.commit([replace(part, revision=reading.snapshot.revision)])
    assert FoldReader(table, reading).part("queue") is not None


def test_a_part_is_read_once_and_an_absent_one_is_remembered(table: SqliteTable) -> None:
    reading = load_actor(table, ActorCache(), POOL, None)
    parts = FoldReader(table, reading)
    assert parts.part("queue") is None
    table.commit([Put(Key(POOL, f"{PARTS}queue"), 1, b"{}", Expect.ANYTHING)])
    assert parts.part("queue") is None
    assert reading.parts == {"queue": None}


def test_a_part_that_the_fold_wrote_reads_back_as_written(table: SqliteTable) -> None:
    parts = FoldReader(table, load_actor(table, ActorCache(), POOL, None))
    parts.fold.parts["queue"] = b"written"
    assert parts.part("queue") == b"written"


def test_the_cache_answers_for_one_revision_alone() -> None:
    cache = ActorCache()
    snapshot = ActorSnapshot(POOL, 4, Header(), PoolState("a"))
    cache.put(snapshot, {"queue": None})
    assert cache.get(POOL, 4) == (snapshot, {"queue": None})
    assert cache.get(POOL, 3) is None
    assert cache.get(POOL, 5) is None
    assert cache.get("pool#b", 4) is None


def test_the_cache_forgets_who_was_longest_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CACHED_ACTORS_MAX", 2)
    cache = ActorCache()
    for name in ("pool#a", "pool#b", "pool#a", "pool#c"):
        cache.put(ActorSnapshot(name, 1, Header(), None), {})
    assert cache.get("pool#a", 1) is not None
    assert cache.get("pool#b", 1) is None
    assert cache.get("pool#c", 1) is not None


def test_a_stale_cache_is_not_believed(table: SqliteTable) -> None:
    """Another engine has moved on: the head's revision tells."""
    ours = Engine(table, lambda: NOW_MS, UNHURRIED)
    ours.execute_command(POOL, PoolConfigured("a"))
    Engine(table, lambda: NOW_MS, UNHURRIED).post_message(
        POOL, SlotsRequested(1, 1, 1, "1"), sender="s"
    )
    assert ours.read_state(POOL).queued == 1


def test_the_header_knows_the_last_row_to_each_receiver() -> None:
    header = Header().with_sent_rows({"a": "M#1", "b": "M#2"}, 2).with_sent_rows({"a": "M#3"}, 3)
    assert (header.previous_row("a"), header.previous_row("b"), header.previous_row("c")) == (
        "M#3",
        "M#2",
        FIRST,
    )
    assert header.clock == 3


def test_the_header_forgets_the_longest_silent_and_says_so() -> None:
    header = Header()
    for n in range(SENT_MAX):
        header = header.with_sent_rows({f"r{n}": f"M#{n}"}, n)
    header = header.with_sent_rows({"r0": "M#again"}, 99)
    assert not header.forgot
    header = header.with_sent_rows({"new": "M#new"}, 100)
    # r1 was silent the longest, since r0 was written to again.
    assert header.previous_row("r0") == "M#again"
    assert header.previous_row("r1") == UNKNOWN
    assert header.previous_row("r2") == "M#2"
    # Having forgotten, it cannot tell a first letter from a later one.
    assert header.previous_row("never written to") == UNKNOWN
    assert len(header.sent) == SENT_MAX


def test_a_head_comes_back_as_it_was_stored() -> None:
    header = Header().with_sent_rows({"a": "M#1"}, 7)
    state = b'{"text":"two\\nlines"}'
    assert decode_head(encode_head(header, state)) == (header, state)


def test_the_order_of_receivers_survives_storing() -> None:
    header = Header()
    for n in range(SENT_MAX):
        header = header.with_sent_rows({f"r{(n * 7) % SENT_MAX}": f"M#{n}"}, n)
    again, _ = decode_head(encode_head(header, b""))
    assert list(again.sent) == list(header.sent)


def test_a_reading_without_parts_begins_with_none(table: SqliteTable) -> None:
    reading = load_actor(table, ActorCache(), POOL, None)
    assert reading == LoadedActor(reading.snapshot, (), {})
    assert table.get(Key(POOL, HEAD)) is not None


def test_what_was_read_late_does_not_replace_what_is_known() -> None:
    cache = ActorCache()
    newer = ActorSnapshot("pool#x", 5, Header(), PoolState("x"))
    cache.put(newer, {})
    cache.put_if_newer(ActorSnapshot("pool#x", 4, Header(), PoolState("older")))
    assert cache.get_latest("pool#x") == newer
    cache.put_if_newer(ActorSnapshot("pool#x", 6, Header(), PoolState("newest")))
    found = cache.get_latest("pool#x")
    assert found is not None
    assert found.revision == 6
