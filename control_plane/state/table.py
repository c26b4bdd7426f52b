"""The StateTable protocol: a table of small rows, which are read by key or range and written in
all-or-nothing commits.

The limits are DynamoDB's, which are the narrowest of all backends. Every backend checks these
limits, so that a commit that passes on a laptop also passes in the cloud. Reads are strongly
consistent but are not snapshots: two rows of a query may be from different moments. Callers detect
this by the revisions of rows and never use locks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol
from zlib import crc32

# The due index has SHARDS shards for work, and as many shards for rows that only expire.
SHARDS = 16
WORK_SHARDS = range(SHARDS)
EXPIRY_SHARDS = range(SHARDS, 2 * SHARDS)
# A time before every due time.
NEVER_MS = -1
OPERATIONS_MAX = 100
# The maximum number of rows of a `get_many`.
GET_MAX = 100
# DynamoDB allows 4 MB. This lower limit also holds for backends that count bytes as base64.
COMMIT_BYTES_MAX = 3_000_000
ROW_BYTES_MAX = 400 * 1024
PARTITION_BYTES_MAX = 2048
_SURROGATES = re.compile("[\ud800-\udfff]")
PAGE_BYTES_MAX = 1024 * 1024
SORT_BYTES_MAX = 1024


class Key(NamedTuple):
    """A row's key. The rows of a partition are sorted by the UTF-8 bytes of `sort`."""

    partition: str
    sort: str


class Expect(Enum):
    """A condition on a row before the commit."""

    ANYTHING = "anything"
    ABSENT = "absent"
    PRESENT = "present"


Expected = Expect | int
"""A condition, or an integer for the revision that the stored row must have."""


def is_met(expect: Expected, revision: int | None) -> bool:
    """Return whether a stored row with this revision, or None for no row, meets the condition."""
    match expect:
        case Expect.ANYTHING:
            return True
        case Expect.ABSENT:
            return revision is None
        case Expect.PRESENT:
            return revision is not None
    return revision == expect


class Row(NamedTuple):
    """A stored row. A named tuple, because lists build thousands."""

    key: Key
    revision: int
    """A number that the writer of the row chooses. Conditions compare the stored revision."""
    body: bytes
    due_ms: int | None = None
    """The time in epoch ms at which the due index returns the row. None keeps the row out of the
    index.
    """
    expires: bool = False
    """Whether the row expires at `due_ms`. Such rows are in the expiry shards of the index, not in
    the work shards.
    """


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a whole row if `expect` holds. The fields are those of `Row`."""

    key: Key
    revision: int
    body: bytes
    expect: Expected
    """The condition on the stored row with this key."""
    due_ms: int | None = None
    expires: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a row if `expect` holds. Without a condition, deleting a missing row is no error."""

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
    """A part of a range of rows, in the order of the query."""

    rows: tuple[Row, ...]
    next_sort: str | None
    """The sort key for the next query (see `StateTable.query`). None if the range has no further
    rows.
    """


class TableError(Exception):
    """A failure of the table. The base class of all errors of state tables."""


class Conflict(TableError):
    """A condition on row `key` did not hold. Nothing was written."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"the condition on row {key.partition} / {key.sort} did not hold")
        self.key = key


class Unavailable(TableError):
    """The table did not answer, because of throttling, a timeout or a closed connection.

    A commit that raises this error may or may not have happened.
    """


class InvalidCommit(TableError):
    """A commit exceeds a limit of the table and can never succeed. The caller is at fault."""


class StateTable(Protocol):
    """A table of rows. Threads and processes may call an implementation at the same time."""

    @property
    def snapshot_queries(self) -> bool:
        """Whether all rows of a page are from the same moment.

        If not, readers of related rows must check for torn reads, as engine/reader.py does.
        """

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read at most GET_MAX rows, in the order of `keys`. The entry of a missing row is None.

        The rows may be from different moments. Not every table checks the number of keys.
        """

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read rows with `first` <= sort < `last`: at most `limit` rows and about 1 MiB.

        A page is not a snapshot: rows of a page may be from different moments. To read the next
        page, pass `next_sort` as `first`, or as `last` if the query is `descending`. After the last
        page, `next_sort` is None.
        """

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return the `shards` that may have rows due at or before `until_ms`, in the given order.

        Return all `shards` if asking the backend costs as much as reading each shard.
        """

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read at most `limit` keys of a shard that are due after `after_ms` and at or before
        `until_ms`, earliest first.

        The default of `after_ms` excludes no row. The index may lag behind the rows: a returned row
        may be deleted or no longer due.
        """

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically: either all of them or no write.

        Raises Conflict if a condition does not hold, Unavailable if the outcome is unknown, and
        InvalidCommit if a limit is exceeded. A commit without writes, or with two writes of a row,
        is invalid too. After Unavailable, the caller may repeat the commit if the caller's
        conditions make the repetition safe.
        """


def is_unconditional_check(write: Write) -> bool:
    """Return whether a write is a check without a condition, which has no effect."""
    return isinstance(write, Check) and write.expect is Expect.ANYTHING


def shard_of(partition: str, *, expires: bool = False) -> int:
    """Return the shard of the due index for a partition: an expiry shard with `expires`, else a
    work shard.
    """
    shards = EXPIRY_SHARDS if expires else WORK_SHARDS
    return shards[crc32(partition.encode()) % SHARDS]


def shard_of_row(row: Row | Put) -> int | None:
    """Return the shard of the due index for a row. None for a row outside of the index."""
    if row.due_ms is None:
        return None
    return shard_of(row.key.partition, expires=row.expires)


def row_bytes(key: Key, body: bytes) -> int:
    """Return the size of a row in bytes for the limits: key, body, and 64 bytes for numbers."""
    return _utf8_bytes(key.partition) + _utf8_bytes(key.sort) + len(body) + 64


def page_row_count(rows: Sequence[Row]) -> int:
    """Return the number of leading rows that fit into a page: at least 1, or 0 without rows."""
    size = 0
    for n, row in enumerate(rows):
        size += len(row.body)
        if size > PAGE_BYTES_MAX and n:
            return n
    return len(rows)


def page_of(rows: Sequence[Row], limit: int, descending: bool) -> Page:
    """Build a page of at most `limit` of the rows that were read, as many as fit into a page.

    Args:
        rows: the rows in the order of the query. The caller reads up to `limit` + 1 rows, so that
            the last row shows where the next page begins.
    """
    page = tuple(rows[: min(limit, page_row_count(rows))])
    if len(page) == len(rows):
        return Page(page, None)
    return Page(page, page[-1].key.sort if descending else rows[len(page)].key.sort)


def check_limits(writes: Sequence[Write]) -> None:
    """Raise InvalidCommit if any backend would reject this commit.

    The number of writes, the keys, the size of each row and the total size are checked. A commit
    may write a row only once.
    """
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
    """Raise InvalidCommit for an empty or too long key, and for half of a surrogate pair."""
    for text in key:
        if not text.isascii() and _SURROGATES.search(text):
            raise InvalidCommit(f"key {text[:40]!a} has half of a surrogate pair")
    if not key.partition or _utf8_bytes(key.partition) > PARTITION_BYTES_MAX:
        raise InvalidCommit(f"partition {key.partition[:40]!r} is empty or too long")
    if not key.sort or _utf8_bytes(key.sort) > SORT_BYTES_MAX:
        raise InvalidCommit(f"sort key {key.sort[:40]!r} is empty or too long")


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
