"""Makes the rows of a store equal to the rows of a copy, and writes only the differences.

A table that is restored into another table cannot take over the name of the first: neither DynamoDB
nor Firestore renames. Copying the differences keeps the store, its stream, its history of recovery
and its protection. A repeated copy continues an interrupted one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from control_plane.actors.identifiers import COUNTERS
from control_plane.state.table import Key

Item = TypeVar("Item")
_DIGEST_BYTES = 16


class StoredItem(NamedTuple):
    """A row in the form of a cloud's store."""

    key: Key
    """The key of the row."""
    content: Mapping[str, Any]
    """The whole row in the form in which the cloud stores it: JSON with bytes."""


class ItemStore(Protocol):
    """A store of rows in the form of the cloud."""

    batch_items: int
    """The most rows of a call of `write` or `delete`."""

    def read(self) -> Iterator[StoredItem]:
        """Yield all rows, each once, in any order."""
        ...

    def write(self, items: Sequence[StoredItem]) -> None:
        """Create or replace rows."""
        ...

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete rows; missing rows are no error."""
        ...


@dataclass(frozen=True)
class CopyReport:
    """The numbers of rows of a finished copy."""

    written: int
    """Rows that were missing or different."""
    deleted: int
    """Rows that the copy does not have."""
    unchanged: int
    """Rows that were equal."""
    counters: tuple[StoredItem, ...]
    """The counters of ids in the copy, which were not written."""


def copy_rows(source: Iterable[StoredItem], target: ItemStore) -> CopyReport:
    """Make the rows of `target` equal to `source`, except the counters of ids, and count the rows.

    Nothing else may write to `target` meanwhile. The counters are left as they are, because they
    must never go back. The report has the counters of the copy. The digests of all rows of `target`
    are kept in memory: 200 bytes a row.
    """
    digests = {
        stored.key: _digest(stored.content)
        for stored in target.read()
        if stored.key.partition != COUNTERS
    }
    unchanged = 0
    counters: list[StoredItem] = []

    def find_different() -> Iterator[StoredItem]:
        nonlocal unchanged
        for stored in source:
            if stored.key.partition == COUNTERS:
                counters.append(stored)
                continue
            if digests.pop(stored.key, b"") == _digest(stored.content):
                unchanged += 1
            else:
                yield stored

    written = 0
    for batch in _batches(find_different(), target.batch_items):
        target.write(batch)
        written += len(batch)
    for keys in _batches(iter(list(digests)), target.batch_items):
        target.delete(keys)
    return CopyReport(written, len(digests), unchanged, tuple(counters))


def _digest(content: Mapping[str, Any]) -> bytes:
    """Return a digest of a row that does not depend on the order of fields."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=bytes.hex)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`; yield nothing without items."""
    while batch := list(islice(items, size)):
        yield batch
