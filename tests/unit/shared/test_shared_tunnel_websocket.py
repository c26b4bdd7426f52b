"""WebSocket as a stream of bytes: valid frames in any division, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.shared.tunnel.websocket import (
    BINARY,
    CLOSE,
    PAYLOAD_BYTES_MAX,
    PING,
    Control,
    WebSocketError,
    WebSocketReader,
    accept_key,
    apply_mask,
    encode,
    encode_close,
)

MASK = b"\x01\x80\xff\x00"


def test_key_of_the_rfc() -> None:
    # The example of RFC 6455, section 1.3.
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_masked_hello_of_the_rfc() -> None:
    # The example of RFC 6455, section 5.7, as a binary message.
    frame = bytes.fromhex("828537fa213d7f9f4d5158")
    assert WebSocketReader(expects_masks=True).feed(frame) == [memoryview(b"Hello")]
    assert encode(BINARY, b"Hello", bytes.fromhex("37fa213d")) == frame


@given(
    payloads=st.lists(st.binary(max_size=300) | st.just(bytes(70_000)), max_size=6),
    cuts=st.lists(st.integers(0, 500), max_size=30),
    masked=st.booleans(),
)
def test_payload_survives_any_division(
    payloads: list[bytes], cuts: list[int], masked: bool
) -> None:
    mask = MASK if masked else b""
    stream = b"".join(encode(BINARY, one, mask) + encode(PING, b"p", mask) for one in payloads)
    reader, found, before = WebSocketReader(expects_masks=masked), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        found += reader.feed(stream[before:cut])
        before = max(before, cut)
    data = b"".join(one for one in found if isinstance(one, memoryview))
    assert data == b"".join(payloads)
    assert found.count(Control(PING, b"p")) == len(payloads)


@given(payload=st.binary(max_size=100), mask=st.binary(min_size=4, max_size=4))
def test_mask_is_the_xor_of_each_byte(payload: bytes, mask: bytes) -> None:
    expected = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    assert apply_mask(payload, mask) == expected


def test_fragments_are_one_stream() -> None:
    reader = WebSocketReader(expects_masks=False)
    assert reader.feed(b"\x02\x01a" + encode(PING, b"") + b"\x80\x01b") == [
        b"a",
        Control(PING, b""),
        b"b",
    ]


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\xc2\x00", "reserved bits"),
        (b"\x82\x80" + MASK, "expected to have no mask"),
        (b"\x81\x01a", "not binary"),
        (b"\x80\x01a", "continues none"),
        (b"\x02\x01a\x82\x01b", "inside another"),
        (b"\x8b\x00", "unknown kind"),
        (b"\x09\x00", "fragmented"),
        (b"\x89\x7e\x00\x7e", "more than 125"),
        (b"\x82\x7e\x00\x01a", "expected 126"),
        (b"\x82\x7f" + (PAYLOAD_BYTES_MAX + 1).to_bytes(8), "expected 65536"),
        (b"\x82\x7f" + b"\xff" * 8, "expected 65536"),
        (b"\x88\x01a", "close frame has 1 byte"),
    ],
)
def test_invalid_frames_are_refused(frame: bytes, text: str) -> None:
    with pytest.raises(WebSocketError, match=text):
        WebSocketReader(expects_masks=False).feed(frame)


@given(noise=st.binary(max_size=100), masked=st.booleans())
def test_noise_is_refused_or_parsed_without_other_errors(noise: bytes, masked: bool) -> None:
    reader = WebSocketReader(expects_masks=masked)
    try:
        found = reader.feed(noise)
    except WebSocketError:
        return
    assert sum(len(one) for one in found if isinstance(one, memoryview)) <= len(noise)


def test_nothing_is_parsed_after_a_close() -> None:
    reader = WebSocketReader(expects_masks=False)
    [close] = reader.feed(encode_close(1001, "over") + encode(BINARY, b"late"))
    assert isinstance(close, Control)
    assert (close.opcode, close.code, close.reason) == (CLOSE, 1001, "over")
    assert reader.feed(encode(BINARY, b"late")) == []
