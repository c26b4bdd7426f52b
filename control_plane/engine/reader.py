"""Loading an actor: the head, the mailbox and the parts, which are read at different moments.

The head is read first. Each part stores the head's revision of the commit that wrote the part. A
part that is newer than the head shows that the read is torn. Each commit that writes a part
increases the head's revision, so a cached actor is valid while the stored head has the cached
revision.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from control_plane.actors.step import ObservedRow
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.fold import ActorSnapshot, Fold
from control_plane.engine.head import (
    HEAD,
    PARTS,
    Header,
    UnknownFields,
    decode_head,
    select_unknown_header_fields,
)
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
    """The rows that were read belong to different moments. The caller repeats the read."""


@dataclass(frozen=True, slots=True)
class LoadedActor:
    """An actor that was read from the table, with the mail and the parts read so far."""

    snapshot: ActorSnapshot
    """The actor without the effects of the mail. Revision 0 and no state for a missing actor."""
    mail: tuple[MailboxRow, ...]
    """The mail in order: the mailbox by sort key, then the due timers. Empty without mail."""
    parts: dict[str, object | None] = field(default_factory=dict)
    """The decoded parts that were read so far, by name. None stands for a missing part."""


class ActorCache:
    """A cache of decoded actors by address. An entry is valid for a single revision of the head.

    Threads may share a cache. It keeps the `actors_max` actors that were cached last.
    """

    def __init__(self, actors_max: int = CACHED_ACTORS_MAX) -> None:
        self._lock = Lock()
        self._actors_max = actors_max
        self._entries: OrderedDict[str, tuple[ActorSnapshot, dict[str, object | None]]] = (
            OrderedDict()
        )

    def get(
        self, address: str, revision: int
    ) -> tuple[ActorSnapshot, dict[str, object | None]] | None:
        """Return the cached actor and the cache's own dict of parts, not a copy.

        Return None unless exactly this revision is cached.
        """
        with self._lock:
            entry = self._entries.get(address)
            return entry if entry and entry[0].revision == revision else None

    def get_latest(self, address: str) -> ActorSnapshot | None:
        """Return the cached actor at any revision. Return None if the actor is not cached.

        Another process may have advanced the actor since.
        """
        with self._lock:
            entry = self._entries.get(address)
            return None if entry is None else entry[0]

    def put(self, snapshot: ActorSnapshot, parts: dict[str, object | None]) -> None:
        """Cache an actor and the known parts in place of any cached revision of the actor.

        Beyond `actors_max` actors, evict the actors that were cached longest ago. The cache
        keeps the dict itself.
        """
        with self._lock:
            self._entries[snapshot.address] = (snapshot, parts)
            self._entries.move_to_end(snapshot.address)
            while len(self._entries) > self._actors_max:
                self._entries.popitem(last=False)

    def put_if_newer(self, snapshot: ActorSnapshot) -> None:
        """Cache an actor without parts. Do nothing if this revision or a later one is cached."""
        with self._lock:
            entry = self._entries.get(snapshot.address)
            if entry is not None and entry[0].revision >= snapshot.revision:
                return
        self.put(snapshot, {})


def load_actor(
    table: StateTable, cache: ActorCache, address: str, timers_until_ms: int | None
) -> LoadedActor:
    """Load an actor with at most MAIL_MAX rows of mail. A missing actor has revision 0 and no
    state.

    The parts are those that the cache knows. The cache is not changed.

    Args:
        timers_until_ms: also load at most MAIL_MAX timers that are due until then; None loads none.

    Raises TornRead if earlier mail of a sender may be missing. Raises TableError if a read fails,
    ValueError for an invalid head, and KeyError for an unknown type of actor. An undecodable row of
    mail is no error: the row is logged, and becomes mail that no attempt can fold.
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
    """Decode a head row into the actor. Return the actor and the dict of cached parts.

    - If the cache has the row's revision, return the cached actor and the cache's own dict, not a
      copy. A part that the caller adds to the dict is cached.
    - Otherwise, decode the row and return an empty dict. The cache stays unchanged.
    - Without a row, return an actor with revision 0 and no state, and an empty dict.

    Raises ValueError if the header or the state is invalid, and KeyError for an unknown type of
    actor.
    """
    if row is None:
        return ActorSnapshot(address, 0, Header(), None), {}
    cached = cache.get(address, row.revision)
    if cached:
        return cached
    header, state = decode_head(row.body)
    actor_type = actor_type_at(address)
    decoded = actor_type.decode_state(state)
    unknown = UnknownFields(
        select_unknown_header_fields(row.body), actor_type.select_unknown_fields(state)
    )
    return ActorSnapshot(address, row.revision, header, decoded, unknown), {}


class RowSource(Protocol):
    """A source of single rows: the state table, or the rows that a journal entry recorded."""

    def get(self, key: Key) -> Row | None:
        """Return the row. Return None if the row does not exist.

        May raise TableError or TornRead.
        """


class FoldReader:
    """The reader for the steps of a fold, with the `fold` that the steps change.

    A fold applies messages to an actor in order. Reads return the changes of the fold so far, then
    loaded or cached values, then rows of the table. The `fold` begins with the state of the loaded
    actor.
    """

    def __init__(self, table: RowSource, actor: LoadedActor) -> None:
        self._table = table
        self._loaded = actor
        self.actor_type = actor.snapshot.actor_type
        self.fold = Fold(actor.snapshot.state)

    @property
    def snapshot(self) -> ActorSnapshot:
        """The loaded actor before the fold."""
        return self._loaded.snapshot

    def part(self, name: str) -> object | None:
        """Return a part of the actor (a named row of the larger state), with the changes of the
        fold. Return None for a missing or deleted part.

        A part that is read from the table is kept in the loaded actor's parts. Raises TornRead for
        a part that is newer than the head. Raises TableError if the read fails, and ValueError for
        an undecodable part without a replacement (`ActorType.damaged_parts`).
        """
        if name in self.fold.parts:
            return self.fold.parts[name]
        parts, snapshot = self._loaded.parts, self._loaded.snapshot
        if name not in parts:
            row = self._table.get(Key(snapshot.address, PARTS + name))
            if row is not None and row.revision > snapshot.revision:
                raise TornRead
            parts[name] = None if row is None else self.actor_type.decode_part(name, row.body)
            if row and (unknown := self.actor_type.select_unknown_part_fields(name, row.body)):
                snapshot.unknown.parts[name] = unknown
        return parts[name]

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Read a row outside the actor. A missing row has revision 0 and an empty body.

        After a write in this fold, return the written body, or an empty body for a deleted row. The
        revision is then that of the write's guard, or 0 for a write without a guard.

        Otherwise the row is read from the table at most once in a fold, and recorded in the fold's
        `rows_read`. So all steps see a single revision, with which they can guard a write. Raises
        TableError if the read fails.
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
    """Return the mail if no earlier row of a sender is missing. Otherwise raise TornRead.

    A row is missing if the table has the row, but the mail does not. Rows that were folded and
    removed are not missing. If a sender has forgotten its previous row, the mailbox is read again
    first. Rows of this sender that only the second read returned are then left out. Raises
    TableError.
    """
    if any(row.previous == UNKNOWN for row in mail):
        mail = _read_again(table, address, mail)
    if _has_missed_mail(table, mail):
        raise TornRead
    return mail


def _read_again(
    table: StateTable, address: str, mail: tuple[MailboxRow, ...]
) -> tuple[MailboxRow, ...]:
    """Read the mailbox a second time, and return the rows up to the last row of `mail`.

    The second read contains every row that was committed before a row of the first read. Leave out
    rows that only the second read returned and whose sender has forgotten the previous row. Their
    previous row may be missing; the next load returns them. Return () if all rows were removed
    meanwhile. Raises TableError.

    Args:
        mail: the rows of the first read, at least one.
    """
    rows = table.query(address, MAIL, MAIL_END, limit=MAIL_MAX).rows
    seen, last = {row.key.sort for row in mail}, mail[-1].key.sort
    again = (read_mail(row) for row in rows if row.key.sort <= last)
    return tuple(row for row in again if row.previous != UNKNOWN or row.key.sort in seen)


def _has_missed_mail(table: StateTable, mail: tuple[MailboxRow, ...]) -> bool:
    """Return whether the table has a sender's previous row that `mail` does not contain.

    Reads each previous row that is outside `mail`. Return False for empty mail. Raises TableError.
    """
    known = {row.key.sort for row in mail} | {FIRST, UNKNOWN}
    return any(
        table.get(Key(row.key.partition, row.previous)) is not None
        for row in mail
        if row.previous not in known
    )
