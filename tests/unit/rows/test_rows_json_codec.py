"""Bodies keep the bytes of earlier releases, and fields of newer versions."""

import json
from dataclasses import asdict

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_put
from control_plane.actors.job_row import JobRow, encode_job
from control_plane.actors.metadata_edits import MetadataEdit, encode_edit
from control_plane.actors.pins import Pin, encode_pin
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.rows.unknown_fields import append_fields, keep_unknown, select_unknown
from control_plane.usecases.templates import TemplateRecord

TEMPLATES = JsonCodec(user_rows.TEMPLATE, TemplateRecord, ensure_ascii=False)
TEMPLATE = TemplateRecord("t", "description: é\n", "", 1, 2, "a")

# Fields of tokens that are left out of the row if they have their defaults.
OMITTED = {"stored_role", "token_id", "installation"}


def test_encoded_bytes_equal_earlier_releases() -> None:
    assert encode_pin(Pin((1,), users=("é",))) == (
        b'{"by": [1], "gone": false, "users": ["\\u00e9"]}'
    )
    assert encode_edit(MetadataEdit({"a": [1]}, ("b",))) == (
        b'{"values": {"a": [1]}, "removed": ["b"]}'
    )
    assert b'"stay"' not in encode_job(JobRow())
    assert encode_job(JobRow(stay=2)).endswith(b'"deadline_ms": null, "stay": 2}')
    principal = Principal("a", Role.USER, makers=("d",))
    fields = {name: value for name, value in asdict(principal).items() if name not in OMITTED}
    assert token_put("d" * 64, principal).body == json.dumps(fields).encode()
    assert TEMPLATES.encode(TEMPLATE) == json.dumps(asdict(TEMPLATE), ensure_ascii=False).encode()


def test_rewrite_without_unknown_fields_changes_no_bytes() -> None:
    body = TEMPLATES.encode(TEMPLATE)
    assert TEMPLATES.encode(TEMPLATE, body) == body
    assert TEMPLATES.encode(TEMPLATE, b"") == body


def test_missing_fields_get_defaults_and_required_fields_must_exist() -> None:
    fields = {name: value for name, value in asdict(TEMPLATE).items() if name != "masking"}
    assert TEMPLATES.decode(json.dumps(fields).encode()).masking == 0
    del fields["config"]
    with pytest.raises(TypeError, match="config"):
        TEMPLATES.decode(json.dumps(fields).encode())


def test_field_with_the_default_is_not_taken_for_an_unknown_field() -> None:
    # `users` is left out of the new body, and `before` has the users of an unpinned checkpoint.
    before = encode_pin(Pin((1,), users=("a",)))
    assert encode_pin(Pin((1,)), before) == encode_pin(Pin((1,)))


@pytest.mark.parametrize(
    ("body", "before", "expected"),
    [
        (b"{}", b'{"b": 1}', b'{"b": 1}'),
        (b'{"a":1}', b'{"a": 2, "b": 1}', b'{"a":1,"b": 1}'),
        (b'{"a":1}', b'{"a": 2}', b'{"a":1}'),
        (b'{"a":1}', b"[1]", b'{"a":1}'),
        (b'{"a":1}', None, b'{"a":1}'),
    ],
)
def test_unknown_fields_are_appended(body: bytes, before: bytes | None, expected: bytes) -> None:
    assert keep_unknown(body, before, {"a"}) == expected


def test_known_fields_give_no_unknown_bytes() -> None:
    assert select_unknown({"a": 1}, {"a"}) == b""
    assert append_fields(b"{}", b"") == b"{}"


def test_rejects_codec_of_a_different_row() -> None:
    with pytest.raises(AssertionError, match="template"):
        JsonCodec(user_rows.TEMPLATE, Pin)
