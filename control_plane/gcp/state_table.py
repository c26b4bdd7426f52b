"""The StateTable in a database of Firestore.

A commit is an atomic batch of writes with preconditions, never a transaction, which would lock what
it reads. Firestore compares existence and update times: the update time of a revision is known from
the row's last reading or writing here, or is read. A batch that fails a precondition does not say
which, so the rows are read; where every condition holds by now, the batch goes again.

Reads, queries by an index too, are strongly consistent, and the documents of one query are of one
moment. A request that did nothing is sent again after a random pause. A commit whose answer was
lost is sent again only where it can happen no second time, and a token in the rows tells whether it
happened (decision 0052).
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from control_plane.gcp.firestore_client import (
    FirestoreClient,
    Refusal,
    RequestNotExecuted,
    UnknownOutcome,
)
from control_plane.gcp.row_documents import (
    COLLECTION,
    document_path,
    has_token,
    integer_value,
    partition_hash,
    revision_of,
    to_fields,
    to_key,
    to_row,
)
from control_plane.gcp.update_times import UpdateTimes
from control_plane.state.retry_pauses import RetryPauses
from control_plane.state.table import (
    NEVER_MS,
    Check,
    Conflict,
    Delete,
    Expect,
    InvalidCommit,
    Key,
    Page,
    Put,
    Row,
    TableError,
    Unavailable,
    Write,
    check_limits,
    is_unconditional_check,
    page_of,
)

# Due rows that a look at several shards reads: where there are more, each shard is looked at.
DUE_ROWS_MAX = 16
_TOKEN_BYTES = 12
# What a precondition that does not hold is answered with. A database that is not there is not
# found either, which the reading of the rows shows.
_PRECONDITION_FAILED = ("ALREADY_EXISTS", "FAILED_PRECONDITION", "NOT_FOUND")
# A field that no row has: an update of it alone changes nothing, and so not the update time either.
_NO_FIELD = "none"

JsonObject = Mapping[str, Any]
Answer = TypeVar("Answer")


class FirestoreTable:
    """A StateTable in the documents of a database. `sleep` waits for seconds."""

    # Firestore promises that no document of an answer has changed before the time of its last one.
    snapshot_queries = True

    def __init__(
        self, client: FirestoreClient, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._times = UpdateTimes()

    def close(self) -> None:
        """Close the connections. The table cannot be used afterwards."""
        self._client.close()

    def get(self, key: Key) -> Row | None:
        """Read a row, or None."""
        return self.get_many((key,))[0]

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows by their keys, in their order; None for a row that does not exist."""
        if not keys:
            return ()
        names = {key: self._name(key) for key in keys}
        found = self._read(lambda: self._client.get_documents(list(names.values())))
        rows = {name: self._remember(document) for name, document in found.items()}
        return tuple(rows.get(names[key]) for key in keys)

    def find_key(self, path: str) -> Key | None:
        """Return the key of the row whose document has that path in the database, None where there
        is none.
        """
        name = f"{self._client.documents}/{path}"
        found = self._read(lambda: self._client.get_documents((name,), ("p", "s")))
        return to_key(found[name]) if name in found else None

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read one page of a range of rows."""
        if first >= last:
            return Page((), None)
        filters = [
            _filter("k", "EQUAL", {"stringValue": partition_hash(partition)}),
            _filter("s", "GREATER_THAN_OR_EQUAL", {"stringValue": first}),
            _filter("s", "LESS_THAN", {"stringValue": last}),
        ]
        order = _order("s", "DESCENDING" if descending else "ASCENDING")
        # One more shows whether there are more.
        query = _structured_query(filters, order, limit + 1)
        documents, is_whole = self._read(lambda: self._client.run_query(query))
        rows = [self._remember(document) for document in documents]
        return page_of(rows, limit if is_whole else min(limit, len(rows) - 1), descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return those of the shards that may have due rows, by one query of them all, which costs
        one read where nothing is due.
        """
        numbers = {"arrayValue": {"values": [integer_value(shard) for shard in shards]}}
        filters = [
            _filter("h", "IN", numbers),
            _filter("d", "LESS_THAN_OR_EQUAL", integer_value(until_ms)),
        ]
        query = _structured_query(filters, _order("d", "ASCENDING"), DUE_ROWS_MAX, ("h",))
        documents, is_whole = self._read(lambda: self._client.run_query(query))
        if len(documents) >= DUE_ROWS_MAX or not is_whole:
            return tuple(shards)
        found = {int(document["fields"]["h"]["integerValue"]) for document in documents}
        return tuple(shard for shard in shards if shard in found)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read keys of due rows of a shard, earliest first."""
        filters = [
            _filter("h", "EQUAL", integer_value(shard)),
            _filter("d", "GREATER_THAN", integer_value(after_ms)),
            _filter("d", "LESS_THAN_OR_EQUAL", integer_value(until_ms)),
        ]
        query = _structured_query(filters, _order("d", "ASCENDING"), limit, ("p", "s"))
        documents, _ = self._read(lambda: self._client.run_query(query))
        return tuple(map(to_key, documents))

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes or none."""
        check_limits(writes)
        effective = [write for write in writes if not is_unconditional_check(write)]
        if effective:
            self._commit_batch(effective)

    def _commit_batch(self, writes: Sequence[Write]) -> None:
        token = secrets.token_bytes(_TOKEN_BYTES)
        times = self._known_times(writes)
        pauses = RetryPauses(self._sleep)
        may_have_happened = False
        while True:
            batch = [self._to_batched(write, times, token) for write in writes]
            try:
                results = self._client.commit(batch)["writeResults"]
            except RequestNotExecuted as trouble:
                pauses.wait(str(trouble))
            except UnknownOutcome as trouble:
                if not _is_idempotent(writes):
                    self._ensure_it_happened(writes, token, str(trouble))
                    return
                may_have_happened = not all(isinstance(write, Check) for write in writes)
                pauses.wait(str(trouble))
            except Refusal as refusal:
                if refusal.status not in _PRECONDITION_FAILED:
                    raise InvalidCommit(str(refusal)) from None
                if may_have_happened:
                    self._ensure_it_happened(writes, token, "an earlier response was lost")
                    return
                times = self._read_times(writes)
                pauses.wait(str(refusal))
            else:
                self._note_results(writes, results)
                return

    def _known_times(self, writes: Sequence[Write]) -> Mapping[Key, str]:
        """The update times of the revisions that are expected. Raises Conflict where one that has
        to be read shows that a condition does not hold.
        """
        times: dict[Key, str] = {}
        for write in writes:
            if not isinstance(write.expect, Expect):
                found = self._times.find(write.key, write.expect)
                if found is None:
                    return self._read_times(writes)
                times[write.key] = found
        return times

    def _read_times(self, writes: Sequence[Write]) -> Mapping[Key, str]:
        """The update times of the revisions that are expected, read now. Raises Conflict with the
        first row whose condition does not hold.
        """
        conditional = [write for write in writes if write.expect is not Expect.ANYTHING]
        names = [self._name(write.key) for write in conditional]
        if not names:
            # Nothing was expected, and yet something is missing: the database.
            raise Unavailable(f"there is no {self._client.documents}")
        found = self._read(lambda: self._client.get_documents(names, ("r",)))
        times: dict[Key, str] = {}
        for write, name in zip(conditional, names, strict=True):
            document = found.get(name)
            if not _holds(write, document):
                self._times.forget(write.key)
                raise Conflict(write.key)
            if document is not None and not isinstance(write.expect, Expect):
                times[write.key] = document["updateTime"]
        return times

    def _ensure_it_happened(self, writes: Sequence[Write], token: bytes, trouble: str) -> None:
        """Raise Unavailable unless a row shows that the commit of that token happened."""
        puts = [write for write in writes if isinstance(write, Put)]
        names = [self._name(put.key) for put in puts]
        found = self._read(lambda: self._client.get_documents(names, ("t",))) if names else {}
        if not any(has_token(document, token) for document in found.values()):
            raise Unavailable(f"{trouble}: the commit may have been applied")
        for write in writes:
            self._times.forget(write.key)

    def _note_results(self, writes: Sequence[Write], results: Sequence[JsonObject]) -> None:
        for write, result in zip(writes, results, strict=True):
            if isinstance(write, Put):
                self._times.remember(write.key, write.revision, result["updateTime"])
            elif isinstance(write, Delete):
                self._times.forget(write.key)

    def _to_batched(self, write: Write, times: Mapping[Key, str], token: bytes) -> JsonObject:
        """A write of a batch. A check is one that changes nothing: an update of no field of a
        document that has to exist, or a deletion of one that must not.
        """
        name = self._name(write.key)
        condition = _precondition(write, times)
        if isinstance(write, Put):
            document = {"name": name, "fields": to_fields(write, token)}
            return {"update": document, **condition}
        if isinstance(write, Check) and write.expect is not Expect.ABSENT:
            mask = {"fieldPaths": [_NO_FIELD]}
            return {"update": {"name": name}, "updateMask": mask, **condition}
        return {"delete": name, **condition}

    def _read(self, read: Callable[[], Answer]) -> Answer:
        pauses = RetryPauses(self._sleep)
        while True:
            try:
                return read()
            except (RequestNotExecuted, UnknownOutcome) as trouble:
                pauses.wait(str(trouble))
            except Refusal as refusal:
                if refusal.status in _PRECONDITION_FAILED:
                    # No such database, or an index that is not there yet.
                    raise Unavailable(str(refusal)) from None
                raise TableError(str(refusal)) from None

    def _remember(self, document: JsonObject) -> Row:
        """The row of a document, whose update time is remembered."""
        row = to_row(document)
        self._times.remember(row.key, row.revision, document["updateTime"])
        return row

    def _name(self, key: Key) -> str:
        return f"{self._client.documents}/{document_path(key)}"


def _is_idempotent(writes: Sequence[Write]) -> bool:
    """Whether a commit can be repeated without a second effect: it has none, or it ends a revision,
    whose update time never comes back.
    """
    changes = [write for write in writes if not isinstance(write, Check)]
    return not changes or any(not isinstance(write.expect, Expect) for write in changes)


def _holds(write: Write, document: JsonObject | None) -> bool:
    match write.expect:
        case Expect.ANYTHING:
            return True
        case Expect.ABSENT:
            return document is None
        case Expect.PRESENT:
            return document is not None
        case revision:
            return document is not None and revision_of(document) == revision


def _precondition(write: Write, times: Mapping[Key, str]) -> JsonObject:
    match write.expect:
        case Expect.ANYTHING:
            return {}
        case Expect.ABSENT | Expect.PRESENT:
            return {"currentDocument": {"exists": write.expect is Expect.PRESENT}}
        case _:
            return {"currentDocument": {"updateTime": times[write.key]}}


def _structured_query(
    filters: Sequence[JsonObject], order: JsonObject, limit: int, fields: Sequence[str] = ()
) -> JsonObject:
    query: dict[str, Any] = {
        "from": [{"collectionId": COLLECTION, "allDescendants": True}],
        "where": {"compositeFilter": {"op": "AND", "filters": filters}},
        "orderBy": [order],
        "limit": limit,
    }
    if fields:
        query["select"] = {"fields": [{"fieldPath": field} for field in fields]}
    return query


def _filter(field: str, operator: str, value: JsonObject) -> JsonObject:
    return {"fieldFilter": {"field": {"fieldPath": field}, "op": operator, "value": value}}


def _order(field: str, direction: str) -> JsonObject:
    return {"field": {"fieldPath": field}, "direction": direction}
