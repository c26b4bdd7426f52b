"""Frames and greetings of the shell protocol are encoded, decoded and validated."""

import json

import pytest

from detcloud.shared.shell_frames import (
    DATA,
    END,
    EXIT,
    FRAME_BYTES_MAX,
    SIZE,
    FrameReader,
    Greeting,
    pack_exit_code,
    pack_frame,
    pack_size,
    unpack_exit_code,
    unpack_size,
)

FRAMES = [(DATA, b"ls\n"), (SIZE, pack_size(24, 80)), (END, b""), (EXIT, pack_exit_code(-3))]


@pytest.mark.parametrize("part", [1, 2, 3, 7, 1000])
def test_frames_are_reassembled_from_any_pieces(part: int) -> None:
    sent = b"".join(pack_frame(kind, payload) for kind, payload in FRAMES)
    reader = FrameReader()
    parts = [sent[place : place + part] for place in range(0, len(sent), part)]
    assert [frame for piece in parts for frame in reader.feed(piece)] == FRAMES


def test_an_oversized_frame_is_refused_by_its_head() -> None:
    head = pack_frame(DATA, b"x" * (FRAME_BYTES_MAX + 1))[:5]
    with pytest.raises(ValueError, match="has 65537 bytes, at most 65536"):
        FrameReader().feed(head)


def test_sizes_and_exit_codes_are_unpacked_unchanged() -> None:
    assert unpack_size(pack_size(50, 132)) == (50, 132)
    # Two bytes hold at most 65,535 rows.
    assert unpack_size(pack_size(-1, 70_000)) == (0, 65_535)
    assert unpack_exit_code(pack_exit_code(255)) == 255


@pytest.mark.parametrize("unpack", [unpack_size, unpack_exit_code])
@pytest.mark.parametrize("payload", [b"", b"abc", b"abcde"])
def test_payloads_of_a_wrong_length_are_refused(unpack: object, payload: bytes) -> None:
    assert callable(unpack)
    with pytest.raises(ValueError, match="bytes, not"):
        unpack(payload)


def test_a_greeting_is_a_single_line_and_decoded_unchanged() -> None:
    greeting = Greeting("secret", "xterm", 24, 80, ("python3", "-c", "print(1)\n"))
    line = greeting.encode()
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert Greeting.decode(line) == greeting


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"program": "ls"}', b'{"program": [1]}', b"\xff", b"[" * 60_000],
)
def test_malformed_greeting_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Greeting.decode(line)


def test_malformed_sizes_of_a_greeting_become_zero() -> None:
    line = json.dumps({"token": "t", "rows": "many", "columns": None, "program": []}).encode()
    assert Greeting.decode(line) == Greeting("t", "", 0, 0)
