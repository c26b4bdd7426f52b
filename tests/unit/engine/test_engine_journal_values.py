"""The lookup of values behind the digests of a journal."""

from pathlib import Path

from control_plane.actors.messages.trial import WorkAssigned
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.journal import COMPRESSED, JOURNAL
from control_plane.engine.journal_values import find_value
from control_plane.engine.mailbox import FIRST, mail_key, mail_write
from control_plane.engine.outputs import MAIL, output_digest
from control_plane.state.memory import MemoryTable
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put

NOW_MS = 1_000_000
TRIAL = "trial#1"
# A page of the table has 1,000 rows.
ROWS = 1_050


def test_message_is_found_behind_the_first_page_of_mail(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "table.db")
    encoded = encode_message_for(TRIAL, WorkAssigned(4, False))
    puts = [
        mail_write(mail_key(TRIAL, clock, "pool#a"), "pool#a", FIRST, clock, [encoded], NOW_MS)
        for clock in range(1, ROWS)
    ]
    last = encode_message_for(TRIAL, WorkAssigned(8, False))
    puts.append(
        mail_write(
            mail_key(TRIAL, ROWS, "experiment#1"), "experiment#1", FIRST, ROWS, [last], NOW_MS
        )
    )
    for start in range(0, ROWS, 50):
        table.commit(puts[start : start + 50])
    value = b'[["WorkAssigned",{"length":8,"closed":false}]]'
    assert find_value(table, "experiment#1", f"{MAIL}{TRIAL}", output_digest(value)) == value
    assert find_value(table, "pool#a", f"{MAIL}{TRIAL}", output_digest(value)) is None
    table.close()


def test_value_behind_a_damaged_journal_row_counts_as_missing() -> None:
    table = MemoryTable()
    entry = Key(TRIAL, f"{JOURNAL}000000000001")
    table.commit([Put(entry, 1, COMPRESSED + b"not compressed data", Expect.ABSENT)])
    assert find_value(table, "experiment#1", f"{MAIL}{TRIAL}", "00000000") is None
