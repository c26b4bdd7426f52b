from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.actors.messages.pool import PoolConfigured, SlotsRequested
from control_plane.actors.pool.actor import PoolState
from control_plane.engine import mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.fold import ActorSnapshot
from control_plane.engine.head import HEAD, PARTS, SENT_MAX, Header, decode_head, encode_head
from control_plane.engine.mailbox import FIRST, UNKNOWN
from control_plane.engine.reader import ActorCache, FoldReader, LoadedActor, TornRead, load_actor
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Page, Put, StateTable
from simulator.faults.table_faults import TableDecorator
from tests.engine_timing import UNHURRIED

POOL = "pool#a"
NOW_MS = 1_700_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SqliteTable]:
    created_table = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    Engine(created_table, lambda: NOW_MS, UNHURRIED).execute_command(POOL, PoolConfigured("a"))
    yield created_table
    created_table.close()


def send(table: SqliteTable, clock: int, sender: str, previous: str) -> str:
    key = mailbox.mail_key(POOL, clock, sender)
    encoded = [encode_message_for(POOL, SlotsRequested(clock, 1, 1, f"{clock}"))]
    table.commit([mailbox.mail_write(key, sender, previous, clock, encoded, NOW_MS)])
    return key.sort


def read_mailbox(table: SqliteTable) -> list[str]:
    """Load the mail through a table without snapshot queries. Return the sort keys."""
    return [
        mail.key.sort for mail in load_actor(TableDecorator(table), ActorCache(), POOL, None).mail
    ]


def test_mail_is_read_in_the_order_of_clocks(table: SqliteTable) -> None:
    later = send(table, 9, "trial#1", FIRST)
    earlier = send(table, 3, "trial#2", FIRST)
    assert read_mailbox(table) == [earlier, later]


def test_missing_actor_is_loaded_with_mail(table: SqliteTable) -> None:
    key = mailbox.mail_key("pool#nobody", 1, "s")
    table.commit([mailbox.mail_write(key, "s", FIRST, 1, [], NOW_MS)])
    loaded = load_actor(table, ActorCache(), "pool#nobody", None)
    assert (loaded.snapshot.revision, loaded.snapshot.state) == (0, None)
    assert [mail.key for mail in loaded.mail] == [key]


def test_mail_is_complete_if_the_previous_row_is_deleted(table: SqliteTable) -> None:
    row = send(table, 9, "trial#1", previous="M#long gone")
    assert read_mailbox(table) == [row]


def test_read_is_torn_if_a_stored_previous_row_is_missing(table: SqliteTable) -> None:
    # The previous row is outside the range of the mailbox, like a missed row that is outside a
    # page.
    table.commit([Put(Key(POOL, "N#missed"), 1, b"", Expect.ABSENT)])
    send(table, 9, "trial#1", previous="N#missed")
    with pytest.raises(TornRead):
        read_mailbox(table)


class QueryCounter(TableDecorator):
    """A table that counts queries.

    Args:
        table: the table with the rows.
        snapshot_queries: whether a query reads a snapshot.
    """

    def __init__(self, table: StateTable, *, snapshot_queries: bool) -> None:
        super().__init__(table)
        self.snapshot_queries = snapshot_queries
        self.queries = 0

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        self.queries += 1
        return super().query(partition, first, last, limit=limit, descending=descending)


@pytest.mark.parametrize(("snapshot_queries", "queries"), [(False, 2), (True, 1)])
def test_mailbox_without_snapshots_is_read_twice_for_an_unknown_previous_row(
    table: SqliteTable, snapshot_queries: bool, queries: int
) -> None:
    row = send(table, 9, "trial#1", UNKNOWN)
    counter = QueryCounter(table, snapshot_queries=snapshot_queries)
    assert [mail.key.sort for mail in load_actor(counter, ActorCache(), POOL, None).mail] == [row]
    assert counter.queries == queries


def test_mailbox_is_read_once_for_a_known_previous_row(table: SqliteTable) -> None:
    send(table, 9, "trial#1", FIRST)
    counter = QueryCounter(table, snapshot_queries=False)
    load_actor(counter, ActorCache(), POOL, None)
    assert counter.queries == 1


def test_only_due_timers_are_loaded_on_request(table: SqliteTable) -> None:
    for due_ms in (NOW_MS, NOW_MS + 1):
        key = mailbox.timer_key(POOL, due_ms, due_ms)
        table.commit([mailbox.mail_write(key, POOL, FIRST, 1, [], due_ms)])
    assert read_mailbox(table) == []
    assert len(load_actor(table, ActorCache(), POOL, NOW_MS).mail) == 1
    assert len(load_actor(table, ActorCache(), POOL, NOW_MS + 1).mail) == 2


def test_part_newer_than_the_head_is_torn(table: SqliteTable) -> None:
    loaded = load_actor(table, ActorCache(), POOL, None)
    part = Put(Key(POOL, f"{PARTS}queue"), loaded.snapshot.revision + 1, b"{}", Expect.ANYTHING)
    table.commit([part])
    with pytest.raises(TornRead):
        FoldReader(table, loaded).part("queue")
    table.commit([replace(part, revision=loaded.snapshot.revision)])
    assert FoldReader(table, loaded).part("queue") is not None


def test_missing_part_is_read_once(table: SqliteTable) -> None:
    loaded = load_actor(table, ActorCache(), POOL, None)
    parts = FoldReader(table, loaded)
    assert parts.part("queue") is None
    table.commit([Put(Key(POOL, f"{PARTS}queue"), 1, b"{}", Expect.ANYTHING)])
    assert parts.part("queue") is None
    assert loaded.parts == {"queue": None}


def test_part_written_by_the_fold_is_returned(table: SqliteTable) -> None:
    parts = FoldReader(table, load_actor(table, ActorCache(), POOL, None))
    parts.fold.parts["queue"] = b"written"
    assert parts.part("queue") == b"written"


def test_cache_returns_only_the_cached_revision() -> None:
    cache = ActorCache()
    snapshot = ActorSnapshot(POOL, 4, Header(), PoolState("a"))
    cache.put(snapshot, {"queue": None})
    assert cache.get(POOL, 4) == (snapshot, {"queue": None})
    assert cache.get(POOL, 3) is None
    assert cache.get(POOL, 5) is None
    assert cache.get("pool#b", 4) is None


def test_cache_evicts_the_actor_cached_earliest() -> None:
    cache = ActorCache(actors_max=2)
    for name in ("pool#a", "pool#b", "pool#a", "pool#c"):
        cache.put(ActorSnapshot(name, 1, Header(), None), {})
    assert cache.get("pool#a", 1) is not None
    assert cache.get("pool#b", 1) is None
    assert cache.get("pool#c", 1) is not None


def test_stale_cache_entry_is_not_used(table: SqliteTable) -> None:
    """Another engine has advanced the actor, which the head's revision shows."""
    ours = Engine(table, lambda: NOW_MS, UNHURRIED)
    ours.execute_command(POOL, PoolConfigured("a"))
    Engine(table, lambda: NOW_MS, UNHURRIED).post_message(
        POOL, SlotsRequested(1, 1, 1, "1"), sender="s"
    )
    assert ours.read_state(POOL).queued == 1


def test_header_remembers_the_last_row_per_receiver() -> None:
    header = Header().with_sent_rows({"a": "M#1", "b": "M#2"}, 2).with_sent_rows({"a": "M#3"}, 3)
    assert (header.previous_row("a"), header.previous_row("b"), header.previous_row("c")) == (
        "M#3",
        "M#2",
        FIRST,
    )
    assert header.clock == 3


def test_header_forgets_the_least_recent_receiver() -> None:
    header = Header()
    for n in range(SENT_MAX):
        header = header.with_sent_rows({f"r{n}": f"M#{n}"}, n)
    header = header.with_sent_rows({"r0": "M#again"}, 99)
    assert not header.forgot
    header = header.with_sent_rows({"new": "M#new"}, 100)
    # r1 is the least recent receiver, because r0 got a second row.
    assert header.previous_row("r0") == "M#again"
    assert header.previous_row("r1") == UNKNOWN
    assert header.previous_row("r2") == "M#2"
    # After forgetting a receiver, the header cannot distinguish a new receiver from a forgotten
    # receiver.
    assert header.previous_row("never written to") == UNKNOWN
    assert len(header.sent) == SENT_MAX


def test_decode_head_reverses_encode_head() -> None:
    header = Header().with_sent_rows({"a": "M#1"}, 7)
    state = b'{"text":"two\\nlines"}'
    assert decode_head(encode_head(header, state)) == (header, state)


def test_order_of_receivers_is_stored() -> None:
    header = Header()
    for n in range(SENT_MAX):
        header = header.with_sent_rows({f"r{(n * 7) % SENT_MAX}": f"M#{n}"}, n)
    again, _ = decode_head(encode_head(header, b""))
    assert list(again.sent) == list(header.sent)


def test_actor_is_loaded_without_parts(table: SqliteTable) -> None:
    loaded = load_actor(table, ActorCache(), POOL, None)
    assert loaded == LoadedActor(loaded.snapshot, (), {})
    assert table.get(Key(POOL, HEAD)) is not None


def test_put_if_newer_keeps_a_later_revision() -> None:
    cache = ActorCache()
    newer = ActorSnapshot("pool#x", 5, Header(), PoolState("x"))
    cache.put(newer, {})
    cache.put_if_newer(ActorSnapshot("pool#x", 4, Header(), PoolState("older")))
    assert cache.get_latest("pool#x") == newer
    cache.put_if_newer(ActorSnapshot("pool#x", 6, Header(), PoolState("newest")))
    latest = cache.get_latest("pool#x")
    assert latest is not None
    assert latest.revision == 6
