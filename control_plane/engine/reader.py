"""Loading an actor: its head, its mailbox and its parts, which are read at different moments.

The head is read first. A part carries the head's revision that wrote it, so a part newer than the
head shows that the read is torn; an outdated part cannot be seen once its head was. A cached actor
is valid exactly while the head has the revision it was cached at, since every write of a part bumps
the head.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from control_plane.actors.step import ObservedRow
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.fold import ActorSnapshot, Fold
from control_plane.engine.head import HEAD, PARTS, Header, decode_head
from control_plane.engine.mailbox import (
    FIRST,
    MAIL,
    MAIL_END,
    TIMERS,
    UNKNOWN,
    MailboxRow,
    read_mail,
)
from control_plane.state.table import Key, Row, StateTable

MAIL_MAX = 100
CACHED_ACTORS_MAX = 2_000


class TornRead(Exception):
    """Rows of different moments were read: the read must be repeated."""


@dataclass(frozen=True, slots=True)
class LoadedActor:
    """An actor, its mail in order, and those of its parts that were read."""

    snapshot: ActorSnapshot
    mail: tuple[MailboxRow, ...]
    parts: dict[str, object | None] = field(default_factory=dict)


class ActorCache:
    """Decoded actors by address, each valid for one revision of its head."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: OrderedDict[str, tuple[ActorSnapshot, dict[str, object | None]]] = (
            OrderedDict()
        )

    def get(
        self, address: str, revision: int
    ) -> tuple[ActorSnapshot, dict[str, object | None]] | None:
        """The actor and its known parts, if it is cached at that revision."""
        with self._lock:
            entry = self._entries.get(address)
            return entry if entry and entry[0].revision == revision else None

    def get_latest(self, address: str) -> ActorSnapshot | None:
        """The actor as it was last cached; another process may have advanced it since."""
        with self._lock:
            entry = self._entries.get(address)
            return None if entry is None else entry[0]

    def put(self, snapshot: ActorSnapshot, parts: dict[str, object | None]) -> None:
        """Cache an actor as a commit has left it."""
        with self._lock:
            self._entries[snapshot.address] = (snapshot, parts)
            self._entries.move_to_end(snapshot.address)
            while len(self._entries) > CACHED_ACTORS_MAX:
                self._entries.popitem(last=False)

    def put_if_newer(self, snapshot: ActorSnapshot) -> None:
        """Cache an actor as it was read, unless the same or a later revision is cached already."""
        with self._lock:
            entry = self._entries.get(snapshot.address)
            if entry is not None and entry[0].revision >= snapshot.revision:
                return
        self.put(snapshot, {})


def load_actor(
    table: StateTable, cache: ActorCache, address: str, timers_until_ms: int | None
) -> LoadedActor:
    """Load the actor with its mail and, unless `timers_until_ms` is None, its timers due until
    then. Raises TornRead.
    """
    rows = table.query(address, HEAD, MAIL_END, limit=1 + MAIL_MAX).rows
    has_head = bool(rows) and rows[0].key.sort == HEAD
    snapshot, parts = decode_snapshot(cache, address, rows[0] if has_head else None)
    mail = tuple(read_mail(row) for row in rows[has_head:])
    if not table.snapshot_queries:
        mail = _ensure_complete(table, address, mail)
    if timers_until_ms is not None:
        last = f"{TIMERS}{timers_until_ms:014d}~"
        due = table.query(address, TIMERS, last, limit=MAIL_MAX).rows
        mail = (*mail, *(read_mail(row) for row in due))
    return LoadedActor(snapshot, mail, parts)


def decode_snapshot(
    cache: ActorCache, address: str, row: Row | None
) -> tuple[ActorSnapshot, dict[str, object | None]]:
    """The actor of a head row, or one without a state for no row, and its cached parts."""
    if row is None:
        return ActorSnapshot(address, 0, Header(), None), {}
    cached = cache.get(address, row.revision)
    if cached:
        return cached
    header, state = decode_head(row.body)
    return ActorSnapshot(
        address, row.revision, header, actor_type_at(address).decode_state(state)
    ), {}


class RowSource(Protocol):
    """A source of single rows: the table, or a journal's record of it."""

    def get(self, key: Key) -> Row | None:
        """Read a row, or None."""


class FoldReader:
    """The reader of a fold's steps. It reads what the fold has written so far, then the cache, then
    the table.
    """

    def __init__(self, table: RowSource, actor: LoadedActor) -> None:
        self._table = table
        self._loaded = actor
        self.actor_type = actor.snapshot.actor_type
        self.fold = Fold(actor.snapshot.state)

    @property
    def snapshot(self) -> ActorSnapshot:
        """The actor as it was loaded."""
        return self._loaded.snapshot

    def part(self, name: str) -> object | None:
        """Read a part of the actor, or None. Raises TornRead for a part newer than the head."""
        if name in self.fold.parts:
            return self.fold.parts[name]
        parts, snapshot = self._loaded.parts, self._loaded.snapshot
        if name not in parts:
            row = self._table.get(Key(snapshot.address, PARTS + name))
            if row is not None and row.revision > snapshot.revision:
                raise TornRead
            parts[name] = None if row is None else self.actor_type.decode_part(name, row.body)
        return parts[name]

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Read a row outside the actor, once in a fold: the revision that a step decides by is the
        one that guards the commit.
        """
        key = Key(partition, sort)
        fold = self.fold
        if key in fold.row_writes:
            guard, body = fold.row_writes[key]
            return ObservedRow(guard.revision if guard else 0, body or b"")
        if key not in fold.rows_read:
            row = self._table.get(key)
            fold.rows_read[key] = (
                ObservedRow(row.revision, row.body) if row else ObservedRow(0, b"")
            )
        return fold.rows_read[key]


def _ensure_complete(
    table: StateTable, address: str, mail: tuple[MailboxRow, ...]
) -> tuple[MailboxRow, ...]:
    """The mail, read again where needed, without gaps: of each sender, none sent before is missing.
    Raises TornRead if it has a gap.
    """
    if any(row.previous == UNKNOWN for row in mail):
        mail = _read_again(table, address, mail)
    if _has_missed_mail(table, mail):
        raise TornRead
    return mail


def _read_again(
    table: StateTable, address: str, mail: tuple[MailboxRow, ...]
) -> tuple[MailboxRow, ...]:
    """Read the mailbox a second time: all that was committed before a row of the first read is seen
    now.

    A row that only the second read saw may have an unseen one before it: it waits for the next
    load.
    """
    rows = table.query(address, MAIL, MAIL_END, limit=MAIL_MAX).rows
    seen, last = {row.key.sort for row in mail}, mail[-1].key.sort
    again = (read_mail(row) for row in rows if row.key.sort <= last)
    return tuple(row for row in again if row.previous != UNKNOWN or row.key.sort in seen)


def _has_missed_mail(table: StateTable, mail: tuple[MailboxRow, ...]) -> bool:
    """Whether an earlier row of a sender is in the table but not in the mail that was read."""
    known = {row.key.sort for row in mail} | {FIRST, UNKNOWN}
    return any(
        table.get(Key(row.key.partition, row.previous)) is not None
        for row in mail
        if row.previous not in known
    )
