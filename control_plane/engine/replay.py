"""Replay: fold an actor's journal again from the beginning with today's code, and find the first
difference.

Parts are kept in memory. Rows outside the actor and times are taken from the journal. The messages
of a commit are folded in their original order: mail, the command, the end of the fold. A dead
letter is applied with the fallback.

A recorded commit may lack fields of today's state. These fields are reset to their defaults after
the commit, because the codec also uses defaults when it decodes an old row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import CommandRefused
from control_plane.engine import journal
from control_plane.engine.actor_types import ACTOR_TYPES, ActorType, actor_type_at, parse_json
from control_plane.engine.fold import ActorSnapshot, Fold, fold_outputs
from control_plane.engine.fold_steps import apply_fallback, apply_stored_message, finish_fold
from control_plane.engine.head import HEAD, PARTS, Header, decode_head
from control_plane.engine.journal import RecordedEntry
from control_plane.engine.journal_values import find_value
from control_plane.engine.outputs import (
    DELETED,
    OUTBOX,
    PART,
    display_name,
    output_digest,
    output_rank,
)
from control_plane.engine.reader import FoldReader, LoadedActor, TornRead
from control_plane.evolve import evolve
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key, Row, StateTable

UNKNOWN = "unknown"
PART_ROWS_PAGE = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """The first output for which today's code computes another value."""

    revision: int
    """The revision of the head that the commit wrote."""
    message: str
    """The stored name of the message that causes the difference, several names, or ""."""
    field: str
    """The display name of the output and the path to the place inside its value."""
    recorded: object
    """The recorded JSON value, or a digest if the value is secret or no longer stored. None for no
    value.
    """
    replayed: object
    """The replayed JSON value or digest. None for no value."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of an actor's replay."""

    address: str
    entries: int
    """The number of journal entries that were folded without a difference."""
    difference: Difference | None
    """The first difference, or None."""
    complete: bool = False
    """Whether all entries were replayed and no difference was found."""


class _DifferenceFound(Exception):
    """Ends a replay with the first difference."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference)
        self.difference = difference


class _UnrecordedRead(TornRead):
    """Raised when today's code reads a row that the recorded commit did not read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def replay_actor(
    table: StateTable, address: str, *, entries_max: int | None = None
) -> ReplayResult:
    """Replay the journal of an actor and compare the result with the stored head and parts.

    A journal row that cannot be decoded, a missing head and an unknown actor type are differences.

    Args:
        entries_max: the number of entries to replay. If entries are left over, the result is not
            complete and the head is not compared. None replays all entries.
    """
    if address.partition("#")[0] not in ACTOR_TYPES:
        return ReplayResult(
            address, 0, Difference(0, "", "actor", address, "unknown type of actor")
        )
    head = table.get(Key(address, HEAD))
    replayer = _Replayer(table, address)
    try:
        for row in journal.read_entry_rows(table, address):
            if head is None:
                raise _difference_at(journal.entry_revision(row), "", "head", None, "an actor")
            # Skip entries that were committed after the head was read.
            if journal.entry_revision(row) > head.revision:
                break
            if replayer.entries == entries_max:
                return ReplayResult(address, replayer.entries, None)
            replayer.replay_entry(row)
        if head is not None:
            replayer.compare_head(head)
    except _DifferenceFound as ended:
        return ReplayResult(address, replayer.entries, ended.difference)
    return ReplayResult(address, replayer.entries, None, complete=True)


class _RecordedRows:
    """The rows outside the actor that a recorded commit read, as a source of rows."""

    def __init__(self, address: str, entry: RecordedEntry) -> None:
        self._address = address
        self._entry = entry

    def get(self, key: Key) -> Row | None:
        """Return the recorded row. Return None for a missing row and for the actor's own parts.

        Raises _UnrecordedRead if the recorded commit did not read the row.
        """
        if key.partition == self._address and key.sort.startswith(PARTS):
            return None
        name = f"{key.partition}/{key.sort}"
        if name not in self._entry.rows_read:
            raise _UnrecordedRead(name)
        revision, body = self._entry.rows_read[name]
        return Row(key, revision, body) if revision else None


class _Replayer:
    """The replay of an actor, with the state and parts after the entries folded so far."""

    def __init__(self, table: StateTable, address: str) -> None:
        self._table = table
        self._before = ActorSnapshot(address, 0, Header(), None)
        self._parts: dict[str, object | None] = {}
        self._may_skip_revisions = False
        self.entries = 0

    @property
    def _actor_type(self) -> ActorType:
        return self._before.actor_type

    def replay_entry(self, row: Row) -> None:
        """Fold an entry and compare the outputs. Raises _DifferenceFound."""
        revision = journal.entry_revision(row)
        try:
            entry = journal.read_entry(row)
        except ValueError as error:
            raise _difference_at(revision, "", "journal", str(error), None) from error
        self._check_revision(revision)
        fold = self._fold_entry(entry)
        self._compare_outputs(entry, fold)
        self.entries += 1
        self._may_skip_revisions = entry.is_spilled
        self._parts.update(fold.parts)
        state = _with_known_fields(self._actor_type, fold.state, entry.field_count)
        self._before = ActorSnapshot(self._before.address, revision, Header(), state)

    def compare_head(self, head: Row) -> None:
        """Compare the replayed state and parts with the stored state and parts. Raises
        _DifferenceFound.
        """
        self._check_revision(head.revision + 1)
        try:
            stored = self._actor_type.decode_state(decode_head(head.body)[1])
        except ValueError as error:
            raise _difference_at(head.revision, "", "head", _error_line(error), None) from error
        state = self._before.state
        for name, stored_name in self._actor_type.stored_names.items():
            recorded = self._actor_type.encode_field(name, getattr(stored, name))
            replayed = self._actor_type.encode_field(name, getattr(state, name))
            if recorded != replayed:
                raise _narrow_difference(head.revision, "", stored_name, recorded, replayed)
        self._compare_parts(head)

    def _check_revision(self, revision: int) -> None:
        """Raise _DifferenceFound if an entry before `revision` is missing.

        The commits that send a spilled outbox have no entries, so gaps after a spilled outbox are
        accepted.
        """
        expected = self._before.revision + 1
        if revision != expected and not (self._may_skip_revisions and revision > expected):
            text = f"no entry of revision {expected}"
            raise _difference_at(expected, "", "journal", text, None)

    def _fold_entry(self, entry: RecordedEntry, upto: int | None = None) -> Fold:
        """Fold all messages of an entry and call `finish_fold`, or fold only the first `upto`
        messages.

        Messages of a dead letter go to the fallback, and `finish_fold` is not called. Raises
        _DifferenceFound if today's code cannot fold the entry or leaves no state.
        """
        actor = LoadedActor(self._before, (), dict(self._parts))
        reader = FoldReader(_RecordedRows(self._before.address, entry), actor)
        name = ""
        try:
            for name, fields in entry.messages[:upto]:
                if entry.is_dead_letter:
                    apply_fallback(reader, name, fields, entry.now_ms)
                else:
                    apply_stored_message(reader, name, fields, entry.now_ms)
            if upto is None and not entry.is_dead_letter:
                finish_fold(reader, entry.now_ms)
        except Exception as error:
            field, today = _failed_field(name, error)
            raise _difference_at(entry.revision, name, field, "folded", today) from error
        if reader.fold.state is None:
            raise _difference_at(entry.revision, name, "state", "an actor", None)
        return reader.fold

    def _compare_outputs(self, entry: RecordedEntry, fold: Fold) -> None:
        """Compare the digest of each output of the fold with the recorded digest. Raises
        _DifferenceFound.

        Fields of the state that the recorded version did not have are not compared.
        """
        if entry.output_digests is None:
            self._compare_full_digest(entry, fold)
            return
        outputs = fold_outputs(self._before, fold)
        if entry.field_count:
            unknown = tuple(self._actor_type.names_in_code)[entry.field_count :]
            outputs = {name: output for name, output in outputs.items() if name not in unknown}
        digests = {name: output_digest(output) for name, output in outputs.items()}
        if digests == dict(entry.output_digests):
            return
        for name in sorted({**entry.output_digests, **digests}, key=output_rank):
            if entry.output_digests.get(name) != digests.get(name):
                raise self._output_difference(entry, name, outputs.get(name))

    def _compare_full_digest(self, entry: RecordedEntry, fold: Fold) -> None:
        """Compare with the single digest of a row of format 1. Raises _DifferenceFound."""
        sends = {
            to: [
                (name, actor_type_at(to).encode_message_with_defaults(name, parse_json(body)))
                for name, body in messages
            ]
            for to, messages in fold.sends.items()
        }
        replayed = journal.format_1_digest(self._actor_type.encode_state(fold.state), sends)
        if replayed != entry.full_digest:
            raise _difference_at(
                entry.revision, _message_names(entry), UNKNOWN, entry.full_digest, replayed
            )

    def _output_difference(
        self, entry: RecordedEntry, name: str, replayed: bytes | None
    ) -> _DifferenceFound:
        """Build the exception for the difference in an output.

        Secret parts and recorded values that are no longer stored are represented by digests.

        Args:
            replayed: the replayed output, or None if the replay does not change this output.
        """
        assert entry.output_digests is not None
        message = self._find_cause(entry, name) if replayed is not None else _message_names(entry)
        digest, field = entry.output_digests.get(name), display_name(name)
        if name.removeprefix(PART) in self._actor_type.secret_parts:
            today = None if replayed is None else output_digest(replayed)
            return _difference_at(entry.revision, message, field, digest, today)
        if replayed is None:
            replayed = self._output_before(name)
        if digest is None:
            recorded = self._output_before(name)
        else:
            recorded = find_value(self._table, self._before.address, name, digest)
            if recorded is None:
                return _difference_at(
                    entry.revision, message, field, digest, _displayed_value(replayed)
                )
        return _narrow_difference(entry.revision, message, field, recorded, replayed)

    def _output_before(self, name: str) -> bytes | None:
        """Return the output's value before the commit. Return None if the output had no value."""
        state, part = self._before.state, name.removeprefix(PART)
        fields = self._actor_type.field_defaults if state is None else state.__dict__
        field = self._actor_type.names_in_code.get(name)
        if field is not None and field in fields:
            return self._actor_type.encode_field(field, fields[field])
        known = self._parts.get(part) if name.startswith(PART) else None
        return None if known is None else self._actor_type.encode_part_without_defaults(part, known)

    def _find_cause(self, entry: RecordedEntry, output: str) -> str:
        """Return the stored name of the last message that changed the output in the replay.

        If `finish_fold` changed the output after the last message, or no message changed the
        output, return the distinct names of all messages, separated by commas. Raises
        _DifferenceFound if the first messages alone leave no state.

        Args:
            output: the name of the output (outputs.py).
        """
        cause, before = "", None
        for place, (name, _) in enumerate(entry.messages, 1):
            after = fold_outputs(self._before, self._fold_entry(entry, place)).get(output)
            if after != before:
                cause, before = name, after
        # An output that the end of the fold changed is caused by all messages together.
        after_fold = fold_outputs(self._before, self._fold_entry(entry)).get(output)
        return cause if cause and after_fold == before else _message_names(entry)

    def _compare_parts(self, head: Row) -> None:
        """Compare the replayed parts with the stored parts. Raises _DifferenceFound.

        Nothing is compared if the actor was advanced during the comparison.
        """
        stored = dict(_stored_parts(self._table, head))
        again = self._table.get(head.key)
        if again is None or again.revision != head.revision:
            # The actor was advanced meanwhile, so the parts may be newer than the head.
            return
        parts = {name: value for name, value in self._parts.items() if value is not None}
        for name in sorted({**parts, **stored}):
            recorded = self._stored_part_without_defaults(head, name, stored.get(name))
            replayed = (
                self._actor_type.encode_part_without_defaults(name, parts[name])
                if name in parts
                else None
            )
            if recorded != replayed:
                if name in self._actor_type.secret_parts:
                    recorded, replayed = (
                        x and b'"%s"' % output_digest(x).encode() for x in (recorded, replayed)
                    )
                raise _narrow_difference(
                    head.revision, "", display_name(PART + name), recorded, replayed
                )

    def _stored_part_without_defaults(
        self, head: Row, name: str, body: bytes | None
    ) -> bytes | None:
        """Return a stored part encoded without defaults. Return None for no part.

        Raises _DifferenceFound if the part cannot be decoded.
        """
        if body is None:
            return None
        try:
            return self._actor_type.encode_part_without_defaults(
                name, self._actor_type.decode_part(name, body)
            )
        except ValueError as error:
            field = display_name(PART + name)
            raise _difference_at(head.revision, "", field, _error_line(error), None) from error


def _stored_parts(table: StateTable, head: Row) -> Iterator[tuple[str, bytes]]:
    """Yield the name and body of each stored part, except for parts of a spilled outbox."""
    end = PARTS[:-1] + chr(ord(PARTS[-1]) + 1)
    for row in read_rows(table, head.key.partition, PARTS, end, page_rows=PART_ROWS_PAGE):
        name = row.key.sort.removeprefix(PARTS)
        if not name.startswith(OUTBOX):
            yield name, row.body


def _with_known_fields(actor_type: ActorType, state: Any, names: int) -> Any:
    """Return a state with the default value in each field of a later version.

    A field without a default stays unchanged.

    Args:
        names: the number of fields in the version that wrote the entry, which has the first fields
            of today's state. 0 if unknown: the state is returned unchanged.
    """
    unknown = tuple(actor_type.stored_names)[names:] if names else ()
    defaults = actor_type.field_defaults
    changes = {name: defaults[name] for name in unknown if name in defaults}
    return evolve(state, **changes) if changes else state


def _message_names(entry: RecordedEntry) -> str:
    """Return the distinct names of an entry's messages, separated by commas."""
    return ", ".join(dict.fromkeys(name for name, _ in entry.messages))


def _failed_field(name: str, error: Exception) -> tuple[str, str]:
    """Return the field and the replayed text of the difference for an error.

    Args:
        name: the stored name of the message that could not be folded.
    """
    match error:
        case _UnrecordedRead():
            return f"row {error.name}", "reads a row that was not read at that time"
        case KeyError() if error.args == (name,):
            return "message", "is not a message of this version"
        case CommandRefused():
            return "reply", f"refused: {error}"
        case _:
            return "error", _error_line(error)


def _error_line(error: Exception) -> str:
    """Return an error as a line of at most 300 characters.

    Values that pydantic repeats in validation errors are left out.
    """
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{type(error).__name__}: {error}"[:300]
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in errors())
    return "; ".join(faults)[:300]


def _difference_at(
    revision: int, message: str, field: str, recorded: object, replayed: object
) -> _DifferenceFound:
    """Build the exception that ends the replay with this difference."""
    return _DifferenceFound(Difference(revision, message, field, recorded, replayed))


def _narrow_difference(
    revision: int, message: str, field: str, recorded: bytes | None, replayed: bytes | None
) -> _DifferenceFound:
    """Build the exception for two values, narrowed to the first place that differs.

    Args:
        field: the display name of the output. The path of the place is appended.
    """
    recorded_value, replayed_value = _displayed_value(recorded), _displayed_value(replayed)
    path = field
    while (step := _first_step(recorded_value, replayed_value)) is not None:
        path = f"{path}.{step}"
        recorded_value, replayed_value = recorded_value[step], replayed_value[step]
    return _difference_at(revision, message, path, recorded_value, replayed_value)


def _first_step(recorded_value: Any, replayed_value: Any) -> Any:
    """Return the first key or index at which two containers differ.

    Return None if the values are no containers, or have different keys or lengths.
    """
    if (
        isinstance(recorded_value, dict)
        and isinstance(replayed_value, dict)
        and recorded_value.keys() == replayed_value.keys()
    ):
        return next(
            (key for key in recorded_value if recorded_value[key] != replayed_value[key]), None
        )
    if (
        isinstance(recorded_value, list)
        and isinstance(replayed_value, list)
        and len(recorded_value) == len(replayed_value)
    ):
        return next(
            (
                place
                for place, _ in enumerate(recorded_value)
                if recorded_value[place] != replayed_value[place]
            ),
            None,
        )
    return None


def _displayed_value(output: bytes | None) -> Any:
    """Return an output for display: the JSON value, else ASCII text, else a digest of the bytes.

    Return None for a missing or deleted output.
    """
    if output is None or output == DELETED:
        return None
    try:
        return parse_json(output)
    except ValueError:
        return output.decode() if output.isascii() else output_digest(output)
