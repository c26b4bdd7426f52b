"""Comparison of a replayed actor with the stored head and parts."""

from collections.abc import Iterator, Mapping
from typing import Any

from control_plane.engine.actor_types import ActorType, actor_type_at
from control_plane.engine.head import PARTS, decode_head
from control_plane.engine.outputs import OUTBOX, PART, display_name, output_digest
from control_plane.engine.replay_differences import (
    difference_at,
    error_line,
    narrow_difference,
)
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Row, StateTable

PART_ROWS_PAGE = 200


def compare_head(
    table: StateTable, head: Row, state: Any, parts: Mapping[str, object | None]
) -> None:
    """Compare a replayed actor with the stored state and the stored parts. Reads the parts.

    Raises DifferenceFound for the first difference, or if the stored head or a stored part cannot
    be decoded. Raises TableError. The parts are not compared if another process has advanced the
    actor since `head` was read.

    Args:
        head: the stored head row.
        state: the replayed state.
        parts: the replayed parts by name. None stands for a deleted part.
    """
    actor_type = actor_type_at(head.key.partition)
    try:
        stored = actor_type.decode_state(decode_head(head.body)[1])
    except ValueError as error:
        raise difference_at(head.revision, "", "head", error_line(error), None) from error
    for name, stored_name in actor_type.stored_names.items():
        recorded = actor_type.encode_field(name, getattr(stored, name))
        replayed = actor_type.encode_field(name, getattr(state, name))
        if recorded != replayed:
            raise narrow_difference(head.revision, "", stored_name, recorded, replayed)
    _compare_parts(table, head, actor_type, parts)


def _compare_parts(
    table: StateTable, head: Row, actor_type: ActorType, parts: Mapping[str, object | None]
) -> None:
    """Read the stored parts and compare the replayed parts, encoded without defaults.

    Raises DifferenceFound for the first part, by name, that differs, is missing on one side, or
    cannot be decoded. The values of a secret part are represented by digests. Raises TableError.

    Do nothing if another process has advanced the actor since `head` was read.
    """
    stored = dict(_stored_parts(table, head))
    again = table.get(head.key)
    if again is None or again.revision != head.revision:
        # The parts may be newer than the head.
        return
    present = {name: value for name, value in parts.items() if value is not None}
    for name in sorted({**present, **stored}):
        recorded = _stored_part_without_defaults(actor_type, head, name, stored.get(name))
        replayed = (
            actor_type.encode_part_without_defaults(name, present[name])
            if name in present
            else None
        )
        if recorded != replayed:
            if name in actor_type.secret_parts:
                recorded, replayed = (
                    x and b'"%s"' % output_digest(x).encode() for x in (recorded, replayed)
                )
            raise narrow_difference(
                head.revision, "", display_name(PART + name), recorded, replayed
            )


def _stored_part_without_defaults(
    actor_type: ActorType, head: Row, name: str, body: bytes | None
) -> bytes | None:
    """Return a stored part, decoded and encoded again without defaults. Return None for no part.

    Raises DifferenceFound if the part cannot be decoded.
    """
    if body is None:
        return None
    try:
        return actor_type.encode_part_without_defaults(name, actor_type.decode_part(name, body))
    except ValueError as error:
        field = display_name(PART + name)
        raise difference_at(head.revision, "", field, error_line(error), None) from error


def _stored_parts(table: StateTable, head: Row) -> Iterator[tuple[str, bytes]]:
    """Yield the name and body of each stored part, by name, except for parts of a spilled outbox.

    The parts of a spilled outbox are messages that are not mailed yet. Raises TableError if a read
    fails.
    """
    end = PARTS[:-1] + chr(ord(PARTS[-1]) + 1)
    for row in read_rows(table, head.key.partition, PARTS, end, page_rows=PART_ROWS_PAGE):
        name = row.key.sort.removeprefix(PARTS)
        if not name.startswith(OUTBOX):
            yield name, row.body
