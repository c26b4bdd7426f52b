"""Replay: folds what an actor's journal recorded from nothing with today's code, and names the
first difference.

Parts are kept in memory, rows outside are answered from the recorded readings, `now` is as
recorded, and the messages of a commit are folded as they were: mail, the command, the end of the
fold; a dead letter through the fallback. A field that today's state has and a recorded commit did
not know starts from its default after that commit, as it does when the codec reads an old row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import Refused
from control_plane.dispatch import journal
from control_plane.dispatch.fold import Fold, Snapshot, pieces_of
from control_plane.dispatch.head import HEAD, PARTS, Header, decode_head
from control_plane.dispatch.journal import Recorded
from control_plane.dispatch.kinds import KINDS, Kind, kind_at, parse_json
from control_plane.dispatch.outputs import GONE, OUTBOX, PART, called, digest_of, rank
from control_plane.dispatch.reader import PartReader, Reading, Torn
from control_plane.dispatch.remains import value_of
from control_plane.dispatch.turns import bury, settle, take_named
from control_plane.evolve import evolve
from control_plane.state.table import Key, Row, StateTable

UNKNOWN = "unknown"
PART_ROWS_PAGE = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """Where today's code leaves the record: the commit, the message in it, and what it put out.

    `recorded` and `replayed` are values as JSON where they are at hand, else digests; None where
    there is nothing.
    """

    revision: int
    message: str
    field: str
    recorded: object
    replayed: object


@dataclass(frozen=True, slots=True)
class Replayed:
    """An actor's replay: entries folded, and the first difference. Not `complete`: it was cut off,
    or broken off at the difference.
    """

    address: str
    entries: int
    difference: Difference | None
    complete: bool = False


class _Differs(Exception):
    """Ends a replay."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference)
        self.difference = difference


class _NotRecorded(Torn):
    """Today's code reads a row that was not read then."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def replay(table: StateTable, address: str, *, entries_max: int | None = None) -> Replayed:
    """Replays one actor, or its first `entries_max` entries. Whatever is wrong with a row is a
    difference.
    """
    if address.partition("#")[0] not in KINDS:
        return Replayed(address, 0, Difference(0, "", "actor", address, "no kind of actor"))
    head = table.get(Key(address, HEAD))
    player = _Player(table, address)
    try:
        for row in journal.rows_of(table, address):
            if head is None:
                raise _differs(journal.revision_of(row), "", "head", None, "an actor")
            # What was committed since the head was read is not compared.
            if journal.revision_of(row) > head.revision:
                break
            if player.entries == entries_max:
                return Replayed(address, player.entries, None)
            player.play(row)
        if head is not None:
            player.end(head)
    except _Differs as found:
        return Replayed(address, player.entries, found.difference)
    return Replayed(address, player.entries, None, complete=True)


class _Readings:
    """The rows outside the actor as a commit has read them."""

    def __init__(self, address: str, entry: Recorded) -> None:
        self._address = address
        self._entry = entry

    def get(self, key: Key) -> Row | None:
        """See Rows. Raises _NotRecorded."""
        if key.partition == self._address and key.sort.startswith(PARTS):
            return None
        name = f"{key.partition}/{key.sort}"
        if name not in self._entry.read:
            raise _NotRecorded(name)
        revision, body = self._entry.read[name]
        return Row(key, revision, body) if revision else None


class _Player:
    """An actor on its way through its journal."""

    def __init__(self, table: StateTable, address: str) -> None:
        self._table = table
        self._before = Snapshot(address, 0, Header(), None)
        self._parts: dict[str, object | None] = {}
        self._spilled = False
        self.entries = 0

    @property
    def _kind(self) -> Kind:
        return self._before.kind

    def play(self, row: Row) -> None:
        """Folds one entry and compares. Raises _Differs."""
        revision = journal.revision_of(row)
        try:
            entry = journal.read_entry(row)
        except ValueError as error:
            raise _differs(revision, "", "journal", str(error), None) from error
        self._follow_up(revision)
        fold = self._folded(entry)
        self._compare(entry, fold)
        self.entries += 1
        self._spilled = entry.spilled
        self._parts.update(fold.parts)
        state = _as_known(self._kind, fold.state, entry.names)
        self._before = Snapshot(self._before.address, revision, Header(), state)

    def end(self, head: Row) -> None:
        """Compares with what is stored. Raises _Differs."""
        self._follow_up(head.revision + 1)
        try:
            stored = self._kind.decode_state(decode_head(head.body)[1])
        except ValueError as error:
            raise _differs(head.revision, "", "head", _short(error), None) from error
        state = self._before.state
        for name in self._kind.names:
            recorded = self._kind.encode_field(name, getattr(stored, name))
            replayed = self._kind.encode_field(name, getattr(state, name))
            if recorded != replayed:
                raise _narrowed(head.revision, "", name, recorded, replayed)
        self._compare_parts(head)

    def _follow_up(self, revision: int) -> None:
        """Only the commits that send a spilled outbox have no entry."""
        expected = self._before.revision + 1
        if revision != expected and not (self._spilled and revision > expected):
            text = f"no entry of revision {expected}"
            raise _differs(expected, "", "journal", text, None)

    def _folded(self, entry: Recorded, upto: int | None = None) -> Fold:
        """The entry's fold, or that of its first `upto` messages. Raises _Differs."""
        reading = Reading(self._before, (), dict(self._parts))
        reader = PartReader(_Readings(self._before.address, entry), reading)
        name = ""
        try:
            for name, fields in entry.messages[:upto]:
                if entry.dead:
                    bury(reader, name, fields, entry.now_ms)
                else:
                    take_named(reader, name, fields, entry.now_ms)
            if upto is None and not entry.dead:
                settle(reader, entry.now_ms)
        except Exception as error:
            field, today = _failure(name, error)
            raise _differs(entry.revision, name, field, "folded", today) from error
        if reader.fold.state is None:
            raise _differs(entry.revision, name, "state", "an actor", None)
        return reader.fold

    def _compare(self, entry: Recorded, fold: Fold) -> None:
        if entry.out is None:
            self._compare_whole(entry, fold)
            return
        pieces = pieces_of(self._before, fold)
        if entry.names:
            unknown = self._kind.names[entry.names :]
            pieces = {name: piece for name, piece in pieces.items() if name not in unknown}
        digests = {name: digest_of(piece) for name, piece in pieces.items()}
        if digests == dict(entry.out):
            return
        for name in sorted({**entry.out, **digests}, key=rank):
            if entry.out.get(name) != digests.get(name):
                raise self._difference(entry, name, pieces.get(name))

    def _compare_whole(self, entry: Recorded, fold: Fold) -> None:
        """A row of format 1: one digest of the state and the messages in full."""
        sends = {
            to: [(name, kind_at(to).encode_whole(name, parse_json(body))) for name, body in listed]
            for to, listed in fold.sends.items()
        }
        replayed = journal.whole_digest(self._kind.encode_state(fold.state), sends)
        if replayed != entry.whole:
            raise _differs(entry.revision, _names(entry), UNKNOWN, entry.whole, replayed)

    def _difference(self, entry: Recorded, name: str, replayed: bytes | None) -> _Differs:
        """The difference in one piece, with its values as far as they may be shown."""
        assert entry.out is not None
        message = self._blamed(entry, name) if replayed is not None else _names(entry)
        digest, field = entry.out.get(name), called(name)
        if name.removeprefix(PART) in self._kind.secret:
            today = None if replayed is None else digest_of(replayed)
            return _differs(entry.revision, message, field, digest, today)
        if replayed is None:
            replayed = self._unchanged(name)
        if digest is None:
            recorded = self._unchanged(name)
        else:
            recorded = value_of(self._table, self._before.address, name, digest)
            if recorded is None:
                return _differs(entry.revision, message, field, digest, _shown(replayed))
        return _narrowed(entry.revision, message, field, recorded, replayed)

    def _unchanged(self, name: str) -> bytes | None:
        """The piece as it was before the commit; None where there was nothing."""
        state, part = self._before.state, name.removeprefix(PART)
        fields = self._kind.defaults if state is None else state.__dict__
        if name in fields:
            return self._kind.encode_field(name, fields[name])
        known = self._parts.get(part) if name.startswith(PART) else None
        return None if known is None else self._kind.essence(part, known)

    def _blamed(self, entry: Recorded, piece: str) -> str:
        """The message that brought a piece to what the replay put out."""
        blamed, before = "", None
        for place, (name, _) in enumerate(entry.messages, 1):
            after = pieces_of(self._before, self._folded(entry, place)).get(piece)
            if after != before:
                blamed, before = name, after
        # What the end of the fold brought is of all of them.
        at_last = pieces_of(self._before, self._folded(entry)).get(piece)
        return blamed if blamed and at_last == before else _names(entry)

    def _compare_parts(self, head: Row) -> None:
        stored = dict(_stored_parts(self._table, head))
        again = self._table.get(head.key)
        if again is None or again.revision != head.revision:
            # The actor went on: what was read of its parts may be newer than the head.
            return
        known = {name: value for name, value in self._parts.items() if value is not None}
        for name in sorted({**known, **stored}):
            recorded = self._essence_of_row(head, name, stored.get(name))
            replayed = self._kind.essence(name, known[name]) if name in known else None
            if recorded != replayed:
                if name in self._kind.secret:
                    recorded, replayed = (
                        x and b'"%s"' % digest_of(x).encode() for x in (recorded, replayed)
                    )
                raise _narrowed(head.revision, "", called(PART + name), recorded, replayed)

    def _essence_of_row(self, head: Row, name: str, body: bytes | None) -> bytes | None:
        if body is None:
            return None
        try:
            return self._kind.essence(name, self._kind.decode_part(name, body))
        except ValueError as error:
            field = called(PART + name)
            raise _differs(head.revision, "", field, _short(error), None) from error


def _stored_parts(table: StateTable, head: Row) -> Iterator[tuple[str, bytes]]:
    start: str | None = PARTS
    end = PARTS[:-1] + chr(ord(PARTS[-1]) + 1)
    while start is not None:
        page = table.query(head.key.partition, start, end, limit=PART_ROWS_PAGE)
        for row in page.rows:
            name = row.key.sort.removeprefix(PARTS)
            if not name.startswith(OUTBOX):
                yield name, row.body
        start = page.next_sort


def _as_known(kind: Kind, state: Any, names: int) -> Any:
    """The state as code that knew its first `names` fields would have stored it."""
    unknown = kind.names[names:] if names else ()
    given = {name: kind.defaults[name] for name in unknown if name in kind.defaults}
    return evolve(state, **given) if given else state


def _names(entry: Recorded) -> str:
    return ", ".join(dict.fromkeys(name for name, _ in entry.messages))


def _failure(name: str, error: Exception) -> tuple[str, str]:
    """The field and what today's code says of a message that was folded then."""
    match error:
        case _NotRecorded():
            return f"row {error.name}", "reads a row that was not read then"
        case KeyError() if error.args == (name,):
            return "message", "is no message of today"
        case Refused():
            return "reply", f"refused: {error}"
        case _:
            return "error", _short(error)


def _short(error: Exception) -> str:
    """An error in a line, without the values that a validation repeats."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{type(error).__name__}: {error}"[:300]
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in errors())
    return "; ".join(faults)[:300]


def _differs(
    revision: int, message: str, field: str, recorded: object, replayed: object
) -> _Differs:
    return _Differs(Difference(revision, message, field, recorded, replayed))


def _narrowed(
    revision: int, message: str, field: str, recorded: bytes | None, replayed: bytes | None
) -> _Differs:
    """The difference of two values, brought down to the first place where they differ."""
    one, other = _shown(recorded), _shown(replayed)
    path = field
    while (step := _first_step(one, other)) is not None:
        path = f"{path}.{step}"
        one, other = one[step], other[step]
    return _differs(revision, message, path, one, other)


def _first_step(one: Any, other: Any) -> Any:
    """The key or index of the only way further down, None where the values differ as a whole."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next((key for key in one if one[key] != other[key]), None)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next((place for place, _ in enumerate(one) if one[place] != other[place]), None)
    return None


def _shown(piece: bytes | None) -> Any:
    """A piece as JSON, text that is none as it is, other bytes as a digest."""
    if piece is None or piece == GONE:
        return None
    try:
        return parse_json(piece)
    except ValueError:
        return piece.decode() if piece.isascii() else digest_of(piece)
