"""The frames of tunnels: encoding, and a parser that accepts no other bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.shared.tunnel.frames import (
    ACK,
    CLOSE,
    DATA,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    OPEN,
    PAYLOAD_BYTES_MAX,
    SERVICE_BYTES_MAX,
    SESSION_BYTES,
    TEXT_BYTES_MAX,
    FrameReader,
    Hello,
    ProtocolError,
    decode_hello,
    decode_port,
    decode_service,
    decode_text,
    encode_ack,
    encode_frame,
    encode_hello,
    encode_port,
    encode_service,
    encode_text,
)

FRAMES = (
    encode_port(1, 8888),
    encode_service(2, "location"),
    encode_frame(DATA, 1, b"abc"),
    encode_ack(12),
    encode_hello(Hello(b"s" * SESSION_BYTES, 7, is_new=True)),
    encode_text(CLOSE, "over"),
)


@given(cuts=st.lists(st.integers(0, sum(map(len, FRAMES))), max_size=20))
def test_frames_survive_any_division(cuts: list[int]) -> None:
    stream, reader, found, before = b"".join(FRAMES), FrameReader(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        found += reader.feed(stream[before:cut])
        before = max(before, cut)
    assert [encode_frame(one.kind, one.stream, one.payload) for one in found] == list(FRAMES)


@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_parsed_without_other_errors(noise: bytes) -> None:
    reader = FrameReader()
    try:
        frames = reader.feed(noise)
    except ProtocolError:
        return
    assert sum(one.size for one in frames) <= len(noise)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"z" + bytes(8), "unknown kind"),
        (b"d" + (1).to_bytes(4) + (PAYLOAD_BYTES_MAX + 1).to_bytes(4), "expected 1 to 65536"),
        (b"o" + (1).to_bytes(4) + (3).to_bytes(4), "expected 2"),
        (b"s" + (1).to_bytes(4) + (SERVICE_BYTES_MAX + 1).to_bytes(4), "expected 1 to 64"),
        (b"s" + bytes(4) + (1).to_bytes(4), "expected a stream"),
        (b"d" + (0).to_bytes(4) + (1).to_bytes(4), "expected a stream"),
        (b"a" + (1).to_bytes(4) + (8).to_bytes(4), "expected no stream"),
    ],
)
def test_invalid_heads_are_refused_before_the_payload(head: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        FrameReader().feed(head)


def test_reader_stores_at_most_one_frame() -> None:
    reader = FrameReader()
    frame = encode_frame(DATA, 1, bytes(PAYLOAD_BYTES_MAX))
    assert reader.feed(frame[:-1]) == []
    assert len(reader._rest) < FRAME_BYTES_MAX
    assert [one.size for one in reader.feed(frame[-1:])] == [HEAD_BYTES + PAYLOAD_BYTES_MAX]
    assert len(reader._rest) == 0


def test_port_zero_is_refused() -> None:
    [frame] = FrameReader().feed(encode_port(1, 0))
    assert frame.kind == OPEN
    with pytest.raises(ProtocolError, match="port 0"):
        decode_port(frame.payload)


def test_name_of_a_service_is_utf8() -> None:
    [frame] = FrameReader().feed(encode_service(1, "é"))
    assert decode_service(frame.payload) == "é"
    with pytest.raises(ProtocolError, match="not UTF-8"):
        decode_service(b"\xff")


def test_other_versions_are_refused() -> None:
    [frame] = FrameReader().feed(FRAMES[4])
    assert decode_hello(frame.payload) == Hello(b"s" * SESSION_BYTES, 7, is_new=True)
    with pytest.raises(ProtocolError, match="version 2"):
        decode_hello(b"\x02" + frame.payload[1:])


def test_texts_are_cut_and_cleaned() -> None:
    [frame] = FrameReader().feed(encode_text(CLOSE, "é" * TEXT_BYTES_MAX))
    assert len(frame.payload) == TEXT_BYTES_MAX
    assert decode_text(b"a\x1b[31m\n\xff") == "a?[31m??"
    assert FrameReader().feed(encode_ack(3))[0].kind == ACK
