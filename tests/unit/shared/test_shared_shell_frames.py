"""The frames of shells: what is sent arrives, however it is cut, and nothing else is read."""

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
def test_frames_arrive_whole_however_the_connection_cuts_them(part: int) -> None:
    sent = b"".join(pack_frame(kind, payload) for kind, payload in FRAMES)
    reader = FrameReader()
    parts = [sent[place : place + part] for place in range(0, len(sent), part)]
    assert [frame for one in parts for frame in reader.feed(one)] == FRAMES


def test_a_frame_that_is_too_large_is_refused_before_it_has_come() -> None:
    head = pack_frame(DATA, b"x" * (FRAME_BYTES_MAX + 1))[:5]
    with pytest.raises(ValueError, match="has 65537 bytes, at most 65536"):
        FrameReader().feed(head)


def test_sizes_and_exit_codes_come_back() -> None:
    assert unpack_size(pack_size(50, 132)) == (50, 132)
    # Two bytes hold at most 65,535 rows.
    assert unpack_size(pack_size(-1, 70_000)) == (0, 65_535)
    assert unpack_exit_code(pack_exit_code(255)) == 255


@pytest.mark.parametrize("unpack", [unpack_size, unpack_exit_code])
@pytest.mark.parametrize("payload", [b"", b"abc", b"abcde"])
def test_payloads_of_another_length_are_refused(unpack: object, payload: bytes) -> None:
    assert callable(unpack)
    with pytest.raises(ValueError, match="bytes, not"):
        unpack(payload)


def test_a_greeting_is_one_line_and_comes_back() -> None:
    greeting = Greeting("secret", "xterm", 24, 80, ("python3", "-c", "print(1)\n"))
    line = greeting.encode()
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert Greeting.decode(line) == greeting


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"program": "ls"}', b'{"program": [1]}', b"\xff", b"[" * 60_000],
)
def test_what_is_no_greeting_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Greeting.decode(line)


def test_sizes_that_are_no_numbers_count_as_unknown() -> None:
    line = json.dumps({"token": "t", "rows": "many", "columns": None, "program": []}).encode()
    assert Greeting.decode(line) == Greeting("t", "", 0, 0)
