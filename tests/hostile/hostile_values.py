"""JSON values that break some reader or writer, as sent by a client."""

from __future__ import annotations

import json
from collections.abc import Mapping

# Around the limit of the cluster's own gate, around the limits of pydantic's parser and encoder
# (200 and 255), and beyond the limits of the standard library's `json`.
GATE_DEPTHS = (60, 63, 64, 65, 66, 70)
CODEC_DEPTHS = (190, 199, 200, 201, 230, 251, 252, 253, 254, 255, 256, 260)
HUGE_DEPTHS = (1_000, 100_000)
FEW_DEPTHS = (64, 72, 199, 252, 1_000, 100_000)

MEBIBYTE = 1024 * 1024


def deep_object(depth: int) -> bytes:
    """Return objects nested to `depth`."""
    return b'{"a":' * depth + b"1" + b"}" * depth


def deep_list(depth: int) -> bytes:
    """Return lists nested to `depth`."""
    return b"[" * depth + b"]" * depth


def deep_mixture(depth: int) -> bytes:
    """Return nested objects and lists, alternately."""
    return b'[{"a":' * (depth // 2) + b"null" + b"}]" * (depth // 2)


def deep_values(depths: tuple[int, ...]) -> dict[str, bytes]:
    """Return values nested to each of these depths, by name."""
    makers = {"objects": deep_object, "lists": deep_list, "both": deep_mixture}
    return {
        f"{depth} {name}": make(depth)
        for depth in depths
        for name, make in makers.items()
        if name == "objects" or depth == 252
    }


TEXTS: Mapping[str, bytes] = {
    "half a surrogate pair": b'"\\ud800"',
    "the other half": b'"a\\udfffb"',
    "a NUL": b'"\\u0000"',
    "a NUL inside": b'"a\\u0000b"',
    "no text": b'""',
    "a blank": b'" "',
    "a mebibyte": json.dumps("a" * MEBIBYTE).encode(),
    "300 KiB that JSON escapes": json.dumps("\x01" * (50 * 1024)).encode(),
    "64 KiB of emoji": json.dumps("\U0001f600" * (16 * 1024), ensure_ascii=False).encode(),
    "a folder above": b'"../../x"',
    "a slash": b'"a/b"',
    "a hash": b'"a#b~"',
    "control characters": b'"\\u001b[31m\\u0007\\u0085\\u2028"',
    "directions": b'"\\u202e\\u2066"',
    "a noncharacter": b'"\\uffff\\ufffe"',
    "a dunder": b'"__name__"',
}

NUMBERS: Mapping[str, bytes] = {
    "400 digits": b"1" + b"0" * 400,
    "-400 digits": b"-1" + b"0" * 400,
    "5000 digits": b"1" * 5_000,
    "2**63": b"9223372036854775808",
    "2**53 + 1": b"9007199254740993",
    "1e400": b"1e400",
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "-1": b"-1",
    "-0.0": b"-0.0",
    "5e-324": b"5e-324",
    "true": b"true",
    "null": b"null",
}

OBJECTS: Mapping[str, bytes] = {
    "an empty key": b'{"":1}',
    "a key of half a surrogate pair": b'{"\\udc00":1}',
    "a key with a NUL": b'{"a\\u0000":1}',
    "a key twice": b'{"a":1,"a":2}',
    "a key twice, inside": b'{"x":[{"a":1,"a":{}}]}',
    "keys with dots": b'{"a.b":1,"a":{"b":2},".":3,"..":4}',
    "a dunder key": b'{"__class__":1,"__proto__":{"x":1}}',
    "a long key": b'{"' + b"k" * 100_000 + b'":1}',
    "20,000 keys": json.dumps({f"k{n}": n for n in range(20_000)}).encode(),
    "half a surrogate pair, inside": b'{"x":["\\ud83d"]}',
    "a NUL, inside": b'{"x":{"y":"\\u0000"}}',
    "400 digits, inside": b'{"x":[1' + b"0" * 400 + b"]}",
    "NaN, inside": b'{"x":[NaN]}',
    "Infinity, inside": b'{"x":{"y":-Infinity}}',
    "an empty object": b"{}",
    "an empty list": b"[]",
}

BODIES: Mapping[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1",
    "NaN": b"NaN",
    "a text": b'"\\ud800"',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-32": '{"a":1}'.encode("utf-32"),
    "Latin-1": b'{"a":"\xe9"}',
    "an encoded surrogate": b'{"a":"\xed\xa0\x80"}',
    "half an object": b'{"a":',
    "two objects": b"{}{}",
    "a bare NUL": b'{"a":"\x00"}',
    "5000 digits": b"1" * 5_000,
    **deep_values((64, 250, 1_000, 100_000)),
}

FEW: Mapping[str, bytes] = {**TEXTS, **NUMBERS, **OBJECTS, **deep_values(FEW_DEPTHS)}
"""Values for a field of any type."""

ALL: Mapping[str, bytes] = {**FEW, **deep_values((*GATE_DEPTHS, *CODEC_DEPTHS, *HUGE_DEPTHS))}
"""Values for a field that takes any JSON."""
