"""The checks of JSON in requests and trial reports before the values are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from control_plane.json_gate import (
    BODY_DEPTH_MAX,
    NUMBER_MAX,
    JsonRefused,
    check_size,
    check_value,
    parse_agent_body,
    parse_body,
    parse_stored,
    readable,
    storable_line,
)
from detcloud.shared.json_depth import JSON_DEPTH_MAX, is_too_deep

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
ANY_TEXTS = st.text(st.characters())
NUMBERS = st.integers(-NUMBER_MAX, NUMBER_MAX) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)
ANY_LEAVES = st.none() | st.integers() | st.floats() | ANY_TEXTS | st.just(10**400)
ANY_VALUES = st.recursive(
    ANY_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXTS, inner), max_leaves=20
)
OBJECTS = TypeAdapter(Mapping[str, object])


def nest_value(value: object, depth: int) -> object:
    for level in range(depth):
        value = [value] if level % 3 else {"a": value}
    return value


@given(VALUES, st.integers(0, JSON_DEPTH_MAX - 5))
def test_accepted_values_pass_all_codecs(value: object, depth: int) -> None:
    value = {"v": nest_value(value, depth)}
    if is_too_deep(value):
        with pytest.raises(JsonRefused, match="nested more than 64 levels deep"):
            check_value(value)
        return
    check_value(value)
    text = json.dumps(value, ensure_ascii=False).encode()
    assert parse_body(text) == value
    assert parse_body(json.dumps(value).encode()) == value
    assert from_json(to_json(value)) == value
    assert OBJECTS.validate_json(OBJECTS.dump_json(value)) == value
    # A page of answers adds a few levels of nesting.
    page = nest_value(value, 10)
    assert json.loads(to_json(page)) == page
    assert readable(value) == (value, "")
    check_size(value, len(text))
    with pytest.raises(JsonRefused, match="bytes as JSON"):
        check_size(value, len(text) - 1)


@given(ANY_VALUES)
def test_lines_are_refused_or_storable(value: object) -> None:
    line = {"kind": "metrics", "metrics": value}
    text = json.dumps(line, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):
        with pytest.raises(JsonRefused, match="surrogate"):
            storable_line(line, 1 << 20)
        return
    stored, size = storable_line(line, 1 << 20)
    check_value(stored)
    assert size == len(to_json(stored))


@given(ANY_VALUES)
def test_stored_values_are_always_readable(value: object) -> None:
    shown, damage = readable(value)
    check_value(shown)
    assert bool(damage) == (shown != value)


DEEP = '{"a":' * (BODY_DEPTH_MAX + 1) + "1" + "}" * (BODY_DEPTH_MAX + 1)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{"m":{"x":["\\ud800"]}}', "m.x[0]", "half of a surrogate pair"),
        ('{"m":{"x":["a\\u0000"]}}', "m.x[0]", "NUL character"),
        ('{"m":{"\\udfff":1}}', 'm."\\udfff"', "half of a surrogate pair"),
        ('{"m":{"a\\u0000":1}}', 'm."a\\u0000"', "NUL character"),
        ('{"m":[0,NaN]}', "m[1]", "finite number"),
        ('{"m":-Infinity}', "m", "finite number"),
        ('{"m":1e400}', "m", "finite number"),
        ('{"m":%s}' % ("9" * 290 + "e50"), "m", "finite number"),
        ('{"m":1%s}' % ("0" * 309), "m", "is an integer of more than 308 digits"),
        ('{"m":-1%s}' % ("0" * 5_000), "m", "is an integer of more than 308 digits"),
        ('{"m":{"x":{"k":1,"k":2}}}', "m.x", "has the key k twice"),
        ('{"m":1,"m":1}', "", "has the key m twice"),
        ('{"m":[{},{"\\u0000":1,"\\u0000":1}]}', "m[1]", r'has the key "\\u0000" twice'),
        (DEEP, ".".join("a" * BODY_DEPTH_MAX), "is nested more than 72 levels deep"),
        ("[" * 100_000, "", "nested too deep"),
        ('{"a":' * 5_000, "", "nested too deep"),
    ],
)
def test_rejects_body_with_the_place(text: str, place: str, message: str) -> None:
    with pytest.raises(JsonRefused, match=message) as refused:
        parse_body(text.encode())
    assert refused.value.place == place


@pytest.mark.parametrize(
    ("content", "byte"),
    [
        ('{"a":1}'.encode("utf-16"), 0),
        (b'{"a":"\xe9"}', 6),
        (b'{"a":"\xed\xa0\x80"}', 6),
        (b"\xc0\xae", 0),
    ],
)
def test_rejects_bodies_that_are_not_utf_8(content: bytes, byte: int) -> None:
    for parse in (parse_body, parse_agent_body):
        with pytest.raises(JsonRefused, match=f"not UTF-8 at byte {byte}"):
            parse(content)


def test_agent_bodies_may_have_unstorable_lines() -> None:
    text = b'{"a":NaN,"b":"\\ud800","c":1%s,"d":1,"d":2}' % (b"0" * 5_000)
    body = parse_agent_body(text)
    assert (body["b"], body["d"]) == ("\ud800", 2)
    assert body["c"] > NUMBER_MAX


def test_too_large_numbers_of_lines_become_infinities() -> None:
    line: dict[str, Any] = {"a": [10**400, -(10**400), float("nan"), float("-inf"), 10**308, "\0"]}
    stored, _ = storable_line(line, 1 << 20)
    assert stored == {"a": ["Infinity", "-Infinity", "NaN", "-Infinity", 10**308, "\ufffd"]}


@pytest.mark.parametrize("depth", [65, 200, 252, 900])
def test_deep_stored_value_is_shown_up_to_the_limit(depth: int) -> None:
    text = b'{"a":' * depth + b"1" + b"}" * depth
    shown, damage = readable(parse_stored(text))
    assert damage == ".".join("a" * JSON_DEPTH_MAX) + ": is nested more than 64 levels deep"
    for _ in range(JSON_DEPTH_MAX):
        shown = shown["a"]
    assert shown is None


def test_long_place_is_cut() -> None:
    with pytest.raises(JsonRefused) as refused:
        check_value({"k" * 1_000: float("nan")})
    assert refused.value.place == "k" * 200 + "..."


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_malformed_stored_content_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|decode|nested"):
        parse_stored(content)
