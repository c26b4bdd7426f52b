"""A StateTable on PostgreSQL 15 or later.

A commit locks the names of its rows by advisory locks of its transaction, in the order of their
numbers. Commits that name a common row therefore run one after the other, and no deadlock is
possible. A lock on the stored row would not be enough, because a condition may require that a row
is missing. The second statement of a commit reads the revisions under these locks. This process
compares the conditions.

Reads are single statements outside of transactions. PostgreSQL runs each statement on a snapshot.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.sql import SQL
from psycopg_pool import ConnectionPool

from control_plane.state.retry_pauses import RetryPauses
from control_plane.state.table import (
    EXPIRY_SHARDS,
    NEVER_MS,
    Check,
    Conflict,
    Delete,
    Key,
    Page,
    Put,
    Row,
    Unavailable,
    Write,
    check_limits,
    is_met,
    is_unconditional_check,
    page_of,
    shard_of_row,
)

CONNECTIONS_MAX = 16
"""The connections of a server. PostgreSQL allows 100 to all servers by default."""
WAIT_SECONDS_MAX = 10
"""The longest wait for a connection, and for the locks of other commits."""
START_SECONDS_MAX = 60
"""The longest wait of a starting server for the start of another server."""
STATEMENT_SECONDS_MAX = 30
"""The longest time of a statement, and of a transaction whose server does nothing."""

END_DEAD_CONNECTIONS = """
set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3
"""
"""Let the database end this connection soon after the death of the machine."""

_PARAMETERS: dict[str, Any] = {"autocommit": True, "connect_timeout": WAIT_SECONDS_MAX}

_Connection = psycopg.Connection[Any]
_Record = tuple[Any, ...]
_Begun = TypeVar("_Begun")
_Result = TypeVar("_Result")

# Lost connections, ended waits, full disks, and servers that have become read-only.
_FAILURES = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)

# Keys are bytes, because PostgreSQL's text cannot contain NUL and has an order that depends on the
# database. The primary key has a digest of the partition, because two long names exceed an index
# entry. PostgreSQL must not compress bodies, since most bodies are compressed already.
_SCHEMA = """
create table detcloud_rows(
  partition_digest bytea not null, sort bytea not null, partition bytea not null,
  revision bigint not null, body bytea not null, due_ms bigint, shard smallint,
  primary key(partition_digest, sort))
  with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
alter table detcloud_rows alter column body set storage external;
create index detcloud_rows_due on detcloud_rows(shard, due_ms) where due_ms is not null;
"""
_FIELDS = "partition, sort, revision, body, due_ms, shard"
# A lateral join reads the index once for each key, also without statistics of the table.
_LOOK_UP = """
from unnest(%s::bytea[], %s::bytea[]) as wanted(digest, name)
cross join lateral (
  select * from detcloud_rows where partition_digest = digest and sort = name offset 0
) as found
"""
_GET = f"select {_FIELDS} {_LOOK_UP}"
_READ_REVISIONS = f"select partition, sort, revision {_LOOK_UP}"
_QUERY = f"""
select {_FIELDS} from detcloud_rows where partition_digest = %s and sort >= %s and sort < %s
order by sort
"""
_DUE_SHARDS = """
select wanted from unnest(%s::smallint[]) as wanted
where exists (select from detcloud_rows where shard = wanted and due_ms <= %s)
"""
_DUE_KEYS = """
select partition, sort from detcloud_rows where shard = %s and due_ms > %s and due_ms <= %s
order by due_ms, partition, sort limit %s
"""
_LOCK = """
select case when is_write then pg_advisory_xact_lock(name) else pg_advisory_xact_lock_shared(name)
end from unnest(%s::bigint[], %s::boolean[]) as locks(name, is_write)
"""
# PostgreSQL shows the number of an advisory lock in two halves.
_COUNT_CLAIMS = """
select count(distinct pid) from pg_locks
where locktype = 'advisory' and granted and mode = 'ShareLock' and objsubid = 1
  and database = (select oid from pg_database where datname = current_database())
  and (classid::bigint << 32) | objid::bigint = %s
"""
_PUT = """
insert into detcloud_rows(partition_digest, sort, partition, revision, body, due_ms, shard)
select * from unnest(
  %s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[], %s::bytea[], %s::bigint[], %s::smallint[])
on conflict (partition_digest, sort) do update set
  revision = excluded.revision, body = excluded.body, due_ms = excluded.due_ms,
  shard = excluded.shard
"""
_COPY = """
copy detcloud_rows(partition_digest, sort, partition, revision, body, due_ms, shard)
from stdin (format binary)
"""
_DELETE = """
delete from detcloud_rows using unnest(%s::bytea[], %s::bytea[]) as gone(digest, name)
where partition_digest = digest and sort = name
"""


class PostgresTable:
    """A StateTable in the table `detcloud_rows` of a database.

    The first schema of the connections' search path has the table, so that a database may have the
    states of several clusters.
    """

    # A statement reads a snapshot of the database.
    snapshot_queries = True

    def __init__(
        self,
        conninfo: str,
        *,
        connections_max: int = CONNECTIONS_MAX,
        connection_class: type[_Connection] = psycopg.Connection,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to a database, and create a missing table. Raises Unavailable.

        Args:
            conninfo: a URL `postgresql://...`, or the parameters of libpq as text.
            connections_max: the most connections at a time.
            connection_class: the class of the connections.
            sleep: waits for a number of seconds, before a read is repeated.
        """
        self._conninfo = conninfo
        self._sleep = sleep
        # An error outside of the pool names the cause, for example a wrong password.
        try:
            with psycopg.connect(conninfo, **_PARAMETERS) as connection:
                self._schema = _create_table(connection)
        except psycopg.Error as error:
            raise Unavailable(str(error).strip()) from error
        self._pool = ConnectionPool(
            conninfo,
            connection_class=connection_class,
            kwargs=_PARAMETERS,
            configure=_configure,
            min_size=1,
            max_size=connections_max,
            timeout=WAIT_SECONDS_MAX,
            name="state",
            open=True,
        )

    def close(self) -> None:
        """Close all connections. The table cannot be used afterwards."""
        self._pool.close()

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows in the order of `keys`. Return None for a missing row."""
        if not keys:
            return ()
        rows = {row.key: row for row in map(_to_row, self._read(_GET, _key_arrays(keys)))}
        return tuple(rows.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of a range of rows; see StateTable."""
        order = " desc limit %s" if descending else " limit %s"
        values = (_digest(partition), first.encode(), last.encode(), limit + 1)
        return page_of(list(map(_to_row, self._read(_QUERY + order, values))), limit, descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return the `shards` that have rows due at or before `until_ms`, in the given order."""
        found = {shard for (shard,) in self._read(_DUE_SHARDS, (list(shards), until_ms))}
        return tuple(shard for shard in shards if shard in found)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read keys of a shard that are due after `after_ms` and at or before `until_ms`; see
        StateTable.
        """
        records = self._read(_DUE_KEYS, (shard, after_ms, until_ms, limit))
        return tuple(Key(partition.decode(), sort.decode()) for partition, sort in records)

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically; see StateTable.

        A transaction whose connection is lost before the first write is repeated.
        """
        check_limits(writes)
        effective = [write for write in writes if not is_unconditional_check(write)]
        if not effective:
            return

        def begin(connection: _Connection) -> dict[Key, int]:
            return _lock_and_read(connection, self._schema, effective)

        def finish(connection: _Connection, revisions: dict[Key, int]) -> None:
            for write in effective:
                if not is_met(write.expect, revisions.get(write.key)):
                    raise Conflict(write.key)
            _write(connection, effective)

        self._run(begin, finish)

    def has_rows(self) -> bool:
        """Return whether the table has any row. Raises Unavailable."""
        return self._read("select exists (select from detcloud_rows)", ()) == [(True,)]

    def size_bytes(self) -> int:
        """Return the size of all rows and indexes on the disk."""
        [[size]] = self._read("select pg_total_relation_size('detcloud_rows')", ())
        return int(size)

    def read_all(self) -> Iterator[Row]:
        """Yield all rows of a single moment, in no particular order. Raises Unavailable."""
        with self._own_connection() as connection, connection.transaction():
            connection.execute("set local statement_timeout = 0")
            # A named cursor reads the rows in parts.
            with connection.cursor("all_rows", binary=True) as cursor:
                cursor.execute(f"select {_FIELDS} from detcloud_rows")
                yield from map(_to_row, cursor)

    def replace_all(self, rows: Iterable[Row]) -> None:
        """Replace all rows in a single transaction. Other connections wait. Raises Unavailable."""
        with self._own_connection() as connection, connection.transaction():
            connection.execute("set local statement_timeout = 0")
            connection.execute("truncate detcloud_rows")
            with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                copy.set_types(("bytea", "bytea", "bytea", "int8", "bytea", "int8", "int2"))
                for row in rows:
                    copy.write_row([column[0] for column in _to_columns([row])])

    def drop(self) -> None:
        """Delete the table from the database. Raises Unavailable."""
        with self._own_connection() as connection:
            connection.execute("drop table if exists detcloud_rows")

    @property
    def schema(self) -> str:
        """The schema of the table."""
        return self._schema

    @contextmanager
    def claim(self, *, is_shared: bool = False) -> Iterator[bool]:
        """Claim the table during the block. Yield False if another claim excludes this claim.

        Shared claims exclude only exclusive claims. The claim is a lock of a separate connection,
        which the database releases after the end of the process. Raises Unavailable.
        """
        with self._own_connection() as connection:
            connection.execute(END_DEAD_CONNECTIONS)
            yield try_claim(connection, self._schema, is_shared=is_shared)

    @contextmanager
    def claim_name(self, name: str) -> Iterator[bool]:
        """Claim a name during the block. Yield False if another connection has the name.

        Raises Unavailable.
        """
        with self._own_connection() as connection:
            connection.execute(END_DEAD_CONNECTIONS)
            number = _lock_number(self._schema, "name", name)
            found = connection.execute("select pg_try_advisory_lock(%s)", (number,)).fetchone()
            yield found == (True,)

    def count_shared_claims(self) -> int:
        """Return the number of connections with a shared claim. Raises Unavailable."""
        [[count]] = self._read(_COUNT_CLAIMS, (_lock_number(self._schema, "server"),))
        return int(count)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let no other server start during the block. Wait first for another server's start.

        Raises Unavailable, also after a wait of START_SECONDS_MAX.
        """
        with self._own_connection() as connection:
            connection.execute(f"set lock_timeout = '{START_SECONDS_MAX}s'")
            connection.execute("set statement_timeout = 0")
            number = _lock_number(self._schema, "start")
            connection.execute("select pg_advisory_lock(%s)", (number,))
            yield

    @contextmanager
    def _own_connection(self) -> Iterator[_Connection]:
        """Open a connection outside of the pool for the block. Raises Unavailable."""
        try:
            with psycopg.connect(self._conninfo, **_PARAMETERS) as connection:
                _configure(connection)
                yield connection
        except _FAILURES as error:
            raise Unavailable(str(error).strip()) from error

    def _read(self, statement: LiteralString, values: Sequence[object]) -> list[_Record]:
        """Execute a reading statement and return all records. Raises Unavailable.

        A statement whose connection is lost is executed again.
        """

        def begin(connection: _Connection) -> list[_Record]:
            with connection.cursor(binary=True) as cursor:
                return cursor.execute(statement, values).fetchall()

        return self._run(begin, lambda _, records: records)

    def _run(
        self,
        begin: Callable[[_Connection], _Begun],
        finish: Callable[[_Connection, _Begun], _Result],
    ) -> _Result:
        """Call `begin` and then `finish` with a connection; return the result of `finish`.

        If `begin` loses the connection, call `begin` again with another connection, until the
        pauses end. After an error, an open transaction of the connection is rolled back. Raises
        Unavailable for a failure of the database, and the other errors of both functions.
        """
        pauses = RetryPauses(self._sleep)
        while True:
            connection, has_begun = None, False
            try:
                with self._pool.connection() as connection:
                    begun = begin(connection)
                    has_begun = True
                    return finish(connection, begun)
            except _FAILURES as error:
                trouble = str(error).strip()
                if has_begun or connection is None or not connection.closed:
                    raise Unavailable(trouble) from error
            # After a restart of the database, all idle connections are lost.
            self._pool.check()
            pauses.wait(trouble)


def try_claim(connection: _Connection, schema: str, *, is_shared: bool) -> bool:
    """Claim the table in a schema for the time of a connection. Return False if another claim
    excludes this claim.
    """
    suffix = "_shared" if is_shared else ""
    number = _lock_number(schema, "server")
    lock = SQL("select pg_try_advisory_lock{}(%s)").format(SQL(suffix))
    return connection.execute(lock, (number,)).fetchone() == (True,)


def _configure(connection: _Connection) -> None:
    """Prepare a new connection: durable commits, and bounds of every wait."""
    connection.execute(
        f"""
        set synchronous_commit = on;
        set lock_timeout = '{WAIT_SECONDS_MAX}s';
        set statement_timeout = '{STATEMENT_SECONDS_MAX}s';
        set idle_in_transaction_session_timeout = '{STATEMENT_SECONDS_MAX}s';
        """
    )


def _create_table(connection: _Connection) -> str:
    """Create a missing table with an index of due rows. Return the current schema.

    An administrator may have created the table for a role that may create none.
    """
    with connection.transaction():
        [[schema]] = connection.execute("select coalesce(current_schema(), '')").fetchall()
        # Two starting servers must not both create the table.
        number = _lock_number(schema, "table")
        connection.execute("select pg_advisory_xact_lock(%s)", (number,))
        if connection.execute("select to_regclass('detcloud_rows')").fetchone() == (None,):
            connection.execute(_SCHEMA)
    return str(schema)


def _lock_and_read(connection: _Connection, schema: str, writes: Sequence[Write]) -> dict[Key, int]:
    """Begin a transaction and lock all rows of `writes`. Return the revisions of the stored rows.

    A check shares the lock of its row with other checks.
    """
    locks: dict[int, bool] = {}
    for write in writes:
        number = _lock_number(schema, *write.key)
        locks[number] = locks.get(number, False) or not isinstance(write, Check)
    numbers = sorted(locks)
    with connection.pipeline(), connection.cursor(binary=True) as cursor:
        cursor.execute("begin isolation level read committed")
        cursor.execute(_LOCK, (numbers, [locks[number] for number in numbers]))
        cursor.execute(_READ_REVISIONS, _key_arrays([write.key for write in writes]))
        records = cursor.fetchall()
    return {
        Key(partition.decode(), sort.decode()): revision for partition, sort, revision in records
    }


def _write(connection: _Connection, writes: Sequence[Write]) -> None:
    """Execute the writes, and commit the open transaction."""
    puts = [write for write in writes if isinstance(write, Put)]
    deleted = [write.key for write in writes if isinstance(write, Delete)]
    with connection.pipeline():
        if puts:
            connection.execute(_PUT, _to_columns(puts))
        if deleted:
            connection.execute(_DELETE, _key_arrays(deleted))
        connection.execute("commit")


def _to_columns(puts: Sequence[Put | Row]) -> tuple[list[Any], ...]:
    """Return the values of rows by column, in the order of _PUT and _COPY."""
    return (
        *_key_arrays([put.key for put in puts]),
        [put.key.partition.encode() for put in puts],
        [put.revision for put in puts],
        [put.body for put in puts],
        [put.due_ms for put in puts],
        [shard_of_row(put) for put in puts],
    )


def _key_arrays(keys: Sequence[Key]) -> tuple[list[bytes], list[bytes]]:
    """Return the digests of the partitions, and the sort keys, as bytes."""
    return [_digest(key.partition) for key in keys], [key.sort.encode() for key in keys]


def _digest(partition: str) -> bytes:
    """Return the digest that stands for a partition in the primary key."""
    return blake2b(partition.encode(), digest_size=16).digest()


def _lock_number(*names: str) -> int:
    """Return the number of an advisory lock, a signed integer of 64 bits.

    The number is a digest of the names. The first name is the schema, because all clusters of a
    database share the numbers. Two locks may have one number. Their commits then wait for each
    other, which does no harm.
    """
    text = "\0".join(names)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _to_row(record: _Record) -> Row:
    """Build a Row from a record of the table."""
    partition, sort, revision, body, due_ms, shard = record
    key = Key(partition.decode(), sort.decode())
    return Row(key, revision, body, due_ms, shard in EXPIRY_SHARDS)
