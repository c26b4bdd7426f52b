"""The StateTable seam: one table of small rows, read by key or range, written in all-or-nothing
commits.

The limits are DynamoDB's, the narrowest of the backends, and every backend checks them: a commit
that passes on a laptop passes in the cloud. Reads are strongly consistent but no snapshots: two
rows of one query may be of different moments. Callers detect this by row revisions, never with
locks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol
from zlib import crc32

# The due index has so many shards of work, and then as many of rows that only expire.
SHARDS = 16
WORK_SHARDS = range(SHARDS)
EXPIRY_SHARDS = range(SHARDS, 2 * SHARDS)
# A time before all others.
NEVER_MS = -1
OPERATIONS_MAX = 100
# Rows of one `get_many`.
GET_MAX = 100
# DynamoDB takes 4 MB; this also fits where bytes are counted as base64.
COMMIT_BYTES_MAX = 3_000_000
ROW_BYTES_MAX = 400 * 1024
PARTITION_BYTES_MAX = 2048
PAGE_BYTES_MAX = 1024 * 1024
SORT_BYTES_MAX = 1024


class Key(NamedTuple):
    """A row's key. Rows of one `partition` are ordered by `sort`, compared as UTF-8 bytes."""

    partition: str
    sort: str


class Expect(Enum):
    """A condition on a row before the commit. An integer instead of it expects that revision."""

    ANYTHING = "anything"
    ABSENT = "absent"
    PRESENT = "present"


Expected = Expect | int


@dataclass(frozen=True, slots=True)
class Row:
    """A stored row. Its writer chooses `revision`. A row with `due_ms` (epoch ms) is in the due
    index; one that `expires` then is no work, and in shards of its own.
    """

    key: Key
    revision: int
    body: bytes
    due_ms: int | None = None
    expires: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a whole row if `expect` holds."""

    key: Key
    revision: int
    body: bytes
    expect: Expected
    due_ms: int | None = None
    expires: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a row if `expect` holds; without a condition, deleting an absent row is no error."""

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
    """A part of a range, in sort order. The next one starts at `next_sort`, None at the end."""

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


class InvalidCommit(TableError):
    """A commit that breaks a limit of the table and can never succeed: a fault of the caller."""


class StateTable(Protocol):
    """A table of rows. Implementations are safe to call from several threads and processes at
    once.
    """

    @property
    def snapshot_queries(self) -> bool:
        """Whether all rows of a page are of one moment, so that its reader need not read twice."""

    def get(self, key: Key) -> Row | None:
        """Read a row, or None."""

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read at most GET_MAX rows in the order of their keys, each as of its own moment; None for
        one that does not exist.
        """

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read rows with `first` <= sort < `last`, at most `limit` of them and about 1 MiB.

        A page is not a snapshot: a row of it may be older or newer than its neighbour. The next
        page has `first` = next_sort, or with `descending` `last` = next_sort.
        """

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return, in their order, those of `shards` in which the index may have rows that are due
        at or before `until_ms`: all of them where to ask costs as much as to read each.
        """

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read the keys of a shard's rows that are due after `after_ms`, and at or before
        `until_ms`, earliest first.

        The index may lag behind the rows: a key can be gone or no longer due.
        """

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes or none.

        Raises Conflict if a condition does not hold, Unavailable if the outcome is unknown,
        InvalidCommit if a limit is broken. The caller decides, by its own conditions, whether to
        repeat the commit after Unavailable.
        """


def is_unconditional_check(write: Write) -> bool:
    """Whether a write is a check without a condition, which changes nothing about a commit."""
    return isinstance(write, Check) and write.expect is Expect.ANYTHING


def shard_of(partition: str, *, expires: bool = False) -> int:
    """The shard of the due index that a partition's rows are in: its work, or what `expires`."""
    shards = EXPIRY_SHARDS if expires else WORK_SHARDS
    return shards[crc32(partition.encode()) % SHARDS]


def row_bytes(key: Key, body: bytes) -> int:
    """The bytes that a row counts for: its key, its body and its numbers."""
    return _utf8_bytes(key.partition) + _utf8_bytes(key.sort) + len(body) + 64


def page_row_count(rows: Sequence[Row]) -> int:
    """The number of the rows, from the first, that fit into a page: at least one, if there are
    any.
    """
    size = 0
    for n, row in enumerate(rows):
        size += len(row.body)
        if size > PAGE_BYTES_MAX and n:
            return n
    return len(rows)


def page_of(rows: Sequence[Row], limit: int, descending: bool) -> Page:
    """Make a page of the first rows that were found: `limit` at most, and as many as fit. One more
    row shows where the next page begins.
    """
    page = tuple(rows[: min(limit, page_row_count(rows))])
    if len(page) == len(rows):
        return Page(page, None)
    return Page(page, page[-1].key.sort if descending else rows[len(page)].key.sort)


def check_limits(writes: Sequence[Write]) -> None:
    """Raise InvalidCommit unless every backend could take this commit."""
    if not 0 < len(writes) <= OPERATIONS_MAX:
        raise InvalidCommit(
            f"{len(writes)} operations in a commit; 1 to {OPERATIONS_MAX} are allowed"
        )
    keys = {write.key for write in writes}
    if len(keys) != len(writes):
        raise InvalidCommit("two operations on one row in a commit")
    total = 0
    for write in writes:
        _check_key(write.key)
        if isinstance(write, Put):
            size = row_bytes(write.key, write.body)
            if size > ROW_BYTES_MAX:
                raise InvalidCommit(
                    f"row {write.key.partition} / {write.key.sort} has {size} bytes; at most "
                    f"{ROW_BYTES_MAX} are allowed in a row"
                )
            total += size
    if total > COMMIT_BYTES_MAX:
        raise InvalidCommit(f"{total} bytes in a commit; at most {COMMIT_BYTES_MAX} are allowed")


def _check_key(key: Key) -> None:
    if not key.partition or _utf8_bytes(key.partition) > PARTITION_BYTES_MAX:
        raise InvalidCommit(f"partition {key.partition[:40]!r} is empty or too long")
    if not key.sort or _utf8_bytes(key.sort) > SORT_BYTES_MAX:
        raise InvalidCommit(f"sort key {key.sort[:40]!r} is empty or too long")


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
