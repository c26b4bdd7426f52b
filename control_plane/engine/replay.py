"""Replay: fold an actor's journal again from the beginning with today's code, and find the first
difference.

Parts are kept in memory. Rows outside the actor and times are taken from the journal. The messages
of a commit are folded in their original order: mail, the command, the end of the fold. A dead
letter is applied with the fallback.

A recorded commit may lack fields of today's state. These fields are reset to their defaults after
the commit, because the codec also uses defaults when it decodes an old row.
"""

from dataclasses import dataclass
from typing import Any

from control_plane.engine import journal
from control_plane.engine.actor_types import ACTOR_TYPES, ActorType, actor_type_at, parse_json
from control_plane.engine.fold import ActorSnapshot, Fold, fold_outputs
from control_plane.engine.fold_steps import apply_fallback, apply_stored_message, finish_fold
from control_plane.engine.head import HEAD, PARTS, Header
from control_plane.engine.journal import RecordedEntry
from control_plane.engine.journal_values import find_value
from control_plane.engine.outputs import PART, display_name, output_digest, output_rank
from control_plane.engine.reader import FoldReader, LoadedActor
from control_plane.engine.replay_differences import (
    Difference,
    DifferenceFound,
    UnrecordedRead,
    difference_at,
    displayed_value,
    failed_field,
    narrow_difference,
)
from control_plane.engine.replayed_head import compare_head
from control_plane.evolve import evolve
from control_plane.state.table import Key, Row, StateTable

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of an actor's replay."""

    address: str
    """The address of the actor."""
    entries: int
    """The number of journal entries that were folded without a difference."""
    difference: Difference | None
    """The first difference. None if none was found."""
    complete: bool = False
    """Whether all entries were replayed and compared, and the stored head and parts too. False
    after a difference, and if entries were left over.
    """


def replay_actor(
    table: StateTable, address: str, *, entries_max: int | None = None
) -> ReplayResult:
    """Replay the journal of an actor and compare the result with the stored head and parts.

    Nothing is written. The replay ends at the first difference, which the result contains. A
    journal row that cannot be decoded, a missing entry, an entry without a stored head, and an
    unknown actor type are differences. Without a head and without entries, the result is complete.
    Raises TableError if a read fails.

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
                raise difference_at(journal.entry_revision(row), "", "head", None, "an actor")
            # Skip entries that were committed after the head was read.
            if journal.entry_revision(row) > head.revision:
                break
            if replayer.entries == entries_max:
                return ReplayResult(address, replayer.entries, None)
            replayer.replay_entry(row)
        if head is not None:
            replayer.compare_head(head)
    except DifferenceFound as ended:
        return ReplayResult(address, replayer.entries, ended.difference)
    return ReplayResult(address, replayer.entries, None, complete=True)


class _RecordedRows:
    """The rows outside the actor that a recorded commit read, as a source of rows."""

    def __init__(self, address: str, entry: RecordedEntry) -> None:
        self._address = address
        self._entry = entry

    def get(self, key: Key) -> Row | None:
        """Return the recorded row. Return None for a row that did not exist, and for the actor's
        own parts.

        Raises UnrecordedRead if the recorded commit did not read the row.
        """
        if key.partition == self._address and key.sort.startswith(PARTS):
            return None
        name = f"{key.partition}/{key.sort}"
        if name not in self._entry.rows_read:
            raise UnrecordedRead(name)
        revision, body = self._entry.rows_read[name]
        return Row(key, revision, body) if revision else None


class _Replayer:
    """The replay of an actor, with the state and parts after the entries folded so far.

    `entries` is the number of entries that were folded without a difference.
    """

    def __init__(self, table: StateTable, address: str) -> None:
        self._table = table
        self._before = ActorSnapshot(address, 0, Header(), None)
        self._parts: dict[str, object | None] = {}
        self._may_skip_revisions = False
        self.entries = 0

    @property
    def _actor_type(self) -> ActorType:
        """The type of the replayed actor."""
        return self._before.actor_type

    def replay_entry(self, row: Row) -> None:
        """Fold an entry and compare the outputs. The new state and parts are the basis of the next
        entry.

        Raises DifferenceFound for the first difference, for a row that cannot be decoded, and if an
        entry before this entry is missing. Raises TableError if the lookup of a recorded value
        fails.
        """
        revision = journal.entry_revision(row)
        try:
            entry = journal.read_entry(row)
        except ValueError as error:
            raise difference_at(revision, "", "journal", str(error), None) from error
        self._check_revision(revision)
        fold = self._fold_entry(entry)
        self._compare_outputs(entry, fold)
        self.entries += 1
        self._may_skip_revisions = entry.is_spilled
        self._parts.update(fold.parts)
        state = _with_known_fields(self._actor_type, fold.state, entry.field_count)
        self._before = ActorSnapshot(self._before.address, revision, Header(), state)

    def compare_head(self, head: Row) -> None:
        """Compare the replayed state and parts with the stored head and the stored parts.

        Raises DifferenceFound for the first difference, for a head or part that cannot be decoded,
        and if entries before the head are missing. Raises TableError. The parts are not compared if
        the actor was advanced since the head was read.
        """
        self._check_revision(head.revision + 1)
        compare_head(self._table, head, self._before.state, self._parts)

    def _check_revision(self, revision: int) -> None:
        """Raise DifferenceFound unless `revision` directly follows the last replayed entry.

        The commits that mail a spilled outbox have no entries, so later revisions are accepted
        after an entry with a spilled outbox.
        """
        expected = self._before.revision + 1
        if revision != expected and not (self._may_skip_revisions and revision > expected):
            text = f"no entry of revision {expected}"
            raise difference_at(expected, "", "journal", text, None)

    def _fold_entry(self, entry: RecordedEntry, upto: int | None = None) -> Fold:
        """Fold all messages of an entry and call `finish_fold`, or fold only the first `upto`
        messages.

        The messages of a dead letter are applied with the fallback. `finish_fold` is not called for
        a dead letter or with `upto`. The replayed state and parts are not changed.

        Raises DifferenceFound if today's code cannot fold the entry or leaves no state. The
        fallback's own errors are only logged.
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
            field, today = failed_field(name, error)
            raise difference_at(entry.revision, name, field, "folded", today) from error
        if reader.fold.state is None:
            raise difference_at(entry.revision, name, "state", "an actor", None)
        return reader.fold

    def _compare_outputs(self, entry: RecordedEntry, fold: Fold) -> None:
        """Compare the digest of each output of the fold with the recorded digest.

        Raises DifferenceFound for the first output that differs, in the order of `output_rank`.
        Fields of the state that the recorded version did not have are not compared. A row of format
        1 has a single digest for everything.
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
        """Compare the encoded state and messages with the single digest of a row of format 1.

        Raises DifferenceFound for the field "unknown" if the digests differ.
        """
        sends = {
            to: [
                (name, actor_type_at(to).encode_message_with_defaults(name, parse_json(body)))
                for name, body in messages
            ]
            for to, messages in fold.sends.items()
        }
        replayed = journal.format_1_digest(self._actor_type.encode_state(fold.state), sends)
        if replayed != entry.full_digest:
            raise difference_at(
                entry.revision, _message_names(entry), UNKNOWN, entry.full_digest, replayed
            )

    def _output_difference(
        self, entry: RecordedEntry, name: str, replayed: bytes | None
    ) -> DifferenceFound:
        """Build the exception for an output that differs, with the message that caused the
        difference.

        Without `replayed`, the exception names all messages of the entry. Secret parts and recorded
        values that are no longer stored are represented by digests. Raises the DifferenceFound of
        `_find_cause`. Raises TableError if the lookup of the recorded value fails.

        Args:
            name: the name of the output (outputs.py).
            replayed: the replayed output, or None if the replay does not change this output.
        """
        assert entry.output_digests is not None
        message = self._find_cause(entry, name) if replayed is not None else _message_names(entry)
        digest, field = entry.output_digests.get(name), display_name(name)
        if name.removeprefix(PART) in self._actor_type.secret_parts:
            today = None if replayed is None else output_digest(replayed)
            return difference_at(entry.revision, message, field, digest, today)
        if replayed is None:
            replayed = self._output_before(name)
        if digest is None:
            recorded = self._output_before(name)
        else:
            recorded = find_value(self._table, self._before.address, name, digest)
            if recorded is None:
                return difference_at(
                    entry.revision, message, field, digest, displayed_value(replayed)
                )
        return narrow_difference(entry.revision, message, field, recorded, replayed)

    def _output_before(self, name: str) -> bytes | None:
        """Return the output's value before the commit, encoded without defaults.

        Return None if the output had no value, and for rows, messages and timers.

        Args:
            name: the name of the output (outputs.py).
        """
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
        DifferenceFound if the first messages alone leave no state.

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


def _with_known_fields(actor_type: ActorType, state: Any, field_count: int) -> Any:
    """Return a state with the default value in each field that the recorded version did not have.

    A field without a default stays unchanged.

    Args:
        field_count: the number of fields in the version that wrote the entry, which has the first
            fields of today's state. 0 if unknown: the state is returned unchanged.
    """
    unknown = tuple(actor_type.stored_names)[field_count:] if field_count else ()
    defaults = actor_type.field_defaults
    changes = {name: defaults[name] for name in unknown if name in defaults}
    return evolve(state, **changes) if changes else state


def _message_names(entry: RecordedEntry) -> str:
    """Return the distinct names of an entry's messages, separated by commas."""
    return ", ".join(dict.fromkeys(name for name, _ in entry.messages))
