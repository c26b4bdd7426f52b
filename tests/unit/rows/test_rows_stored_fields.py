"""Fields that were renamed in the code are stored under their former names."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from control_plane.actors.step import StepContext
from control_plane.adapters import RecordCodec
from control_plane.engine.actor_types import ActorType
from control_plane.engine.outputs import field_outputs
from control_plane.rows.json_codec import JsonCodec
from control_plane.rows.row_type import RowType
from control_plane.rows.stored_fields import keep_stored_name, stored_field_names


@dataclass(frozen=True)
class Inner:
    size: int = 0
    color: str = field(default="blue", metadata=keep_stored_name("hue"))


@dataclass(frozen=True)
class Record:
    number: int = field(metadata=keep_stored_name("nr"))
    inner: Inner = field(default_factory=Inner, metadata=keep_stored_name("core"))


@dataclass(frozen=True, slots=True)
class RecordRenamed:
    """A message with a renamed field."""

    number: int = field(metadata=keep_stored_name("nr"))
    inner: Inner = Inner()


@dataclass(frozen=True, slots=True)
class RecordRemoved:
    """A message without a renamed field."""


def no_step(state: object, message: object, context: StepContext) -> object:
    raise AssertionError


RecordMessage = RecordRenamed | RecordRemoved
ACTOR = ActorType(
    Record, RecordMessage, "RecordRenamed", no_step, no_step, part_types={"part": Record}
)
RECORD = Record(3, Inner(1, "red"))
BODY = b'{"nr":3,"core":{"size":1,"hue":"red"}}'
ROW_TYPE = RowType(
    name="record",
    key="records / NUMBER",
    meaning="A record.",
    writers=(),
    readers=(),
    record=f"{__name__}:Record",
)


def test_state_and_part_are_stored_under_the_former_names() -> None:
    assert ACTOR.encode_state(RECORD) == BODY
    assert ACTOR.decode_state(BODY) == RECORD
    assert ACTOR.encode_part("part", RECORD) == BODY
    assert ACTOR.decode_part("part", BODY) == RECORD
    assert ACTOR.encode_part_without_defaults("part", Record(3, Inner(1))) == (
        b'{"nr":3,"core":{"size":1}}'
    )


def test_message_is_stored_under_the_former_names() -> None:
    stored = ("RecordRenamed", b'{"nr":3,"inner":{"hue":"red"}}')
    message = RecordRenamed(3, Inner(0, "red"))
    assert ACTOR.encode_message(message) == stored
    assert ACTOR.decode_message("RecordRenamed", json.loads(stored[1])) == message
    assert ACTOR.encode_message_with_defaults("RecordRenamed", {"nr": 3}) == (
        b'{"nr":3,"inner":{"size":0,"hue":"blue"}}'
    )


def test_new_name_is_not_read() -> None:
    with pytest.raises(ValueError, match="nr"):
        ACTOR.decode_state(b'{"number":3}')
    assert ACTOR.decode_state(b'{"nr":3,"core":{"color":"red"}}') == Record(3)


def test_renamed_field_is_not_taken_for_an_unknown_field() -> None:
    newer = b'{"nr":3,"core":{},"number":4,"newer":5}'
    unknown = b'"number": 4, "newer": 5'
    assert ACTOR.select_unknown_fields(newer) == unknown
    assert ACTOR.select_unknown_part_fields("part", newer) == unknown


def test_journal_has_the_stored_name_and_the_same_digest() -> None:
    assert list(ACTOR.names_in_code) == ["nr", "core"]
    assert ACTOR.field_defaults == {"inner": Inner()}
    changed = replace(RECORD, inner=Inner(1))
    assert dict(field_outputs(ACTOR, RECORD, changed)) == {"core": b'{"size":1}'}
    assert dict(field_outputs(ACTOR, None, Record(3))) == {"nr": b"3"}


@pytest.mark.parametrize("codec", [JsonCodec, RecordCodec])
def test_row_is_stored_under_the_former_names(codec: Any) -> None:
    @dataclass(frozen=True)
    class Row:
        number: int = field(metadata=keep_stored_name("nr"))

    row_type = replace(ROW_TYPE, record=f"{Row.__module__}:{Row.__qualname__}")
    rows = codec(row_type, Row)
    body = rows.encode(Row(3), b'{"nr": 1, "number": 4}')
    assert json.loads(body) == {"nr": 3, "number": 4}
    assert rows.decode(body) == Row(3)


def test_names_are_listed_in_order() -> None:
    assert stored_field_names(Record) == {"number": "nr", "inner": "core"}
    assert stored_field_names(Inner) == {"size": "size", "color": "hue"}
