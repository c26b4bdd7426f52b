"""A StateTable in a single SQLite file, for a cluster on a laptop.

In WAL mode, readers continue while a writer writes. With `synchronous=FULL`, every commit is
durable when it returns. With NORMAL, a power failure may lose the last commits but never their
order; a crash of the process loses nothing.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from control_plane.state.table import (
    EXPIRY_SHARDS,
    NEVER_MS,
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
    page_of,
    shard_of_row,
)

BUSY_MS_MAX = 10_000
IN_MEMORY = ":memory:"
# The number of log pages (16 MiB) after which a commit copies the log to the file and waits for the
# disk. With SQLite's default of 1,000, copying took a sixth of the time of many small commits.
_LOG_PAGES = 4_000
# The number of pages that a backup copies before other commits may run.
_COPIED_PAGES = 4_096

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


def open_connection(
    path: Path | str, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open a connection of the class `factory` to a file. Any thread may use the connection."""
    return sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_MS_MAX / 1000,
        factory=factory,
    )


class SqliteTable:
    """A StateTable in the file `path`. A process must open the file only once, which nothing
    checks.

    A main connection, guarded by a lock, writes all rows, and reads while the lock is free. If the
    lock is taken, a read uses another connection. The thread with the lock also waits for the
    interpreter, so with ten threads each read would take ten times as long.
    """

    # A statement reads a snapshot of the file.
    snapshot_queries = True

    def __init__(
        self,
        path: Path | str,
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        connect: Callable[[Path | str], sqlite3.Connection] = open_connection,
    ) -> None:
        """Open or create the file. Raises Unavailable if the file cannot be used as a state
        table.

        Args:
            path: the file, or IN_MEMORY.
            synchronous: the durability of commits.
            connect: opens a connection to the file, the main connection first.
        """
        self._lock = threading.Lock()
        self._path = path
        self._connect = connect
        self._idle_readers: deque[sqlite3.Connection] = deque()
        try:
            self._db = connect(path)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute(f"pragma synchronous={synchronous}")
            self._db.execute(f"pragma wal_autocheckpoint={_LOG_PAGES}")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise _to_table_error(error) from error

    def close(self) -> None:
        """Close all connections. The table cannot be used afterwards."""
        with self._lock:
            self._db.close()
            while self._idle_readers:
                self._idle_readers.pop().close()

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""
        rows = self._read("select * from rows where partition=? and sort=?", key)
        return _to_row(rows[0]) if rows else None

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows in the order of `keys`. Return None for a missing row."""
        if not keys:
            return ()
        places = ",".join("(?,?)" for _ in keys)
        records = self._read(
            f"with wanted(p, s) as (values {places}) select rows.* from wanted"
            # SQLite does not reorder a cross join. With `in`, SQLite would scan the whole table.
            " cross join rows on partition=p and sort=s",
            tuple(chain.from_iterable(keys)),
        )
        rows = {row.key: row for row in map(_to_row, records)}
        return tuple(rows.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of a range of rows; see StateTable."""
        order = "desc" if descending else "asc"
        records = self._read(
            "select sort, revision, body, due_ms, shard from rows"
            f" where partition=? and sort>=? and sort<? order by sort {order} limit ?",
            (partition, first, last, limit + 1),
        )
        rows = [
            Row(Key(partition, sort), revision, body, due_ms, shard in EXPIRY_SHARDS)
            for sort, revision, body, due_ms, shard in records
        ]
        return page_of(rows, limit, descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return all `shards`, because reading a shard of a local file is cheap."""
        return tuple(shards)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read keys of a shard that are due after `after_ms` and at or before `until_ms`; see
        StateTable.
        """
        records = self._read(
            "select partition, sort from rows where shard=? and due_ms>? and due_ms<=?"
            " order by due_ms, partition, sort limit ?",
            (shard, after_ms, until_ms, limit),
        )
        return tuple(Key(partition, sort) for partition, sort in records)

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically; see StateTable."""
        check_limits(writes)
        with self._lock:
            try:
                self._roll_back()
                self._db.execute("begin immediate")
                for write in writes:
                    self._apply(write)
                self._db.execute("commit")
            except sqlite3.DatabaseError as error:
                raise _to_table_error(error) from error
            finally:
                # On a broken disk, the rollback may fail too. The next call tries again.
                with suppress(sqlite3.OperationalError):
                    self._roll_back()

    def _roll_back(self) -> None:
        """Roll back an open transaction, unless SQLite has done so already."""
        if self._db.in_transaction:
            self._db.execute("rollback")

    def _apply(self, write: Write) -> None:
        """Execute a write in the open transaction. Raises Conflict if the condition does not
        hold.
        """
        match write:
            case Put():
                self._put(write)
            case Delete(key, expect):
                where, values = _where_clause(key, expect)
                deleted = self._db.execute(f"delete from rows where {where}", values).rowcount
                if expect is Expect.ABSENT:
                    self._check(key, expect)
                elif deleted == 0 and expect is not Expect.ANYTHING:
                    raise Conflict(key)
            case Check(key, expect):
                self._check(key, expect)

    def _put(self, put: Put) -> None:
        """Execute a Put in the open transaction. Raises Conflict if the condition does not hold."""
        shard = shard_of_row(put)
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
        """Raise Conflict if the stored row does not meet the condition.

        - ANYTHING always holds.
        - ABSENT requires no row, and PRESENT a row of any revision.
        - An integer requires a row of the same revision.
        """
        stored = self._db.execute(
            "select revision from rows where partition=? and sort=?", key
        ).fetchone()
        match expect:
            case Expect.ANYTHING:
                holds = True
            case Expect.ABSENT:
                holds = stored is None
            case Expect.PRESENT:
                holds = stored is not None
            case revision:
                holds = stored is not None and stored[0] == revision
        if not holds:
            raise Conflict(key)

    def _read(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        """Execute a reading statement and return all result rows. Raises Unavailable."""
        try:
            # Only the main connection can see a database in memory, so wait for the lock there.
            if self._lock.acquire(blocking=self._path == IN_MEMORY):
                try:
                    self._roll_back()
                    return self._db.execute(statement, values).fetchall()
                finally:
                    self._lock.release()
            return self._read_on_other_connection(statement, values)
        except sqlite3.DatabaseError as error:
            raise _to_table_error(error) from error

    def _read_on_other_connection(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        """Execute a statement on an idle or new connection, which is kept for later reads."""
        try:
            reader = self._idle_readers.pop()
        except IndexError:
            reader = self._connect(self._path)
        try:
            return reader.execute(statement, values).fetchall()
        finally:
            self._idle_readers.append(reader)


def copy_table_file(source: Path, target: Path) -> None:
    """Copy a table's file at a single moment, and check the copy. The file may be in use.

    Raises Unavailable if the file is missing or unreadable, or if the copy is damaged. A missing
    file is not created.
    """
    try:
        with (
            closing(_open_existing(source)) as source_connection,
            closing(sqlite3.connect(target)) as copy,
        ):
            source_connection.backup(copy, pages=_COPIED_PAGES)
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"{source} cannot be copied: {error}") from error
    check_table_file(target)


def check_table_file(path: Path) -> None:
    """Raise Unavailable if the file is missing or unreadable, or SQLite's check finds damage."""
    try:
        with closing(_open_existing(path)) as database:
            report = database.execute("pragma integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        report = str(error)
    if report != "ok":
        raise Unavailable(f"the state table {path} is damaged: {report}")


def read_table_file(path: Path) -> Iterator[Row]:
    """Yield all rows of a table's file. Raises Unavailable if the file is missing or unreadable."""
    try:
        with closing(_open_existing(path)) as database:
            yield from map(_to_row, database.execute("select * from rows"))
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"{path} cannot be read: {error}") from error


def write_table_file(path: Path, rows: Iterable[Row]) -> None:
    """Create a table's file with the given rows. The file must not exist. Raises Unavailable."""
    with closing(SqliteTable(path)) as table, table._lock:
        values = ((*row.key, row.revision, row.body, row.due_ms, shard_of_row(row)) for row in rows)
        try:
            table._db.execute("begin immediate")
            table._db.executemany("insert into rows values(?,?,?,?,?,?)", values)
            table._db.execute("commit")
        except sqlite3.DatabaseError as error:
            raise Unavailable(f"{path} cannot be written: {error}") from error


def _open_existing(path: Path) -> sqlite3.Connection:
    """Open a file with SQLite; raise OperationalError for a missing file, which is not created."""
    place = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(place, uri=True, timeout=BUSY_MS_MAX / 1000)


def _to_table_error(error: sqlite3.DatabaseError) -> Exception:
    """Return Unavailable for an error that a caller may retry. Return other errors unchanged."""
    # For a damaged file, SQLite raises DatabaseError itself.
    kinds = (sqlite3.DatabaseError, sqlite3.OperationalError)
    return Unavailable(str(error)) if type(error) in kinds else error


def _where_clause(key: Key, expect: Expected) -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition that selects a row for deletion, and the parameter values.

    The condition for Expect.ABSENT selects no row.
    """
    if isinstance(expect, int):
        return "partition=? and sort=? and revision=?", (*key, expect)
    if expect is Expect.ABSENT:
        return "0", ()
    return "partition=? and sort=?", (*key,)


def _to_row(fields: tuple[Any, ...]) -> Row:
    """Build a Row from a record of the `rows` table."""
    partition, sort, revision, body, due_ms, shard = fields
    return Row(Key(partition, sort), revision, body, due_ms, shard in EXPIRY_SHARDS)
