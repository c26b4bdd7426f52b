"""Reading an actor: its head, its mailbox and its parts, none of which is a snapshot.

The head is read first. A part carries the head's revision that wrote it, so a part newer than the
head shows that the reading is torn; one that is older cannot be seen after the head was. What the
cache holds is valid exactly while the head's revision is the one it was taken at, since every
write of a part bumps the head.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from control_plane.actors.step import RowSeen
from control_plane.dispatch.fold import Fold, Snapshot
from control_plane.dispatch.head import HEAD, PARTS, Header, decode_head
from control_plane.dispatch.kinds import kind_at
from control_plane.dispatch.mailbox import (
    FIRST,
    MAIL,
    MAIL_END,
    TIMERS,
    UNKNOWN,
    Mail,
    read_mail,
)
from control_plane.state.table import Key, Row, StateTable

MAIL_MAX = 100
CACHED_ACTORS_MAX = 2_000


class Torn(Exception):
    """What was read is of different moments: read again."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An actor, its mail in order, and its parts as far as they were read."""

    snapshot: Snapshot
    mail: tuple[Mail, ...]
    parts: dict[str, object | None] = field(default_factory=dict)


class Cache:
    """Decoded actors by address, each valid for one revision of its head."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[Snapshot, dict[str, object | None]]] = OrderedDict()

    def get(self, address: str, revision: int) -> tuple[Snapshot, dict[str, object | None]] | None:
        """The actor at that revision, if it is kept."""
        with self._lock:
            found = self._kept.get(address)
            return found if found and found[0].revision == revision else None

    def latest(self, address: str) -> Snapshot | None:
        """The actor as it was kept last: somebody else may have advanced it since."""
        with self._lock:
            found = self._kept.get(address)
            return None if found is None else found[0]

    def put(self, snapshot: Snapshot, parts: dict[str, object | None]) -> None:
        """Keeps an actor as a commit has left it."""
        with self._lock:
            self._kept[snapshot.address] = (snapshot, parts)
            self._kept.move_to_end(snapshot.address)
            while len(self._kept) > CACHED_ACTORS_MAX:
                self._kept.popitem(last=False)

    def keep(self, snapshot: Snapshot) -> None:
        """Keeps an actor as it was read, unless it is known to have moved on since."""
        with self._lock:
            kept = self._kept.get(snapshot.address)
            if kept is not None and kept[0].revision >= snapshot.revision:
                return
        self.put(snapshot, {})


def load(table: StateTable, cache: Cache, address: str, timers_until_ms: int | None) -> Reading:
    """The actor with its mail and, if asked for, its timers due until then. Raises Torn."""
    rows = table.query(address, HEAD, MAIL_END, limit=1 + MAIL_MAX).rows
    has_head = bool(rows) and rows[0].key.sort == HEAD
    snapshot, parts = snapshot_of(cache, address, rows[0] if has_head else None)
    mail = tuple(read_mail(row) for row in rows[has_head:])
    if not table.snapshot_queries:
        mail = _completed(table, address, mail)
    if timers_until_ms is not None:
        last = f"{TIMERS}{timers_until_ms:014d}~"
        due = table.query(address, TIMERS, last, limit=MAIL_MAX).rows
        mail = (*mail, *(read_mail(row) for row in due))
    return Reading(snapshot, mail, parts)


def snapshot_of(
    cache: Cache, address: str, row: Row | None
) -> tuple[Snapshot, dict[str, object | None]]:
    """The actor of a head row, None for no row, and its parts as far as they are known."""
    if row is None:
        return Snapshot(address, 0, Header(), None), {}
    kept = cache.get(address, row.revision)
    if kept:
        return kept
    header, state = decode_head(row.body)
    return Snapshot(address, row.revision, header, kind_at(address).decode_state(state)), {}


class Rows(Protocol):
    """Where rows are looked up."""

    def get(self, key: Key) -> Row | None:
        """The row, or None."""


class PartReader:
    """What a turn reads: what the fold has written so far, then the cache, then the table."""

    def __init__(self, table: Rows, reading: Reading) -> None:
        self._table = table
        self._reading = reading
        self.fold = Fold(reading.snapshot.state)

    @property
    def snapshot(self) -> Snapshot:
        """The actor as it was loaded."""
        return self._reading.snapshot

    def part(self, name: str) -> object | None:
        """See Reader. Raises Torn."""
        if name in self.fold.parts:
            return self.fold.parts[name]
        parts, snapshot = self._reading.parts, self._reading.snapshot
        if name not in parts:
            row = self._table.get(Key(snapshot.address, PARTS + name))
            if row is not None and row.revision > snapshot.revision:
                raise Torn
            parts[name] = None if row is None else snapshot.kind.decode_part(name, row.body)
        return parts[name]

    def row(self, partition: str, sort: str) -> RowSeen:
        """See Reader. A row is read once in a fold: what was decided upon stays what is guarded."""
        key = Key(partition, sort)
        fold = self.fold
        if key in fold.rows:
            seen, body = fold.rows[key]
            return RowSeen(seen.revision if seen else 0, body or b"")
        if key not in fold.seen:
            row = self._table.get(key)
            fold.seen[key] = RowSeen(row.revision, row.body) if row else RowSeen(0, b"")
        return fold.seen[key]


def _completed(table: StateTable, address: str, mail: tuple[Mail, ...]) -> tuple[Mail, ...]:
    """The mail without gaps: of what is there, nothing that was sent before is missing."""
    if any(row.previous == UNKNOWN for row in mail):
        mail = _read_again(table, address, mail)
    if _missed(table, mail):
        raise Torn
    return mail


def _read_again(table: StateTable, address: str, mail: tuple[Mail, ...]) -> tuple[Mail, ...]:
    """Whatever was committed before what the first reading saw, the second one sees.

    A row that the second reading alone saw may have missed one itself: it waits for the next.
    """
    rows = table.query(address, MAIL, MAIL_END, limit=MAIL_MAX).rows
    seen, last = {row.key.sort for row in mail}, mail[-1].key.sort
    again = (read_mail(row) for row in rows if row.key.sort <= last)
    return tuple(row for row in again if row.previous != UNKNOWN or row.key.sort in seen)


def _missed(table: StateTable, mail: tuple[Mail, ...]) -> bool:
    """Whether a sender's earlier row is still there though the reading has only a later one."""
    known = {row.key.sort for row in mail} | {FIRST, UNKNOWN}
    return any(
        table.get(Key(row.key.partition, row.previous)) is not None
        for row in mail
        if row.previous not in known
    )
