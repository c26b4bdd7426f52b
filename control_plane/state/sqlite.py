"""The StateTable in one SQLite file: the laptop's cluster.

WAL lets readers go on beside the writer. `synchronous=FULL` makes every commit durable before it
returns; NORMAL may lose the last commits on a power failure, never their order, and never on a
crash of the process.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from control_plane.state.table import (
    Check,
    Conflict,
    Delete,
    Expect,
    Expected,
    Key,
    Page,
    Put,
    Row,
    Unavailable,
    Write,
    check_limits,
    shard_of,
    within_page,
)

BUSY_MS_MAX = 10_000
IN_MEMORY = ":memory:"

_SCHEMA = """
create table if not exists rows(
  partition text not null, sort text not null, revision integer not null, body blob not null,
  due_ms integer, shard integer, primary key(partition, sort)) without rowid;
create index if not exists due on rows(shard, due_ms) where due_ms is not null;
"""
_UPSERT = (
    "insert into rows values(?,?,?,?,?,?) on conflict(partition, sort) do update set"
    " revision=excluded.revision, body=excluded.body, due_ms=excluded.due_ms, shard=excluded.shard"
)
_UPDATE = "update rows set revision=?, body=?, due_ms=?, shard=? where partition=? and sort=?"


class SqliteTable:
    """A StateTable in the file `path`; open one per process.

    One connection, guarded by a lock, writes, and reads while nobody else wants it. Who would wait
    for it to read takes a connection of its own: a thread that holds the lock waits in turn for
    the interpreter, and with ten of them each read would take as long as ten.
    """

    # One statement reads one snapshot of the file.
    snapshot_queries = True

    def __init__(
        self, path: Path | str, *, synchronous: Literal["FULL", "NORMAL"] = "FULL"
    ) -> None:
        """Raises Unavailable: the file cannot be used, or is none of ours."""
        self._lock = threading.Lock()
        self._path = path
        self._idle_readers: deque[sqlite3.Connection] = deque()
        try:
            self._db = self._connection()
            self._db.execute("pragma journal_mode=wal")
            self._db.execute(f"pragma synchronous={synchronous}")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise _failure(error) from error

    def close(self) -> None:
        """Closes the file; the table is of no use afterwards."""
        with self._lock:
            self._db.close()
            while self._idle_readers:
                self._idle_readers.pop().close()

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        found = self._read("select * from rows where partition=? and sort=?", key)
        return _row(found[0]) if found else None

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """See StateTable."""
        if not keys:
            return ()
        wanted = ",".join("(?,?)" for _ in keys)
        found = self._read(
            f"with wanted(p, s) as (values {wanted}) select rows.* from wanted"
            # A cross join keeps its order: with `in` the whole table would be looked through.
            " cross join rows on partition=p and sort=s",
            tuple(chain.from_iterable(keys)),
        )
        rows = {row.key: row for row in map(_row, found)}
        return tuple(rows.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        order = "desc" if descending else "asc"
        found = self._read(
            "select * from rows where partition=? and sort>=? and sort<?"
            f" order by sort {order} limit ?",
            (partition, first, last, limit + 1),
        )
        rows = tuple(_row(fields) for fields in found)
        taken = rows[: min(limit, within_page(rows))]
        if len(taken) == len(rows):
            return Page(taken, None)
        return Page(taken, taken[-1].key.sort if descending else rows[len(taken)].key.sort)

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """See StateTable."""
        found = self._read(
            "select partition, sort from rows where shard=? and due_ms<=?"
            " order by due_ms, partition, sort limit ?",
            (shard, until_ms, limit),
        )
        return tuple(Key(partition, sort) for partition, sort in found)

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        check_limits(writes)
        with self._lock:
            try:
                self._roll_back()
                self._db.execute("begin immediate")
                for write in writes:
                    self._apply(write)
                self._db.execute("commit")
            except sqlite3.DatabaseError as error:
                raise _failure(error) from error
            finally:
                # On a broken disk this may fail too: whoever comes next tries again.
                with suppress(sqlite3.OperationalError):
                    self._roll_back()

    def _roll_back(self) -> None:
        """Ends a commit that failed, unless SQLite has done that by itself."""
        if self._db.in_transaction:
            self._db.execute("rollback")

    def _apply(self, write: Write) -> None:
        match write:
            case Put():
                self._put(write)
            case Delete(key, expect):
                where, values = _where(key, expect)
                gone = self._db.execute(f"delete from rows where {where}", values).rowcount
                if expect is Expect.ABSENT:
                    self._check(key, expect)
                elif gone == 0 and expect is not Expect.ANYTHING:
                    raise Conflict(key)
            case Check(key, expect):
                self._check(key, expect)

    def _put(self, put: Put) -> None:
        shard = None if put.due_ms is None else shard_of(put.key.partition)
        if put.expect is Expect.ABSENT or put.expect is Expect.ANYTHING:
            insert = "insert or ignore into rows values(?,?,?,?,?,?)"
            statement = insert if put.expect is Expect.ABSENT else _UPSERT
            changed = self._db.execute(
                statement, (*put.key, put.revision, put.body, put.due_ms, shard)
            ).rowcount
        else:
            values: tuple[object, ...] = (put.revision, put.body, put.due_ms, shard, *put.key)
            if isinstance(put.expect, int):
                changed = self._db.execute(
                    _UPDATE + " and revision=?", (*values, put.expect)
                ).rowcount
            else:
                changed = self._db.execute(_UPDATE, values).rowcount
        if changed != 1:
            raise Conflict(put.key)

    def _check(self, key: Key, expect: Expected) -> None:
        found = self._db.execute(
            "select revision from rows where partition=? and sort=?", key
        ).fetchone()
        match expect:
            case Expect.ANYTHING:
                holds = True
            case Expect.ABSENT:
                holds = found is None
            case Expect.PRESENT:
                holds = found is not None
            case revision:
                holds = found is not None and found[0] == revision
        if not holds:
            raise Conflict(key)

    def _read(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        try:
            # Nobody else sees what lies in memory.
            if self._lock.acquire(blocking=self._path == IN_MEMORY):
                try:
                    self._roll_back()
                    return self._db.execute(statement, values).fetchall()
                finally:
                    self._lock.release()
            return self._read_beside(statement, values)
        except sqlite3.DatabaseError as error:
            raise _failure(error) from error

    def _read_beside(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        try:
            reader = self._idle_readers.pop()
        except IndexError:
            reader = self._connection()
        try:
            return reader.execute(statement, values).fetchall()
        finally:
            self._idle_readers.append(reader)

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_MS_MAX / 1000
        )


def _failure(error: sqlite3.DatabaseError) -> Exception:
    """What a caller may retry; the error itself where it was the caller's fault."""
    # A damaged file has no class of its own.
    kinds = (sqlite3.DatabaseError, sqlite3.OperationalError)
    return Unavailable(str(error)) if type(error) in kinds else error


def _where(key: Key, expect: Expected) -> tuple[str, tuple[object, ...]]:
    if isinstance(expect, int):
        return "partition=? and sort=? and revision=?", (*key, expect)
    if expect is Expect.ABSENT:
        return "0", ()
    return "partition=? and sort=?", (*key,)


def _row(fields: tuple[Any, ...]) -> Row:
    partition, sort, revision, body, due_ms, _ = fields
    return Row(Key(partition, sort), revision, body, due_ms)
