"""Documents of rows: paths, fields and Firestore's limits."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.actors import addresses
from control_plane.actors.job_row import POOLS, jobs_partition
from control_plane.engine.head import HEAD
from control_plane.engine.mailbox import MAIL, TIMERS
from control_plane.fleet.notices import NOTICES
from control_plane.gcp.row_documents import (
    COLLECTION,
    TRIGGER_PATTERNS,
    document_path,
    partition_hash,
    to_fields,
    to_key,
    to_row,
)
from control_plane.gcp.update_times import UpdateTimes
from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.state.table import (
    COMMIT_BYTES_MAX,
    OPERATIONS_MAX,
    PARTITION_BYTES_MAX,
    ROW_BYTES_MAX,
    SORT_BYTES_MAX,
    Expect,
    Key,
    Put,
    Row,
    check_limits,
    row_bytes,
)
from tests.emulators.firestore_indexes import INDEXES

TOKEN = b"token of 12!"
# Firestore's own limits, in bytes.
ID_BYTES_MAX = 1500
NAME_BYTES_MAX = 6 * 1024
INDEXED_BYTES_MAX = 1500
INDEX_ENTRY_BYTES_MAX = 7680
DOCUMENT_BYTES_MAX = 1 << 20
REQUEST_BYTES_MAX = 10 << 20

# Characters of 1 to 4 bytes, and characters with a meaning in Firestore's paths.
texts = st.text(st.one_of(st.sampled_from("/._-~a\x00"), st.characters()), min_size=1).filter(
    lambda text: not re.search("[\ud800-\udfff]", text)
)
sorts = texts.filter(lambda text: len(text.encode()) <= SORT_BYTES_MAX)


@given(st.lists(st.builds(Key, texts, sorts), min_size=2, max_size=20, unique=True))
def test_rows_have_distinct_documents(keys: list[Key]) -> None:
    assert len(set(map(document_path, keys))) == len(keys)


@given(texts, sorts)
def test_document_paths_are_valid_in_firestore(partition: str, sort: str) -> None:
    *parents, made = document_path(Key(partition, sort)).split("/")
    assert parents in (
        [COLLECTION],
        *(["triggers", trigger_pattern, COLLECTION] for trigger_pattern in TRIGGER_PATTERNS),
    )
    assert re.fullmatch(r"[-~0-9A-Za-z]+", made)
    assert made.startswith(partition_hash(partition))
    assert len(made) <= ID_BYTES_MAX


@pytest.mark.parametrize(
    ("key", "function"),
    [
        (Key(addresses.trial(7), f"{MAIL}0001#pool"), "advance"),
        (Key(jobs_partition("gpus"), "M"), "tick"),
        (Key(NOTICES, "i-1"), "tick"),
        (Key(SUGGESTION.partition, "7"), "tick"),
        (Key("events#experiment#7", "0000000000000001"), "tick"),
        # An actor's head, an actor's timers, and a pool with a name that begins like mail.
        (Key(addresses.trial(7), HEAD), ""),
        (Key(addresses.trial(7), f"{TIMERS}1"), ""),
        (Key(POOLS, "Mine"), ""),
    ],
)
def test_rows_are_in_the_collection_of_the_woken_function(key: Key, function: str) -> None:
    parents = document_path(key).rpartition("/")[0]
    assert parents == (f"triggers/{function}/rows" if function else "rows")
    if function:
        assert TRIGGER_PATTERNS[function] == f"{parents}/{{row}}"


def test_partition_hashes_are_spread() -> None:
    # 1,000 neighbours have 64 first characters: 16 rows each, with a deviation of 4.
    firsts = [partition_hash(f"trial#{n}")[0] for n in range(1000)]
    assert len(set(firsts)) == 64
    assert max(map(firsts.count, firsts)) < 40


@given(
    st.builds(
        Row,
        st.builds(Key, texts, sorts),
        st.integers(0, 1 << 52),
        st.binary(max_size=50),
        st.none() | st.integers(0, 1 << 52),
    ),
    st.booleans(),
)
def test_row_survives_the_conversion_to_a_document(row: Row, expires: bool) -> None:
    due = row.due_ms is not None
    put = Put(row.key, row.revision, row.body, Expect.ABSENT, row.due_ms, expires and due)
    document = {"fields": json.loads(json.dumps(to_fields(put, TOKEN)))}
    assert to_row(document) == Row(row.key, row.revision, row.body, row.due_ms, expires and due)
    assert to_key(document) == row.key
    assert ("x" in document["fields"]) <= put.expires


def test_expiring_rows_are_deleted_a_week_later() -> None:
    # 1,000,000,000,000 ms are 2001-09-09T01:46:40Z.
    at = 1_000_000_000_000
    fields = to_fields(Put(Key("p", "a"), 1, b"", Expect.ABSENT, at, expires=True), TOKEN)
    assert fields["x"] == {"timestampValue": "2001-09-16T01:46:40.000000Z"}
    assert datetime.fromtimestamp(at / 1000, UTC).isoformat() == "2001-09-09T01:46:40+00:00"
    assert "x" not in to_fields(Put(Key("p", "a"), 1, b"", Expect.ABSENT, at), TOKEN)


def test_largest_row_fits_into_a_document_and_the_indexes() -> None:
    key = Key("é" * (PARTITION_BYTES_MAX // 2), "é" * (SORT_BYTES_MAX // 2))
    body = bytes(ROW_BYTES_MAX - row_bytes(key, b""))
    put = Put(key, 1 << 52, body, Expect.ABSENT, 1 << 45, expires=True)
    check_limits([put])
    fields = to_fields(put, TOKEN)
    name = ["p" * 30, "d" * 63, *document_path(key).split("/")]
    # A name counts 1 byte for each part and 16 in all. A field counts its name and value.
    name_bytes = sum(len(part) + 1 for part in name) + 16
    assert name_bytes <= NAME_BYTES_MAX
    sizes = {field: len(field) + 1 + _value_bytes(value) for field, value in fields.items()}
    assert name_bytes + sum(sizes.values()) + 32 <= DOCUMENT_BYTES_MAX
    for index in INDEXES["indexes"]:
        indexed = [field["fieldPath"] for field in index["fields"]]
        assert all(sizes[field] <= INDEXED_BYTES_MAX for field in indexed)
        assert name_bytes + sum(sizes[field] for field in indexed) + 64 <= INDEX_ENTRY_BYTES_MAX


def test_largest_commit_fits_into_a_request() -> None:
    # A key counts once in the table, but a document has it three times. \x01 is 6 bytes of JSON.
    key_bytes = 2000
    share = COMMIT_BYTES_MAX // OPERATIONS_MAX - 64 - key_bytes - 4
    puts: Sequence[Put] = [
        Put(Key("\x01" * 1000 + f"{n:03d}", "\x01" * 1000), 1, bytes(share), Expect.ABSENT, 1)
        for n in range(OPERATIONS_MAX)
    ]
    check_limits(puts)
    size = sum(len(json.dumps(to_fields(put, TOKEN))) + 1800 for put in puts)
    assert size <= REQUEST_BYTES_MAX


def test_update_times_evict_the_least_recently_used_row() -> None:
    times = UpdateTimes(rows_max=2)
    a, b, c = (Key("p", sort) for sort in "abc")
    times.remember(a, 1, "first")
    times.remember(b, 1, "second")
    assert times.find(a, 1) == "first"
    times.remember(c, 1, "third")
    assert (times.find(a, 1), times.find(b, 1), times.find(c, 1)) == ("first", None, "third")
    assert times.find(a, 2) is None
    times.forget(a)
    assert times.find(a, 1) is None


def _value_bytes(value: Any) -> int:
    """Return the size of a value: a text's UTF-8 and one byte, or eight for number and time."""
    [(kind, content)] = value.items()
    if kind == "stringValue":
        return len(content.encode()) + 1
    return len(content) * 3 // 4 if kind == "bytesValue" else 8
