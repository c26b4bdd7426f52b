from __future__ import annotations

from pathlib import Path

from detcloud.agent.allocation.trial_log import (
    MARKS_MAX,
    MARKS_SENT_MAX,
    LogMarks,
    decode_log,
    log_tail,
    read_log,
    whole_lines,
)


def test_decoded_text_keeps_the_number_of_bytes() -> None:
    raw = b"ok \xff\xc3\xa9 \xe2\x82"
    assert decode_log(raw) == "ok ?é ??"
    assert len(decode_log(raw).encode()) == len(raw)


def test_an_incomplete_character_waits_for_more_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes("ab€".encode()[:-1])
    assert read_log(log, 0, 100, ended=False) == "ab"
    assert read_log(log, 0, 100, ended=True) == "ab??"
    log.write_bytes("ab€".encode())
    assert read_log(log, 0, 100, ended=False) == "ab€"
    assert read_log(log, 0, 4, ended=True) == "ab"


def test_log_tail_returns_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{n}\n" for n in range(100)))
    assert log_tail(log, 3) == "97\n98\n99"


def test_incomplete_lines_are_held_back() -> None:
    for text, whole in (("a\nb", "a\n"), ("10%\r20%\r3", "10%\r20%\r"), ("a", ""), ("a\n", "a\n")):
        assert whole_lines(text) == whole


def test_log_marks_are_at_least_250_ms_apart() -> None:
    marks = LogMarks()
    for size, time_ms in [(0, 1000), (10, 1000), (20, 1100), (30, 1250), (30, 9000), (40, 9000)]:
        marks.record_size(size, time_ms)
    # Bytes 0 to 19 arrived by 1,100 ms, within 250 ms of the first mark; bytes 20 to 39 later.
    assert marks.marks_between(0, 40) == [(0, 1000), (20, 1250), (30, 9000)]
    assert marks.marks_between(20, 30) == [(20, 1250)]
    assert marks.marks_between(25, 35) == [(20, 1250), (30, 9000)]
    marks.discard_before(25)
    assert marks.marks_between(25, 40) == [(20, 1250), (30, 9000)]
    assert marks.marks_between(0, 1) == []


def test_number_of_unread_marks_is_limited() -> None:
    marks = LogMarks()
    for n in range(3 * MARKS_MAX):
        marks.record_size(n + 1, 250 * n)
    kept = marks.marks_between(0, 3 * MARKS_MAX)
    assert kept[0] == (0, 0)
    assert MARKS_SENT_MAX // 4 < len(kept) <= MARKS_SENT_MAX
    # A remaining mark keeps the time of the byte at the mark's offset.
    assert all(time_ms == 250 * offset for offset, time_ms in kept)
