"""The StateTable seam: one table of small rows, read by key or range, written in all-or-nothing
commits.

The limits are DynamoDB's, the narrowest of the backends, and hold on every one of them: what
passes on a laptop passes in the cloud. Reads are strongly consistent but no snapshots: two rows
of one query may be of different moments. Callers hold that together with row revisions, never
with locks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol
from zlib import crc32

SHARDS = 16
OPERATIONS_MAX = 100
# Rows of one `get_many`.
GET_MAX = 100
# DynamoDB takes 4 MB; so much also fits where bytes count as the base64 that carries them.
COMMIT_BYTES_MAX = 3_000_000
ROW_BYTES_MAX = 400 * 1024
PARTITION_BYTES_MAX = 2048
PAGE_BYTES_MAX = 1024 * 1024
SORT_BYTES_MAX = 1024


class Key(NamedTuple):
    """Names a row: rows of one `partition` are ordered by `sort`, compared as UTF-8 bytes."""

    partition: str
    sort: str


class Expect(Enum):
    """A condition on a row as it stands before the commit; an integer expects that revision."""

    ANYTHING = "anything"
    ABSENT = "absent"
    PRESENT = "present"


Expected = Expect | int


@dataclass(frozen=True, slots=True)
class Row:
    """A stored row. `due_ms` (epoch ms) puts it into the due index; `revision` is the writer's to
    choose.
    """

    key: Key
    revision: int
    body: bytes
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a whole row if `expect` holds."""

    key: Key
    revision: int
    body: bytes
    expect: Expected
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a row if `expect` holds; without a condition, removing an absent row is no error."""

    key: Key
    expect: Expected


@dataclass(frozen=True, slots=True)
class Check:
    """Writes nothing, but fails the commit unless `expect` holds."""

    key: Key
    expect: Expected


Write = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a range in sort order. `next_sort` is the place to go on from, None at the end."""

    rows: tuple[Row, ...]
    next_sort: str | None


class TableError(Exception):
    """Any failure of the table."""


class Conflict(TableError):
    """A condition did not hold: nothing was written."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"the condition on row {key.partition} / {key.sort} did not hold")
        self.key = key


class Unavailable(TableError):
    """The table did not answer (throttled, timed out, broken off): the commit may or may not have
    happened.
    """


class CommitRefused(TableError):
    """The commit breaks a limit of the table and can never succeed: a fault of the caller."""


class StateTable(Protocol):
    """A table of rows. Implementations are safe to call from several threads and processes at
    once.
    """

    @property
    def snapshot_queries(self) -> bool:
        """Whether a page of a query is of one moment, which spares its reader a second look."""

    def get(self, key: Key) -> Row | None:
        """The row as of now, or None."""

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """The same for at most GET_MAX keys, each as of its own moment."""

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Rows with `first` <= sort < `last`, at most `limit` of them and about 1 MiB.

        A page is not a snapshot: a row of it may be older or newer than its neighbour.
        With `descending`, go on with `last` = next_sort, else with `first` = next_sort.
        """

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """Keys of rows of the shard that are due at or before `until_ms`, earliest first.

        The index may lag behind the rows: a key can be gone or no longer due.
        """

    def commit(self, writes: Sequence[Write]) -> None:
        """All writes or none.

        Raises Conflict if a condition does not hold, Unavailable if the outcome is unknown,
        CommitRefused if a limit is broken. Retrying after Unavailable is the caller's to decide,
        by its own conditions.
        """


def asks_nothing(write: Write) -> bool:
    """Whether a commit is the same without it."""
    return isinstance(write, Check) and write.expect is Expect.ANYTHING


def shard_of(partition: str) -> int:
    """The shard of the due index that a partition's rows fall into."""
    return crc32(partition.encode()) % SHARDS


def stored_bytes(key: Key, body: bytes) -> int:
    """Bytes a row counts for: its keys, its body and its numbers."""
    return _utf8_bytes(key.partition) + _utf8_bytes(key.sort) + len(body) + 64


def within_page(rows: Sequence[Row]) -> int:
    """How many of the rows one page holds, from the first: one at least, if there are any."""
    size = 0
    for n, row in enumerate(rows):
        size += len(row.body)
        if size > PAGE_BYTES_MAX and n:
            return n
    return len(rows)


def check_limits(writes: Sequence[Write]) -> None:
    """Raises CommitRefused unless every backend could take this commit."""
    if not 0 < len(writes) <= OPERATIONS_MAX:
        raise CommitRefused(f"{len(writes)} operations in a commit; 1 to {OPERATIONS_MAX} fit")
    keys = {write.key for write in writes}
    if len(keys) != len(writes):
        raise CommitRefused("two operations on one row in a commit")
    total = 0
    for write in writes:
        _check_key(write.key)
        if isinstance(write, Put):
            size = stored_bytes(write.key, write.body)
            if size > ROW_BYTES_MAX:
                raise CommitRefused(f"row {write.key} has {size} bytes; {ROW_BYTES_MAX} fit")
            total += size
    if total > COMMIT_BYTES_MAX:
        raise CommitRefused(f"{total} bytes in a commit; {COMMIT_BYTES_MAX} fit")


def _check_key(key: Key) -> None:
    if not key.partition or _utf8_bytes(key.partition) > PARTITION_BYTES_MAX:
        raise CommitRefused(f"partition {key.partition[:40]!r} is empty or too long")
    if not key.sort or _utf8_bytes(key.sort) > SORT_BYTES_MAX:
        raise CommitRefused(f"sort key {key.sort[:40]!r} is empty or too long")


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
