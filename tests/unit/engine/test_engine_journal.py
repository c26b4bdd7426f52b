"""Journal rows that cannot be read."""

import pytest

from control_plane.engine.journal import COMPRESSED, JOURNAL, decode_journal_row, read_entry
from control_plane.engine.spilled_outbox import decode_spill
from control_plane.state.table import Key, Row

DAMAGED = COMPRESSED + b"not compressed data"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"not JSON",
        DAMAGED,
        b'{"v":2,"now":1,"f":1,"in":[],"command":[],"out":{},"read":[]}',
    ],
)
def test_unreadable_entry_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a journal entry"):
        read_entry(Row(Key("trial#1", f"{JOURNAL}000000000001"), 1, body))


def test_damaged_compression_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="incorrect header check"):
        decode_journal_row(DAMAGED)
    with pytest.raises(ValueError, match="incorrect header check"):
        decode_spill(DAMAGED)
