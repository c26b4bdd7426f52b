"""The StateTable in a database of Firestore.

A commit is an atomic batch of writes with preconditions, and no transaction, because a transaction
locks the rows that it reads. If Firestore refuses the form of checks in batches, commits with
checks become transactions in this process. Firestore compares existence and update times. The
update time of a revision is cached from the row's last read or write in this process, or is read. A
failed batch does not name the failed precondition, so the table reads the rows. If every condition
holds by now, the batch is sent again.

All reads are strongly consistent, queries by an index included, and the documents of a query are
from the same moment. A request that was not executed is sent again after a random pause. A commit
with a lost response is sent again only if a second execution is impossible. A token in the rows
shows whether the commit was executed (decision 0052).
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from control_plane.gcp.checked_commit import INVALID_ARGUMENT, commit_in_transaction, holds
from control_plane.gcp.firestore_client import (
    AccessDenied,
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

# The most due rows that `due_shards` reads. If more are due, all shards are returned.
DUE_ROWS_MAX = 16
_TOKEN_BYTES = 12
# The statuses of a failed precondition. A missing database is NOT_FOUND as well, which the next
# read of the rows shows.
_PRECONDITION_FAILED = ("ALREADY_EXISTS", "FAILED_PRECONDITION", "NOT_FOUND")
# A field that no row has. An update of only this field changes neither the document nor its update
# time.
_NO_FIELD = "none"

# The number of refusals of a batch, while all conditions hold, after which checks become reads.
_VAIN_REFUSALS_MAX = 2

log = logging.getLogger(__name__)

JsonObject = Mapping[str, Any]
Answer = TypeVar("Answer")


class FirestoreTable:
    """A StateTable in the documents of a Firestore database.

    Every method raises Unavailable if the database does not answer after several attempts, and
    TableError if Firestore refuses a request. `sleep` waits for the given number of seconds.
    """

    # Firestore guarantees that the documents of a response are from the same moment.
    snapshot_queries = True

    def __init__(
        self, client: FirestoreClient, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._times = UpdateTimes()
        self._reads_checks = False

    def close(self) -> None:
        """Close the connections. The table cannot be used afterwards."""
        self._client.close()

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""
        return self.get_many((key,))[0]

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read at most GET_MAX rows, in the order of `keys`. The entry of a missing row is None.

        Without keys, send no request. The number of keys is not checked. Cache the rows' update
        times. An expired row is returned until the row is deleted.
        """
        if not keys:
            return ()
        names = {key: self.document_name(key) for key in keys}
        found = self._read(lambda: self._client.get_documents(list(names.values())))
        rows = {name: self._remember(document) for name, document in found.items()}
        return tuple(rows.get(names[key]) for key in keys)

    def find_key(self, path: str) -> Key | None:
        """Return the key of the row in the document at `path`, or None for a missing document.

        `path` is relative to the database.
        """
        name = f"{self._client.documents}/{path}"
        found = self._read(lambda: self._client.get_documents((name,), ("p", "s")))
        return to_key(found[name]) if name in found else None

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read rows with `first` <= sort < `last`: at most `limit` rows and about 1 MiB.

        All rows of the page are from the same moment. To read the next page, pass `next_sort` as
        `first`, or as `last` if the query is `descending`. After the last page, `next_sort` is
        None. Without a request, return an empty page for an empty range. Cache the rows' update
        times.
        """
        if first >= last:
            return Page((), None)
        filters = [
            _filter("k", "EQUAL", {"stringValue": partition_hash(partition)}),
            _filter("s", "GREATER_THAN_OR_EQUAL", {"stringValue": first}),
            _filter("s", "LESS_THAN", {"stringValue": last}),
        ]
        order = _order("s", "DESCENDING" if descending else "ASCENDING")
        # A further row shows whether the range continues after the page.
        query = _structured_query(filters, order, limit + 1)
        documents, is_whole = self._read(lambda: self._client.run_query(query))
        rows = [self._remember(document) for document in documents]
        return page_of(rows, limit if is_whole else min(limit, len(rows) - 1), descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return the shards that may have rows due at or before `until_ms`, in the given order.

        A single query covers all shards and costs a single read if nothing is due. Return all
        shards if DUE_ROWS_MAX rows or more are due, or if the response was cut off.
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
        """Read at most `limit` keys of a shard that are due after `after_ms` and at or before
        `until_ms`, earliest first. The default of `after_ms` excludes no row.
        """
        filters = [
            _filter("h", "EQUAL", integer_value(shard)),
            _filter("d", "GREATER_THAN", integer_value(after_ms)),
            _filter("d", "LESS_THAN_OR_EQUAL", integer_value(until_ms)),
        ]
        query = _structured_query(filters, _order("d", "ASCENDING"), limit, ("p", "s"))
        documents, _ = self._read(lambda: self._client.run_query(query))
        return tuple(map(to_key, documents))

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically: either all writes or no write.

        Writes that are only checks without a condition send no request. Raises Conflict if a
        condition does not hold, and Unavailable if the outcome is unknown, all attempts failed or
        the database is missing. Raises InvalidCommit for no writes, two writes of a row, an
        exceeded limit, or a batch that Firestore refuses.
        """
        check_limits(writes)
        effective = [_as_check(write) for write in writes if not is_unconditional_check(write)]
        if effective:
            self._commit_batch(effective)

    def _commit_batch(self, writes: Sequence[Write]) -> None:
        """Send a batch of writes until its outcome is known.

        Cache the update times of written rows. If the response was lost, but a written row shows
        that the batch was applied, the cached times of the rows are forgotten.

        Raises:
            Conflict: a condition does not hold.
            InvalidCommit: Firestore refuses the batch.
            Unavailable: all attempts failed, the batch may have been applied, or the database is
                missing.
            TableError: Firestore refuses a read of the rows.
        """
        token = secrets.token_bytes(_TOKEN_BYTES)
        times = self._known_times(writes)
        pauses = RetryPauses(self._sleep)
        may_have_happened, vain_refusals = False, 0
        while True:
            try:
                self._send_batch(writes, times, token, vain_refusals >= _VAIN_REFUSALS_MAX)
                return
            except RequestNotExecuted as trouble:
                pauses.wait(str(trouble))
            except UnknownOutcome as trouble:
                if not _is_idempotent(writes):
                    self._ensure_it_happened(writes, token, str(trouble))
                    return
                may_have_happened = not all(isinstance(write, Check) for write in writes)
                pauses.wait(str(trouble))
            except (Conflict, Refusal) as refusal:
                if isinstance(refusal, Refusal) and refusal.status not in _PRECONDITION_FAILED:
                    raise InvalidCommit(str(refusal)) from None
                if may_have_happened:
                    self._ensure_it_happened(writes, token, "an earlier response was lost")
                    return
                if isinstance(refusal, Conflict):
                    raise
                times = self._read_times(writes)
                vain_refusals += 1
                pauses.wait(str(refusal))

    def _send_batch(
        self, writes: Sequence[Write], times: Mapping[Key, str], token: bytes, in_vain: bool
    ) -> None:
        """Send the writes once, and cache the update times of written rows.

        Checks are writes without effect. If Firestore refuses this form, or did so earlier in this
        process, a transaction reads the checked rows. A commit without checks is never a
        transaction.

        Args:
            writes: the writes of the commit.
            times: the update time of each row for which a write expects a revision.
            token: the token of the commit.
            in_vain: whether Firestore refused the batch several times although all conditions held.

        Raises:
            Conflict: a check does not hold.
            RequestNotExecuted, UnknownOutcome, Refusal, Unavailable: as FirestoreClient.
        """
        has_checks = any(isinstance(write, Check) for write in writes)
        if has_checks and (self._reads_checks or in_vain):
            self._commit_reading_checks(writes, times, token)
            self._note_refused_checks("the conditions hold, and Firestore refuses the writes")
            return
        batch = [self._to_batched(write, times, token) for write in writes]
        try:
            results = self._client.commit(batch)["writeResults"]
        except (AccessDenied, Refusal) as refused:
            is_form = isinstance(refused, AccessDenied) or refused.status == INVALID_ARGUMENT
            if not (has_checks and is_form):
                raise
            self._try_reading_checks(writes, times, token, refused)
        else:
            self._note_results(writes, results)

    def _try_reading_checks(
        self,
        writes: Sequence[Write],
        times: Mapping[Key, str],
        token: bytes,
        refused: AccessDenied | Refusal,
    ) -> None:
        """Send writes that Firestore refused as a batch in a transaction that reads checked rows.

        After success, this process reads checks from now on. If Firestore refuses the transaction,
        too, checks are not the cause: raise `refused`. Other errors are those of `_send_batch`.
        """
        try:
            self._commit_reading_checks(writes, times, token)
        except AccessDenied:
            raise refused from None
        except Refusal as other:
            # The caller reads the rows after a failed precondition.
            raise (other if other.status in _PRECONDITION_FAILED else refused) from None
        self._note_refused_checks(str(refused))

    def _commit_reading_checks(
        self, writes: Sequence[Write], times: Mapping[Key, str], token: bytes
    ) -> None:
        """Commit writes with checks in a transaction that reads the checked rows.

        A commit with only checks reads the rows once, and writes nothing. Raises the errors of
        `commit_in_transaction`, and for only checks those of `_read_times`.
        """
        checks = [write for write in writes if isinstance(write, Check)]
        changes = [write for write in writes if not isinstance(write, Check)]
        if not changes:
            self._read_times(checks)
            return
        batch = [self._to_batched(write, times, token) for write in changes]
        try:
            results = commit_in_transaction(
                self._client, checks, batch, lambda check: self.document_name(check.key)
            )
        except Conflict as conflict:
            self._times.forget(conflict.key)
            raise
        self._note_results(changes, results)

    def _note_refused_checks(self, why: str) -> None:
        """Remember that this process reads checked rows in transactions, and log a warning once."""
        if not self._reads_checks:
            self._reads_checks = True
            log.warning(
                "Firestore refuses checks of rows as writes without effect, so that this process "
                "reads checked rows in transactions, which is slower under contention: %s",
                why,
            )

    def _known_times(self, writes: Sequence[Write]) -> Mapping[Key, str]:
        """Return the update time of each row for which a write expects a revision.

        Send no request if all times are cached. Otherwise return the result of `_read_times`, which
        reads the rows of all conditional writes and raises Conflict, Unavailable and TableError.
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
        """Check the rows of all conditional writes; return the update times of expected revisions.

        Conditions on the absence or presence of a row are checked as well. If a condition does not
        hold, remove the row's cached time and raise Conflict for the first such row. If no write
        has a condition, raise Unavailable, because the database is missing. Raises Unavailable and
        TableError as `_read`.
        """
        conditional = [write for write in writes if write.expect is not Expect.ANYTHING]
        names = [self.document_name(write.key) for write in conditional]
        if not names:
            # Without conditions, only the database itself can be missing.
            raise Unavailable(f"there is no {self._client.documents}")
        found = self._read(lambda: self._client.get_documents(names, ("r",)))
        times: dict[Key, str] = {}
        for write, name in zip(conditional, names, strict=True):
            document = found.get(name)
            if not holds(write, document):
                self._times.forget(write.key)
                raise Conflict(write.key)
            if document is not None and not isinstance(write.expect, Expect):
                times[write.key] = document["updateTime"]
        return times

    def _ensure_it_happened(self, writes: Sequence[Write], token: bytes, trouble: str) -> None:
        """Raise Unavailable unless a written row has the token of this commit.

        If a row has the token, forget the cached update times of all written rows. A commit without
        a Put always raises, because only a Put stores the token. `trouble` is the beginning of the
        error's text.
        """
        puts = [write for write in writes if isinstance(write, Put)]
        names = [self.document_name(put.key) for put in puts]
        found = self._read(lambda: self._client.get_documents(names, ("t",))) if names else {}
        if not any(has_token(document, token) for document in found.values()):
            raise Unavailable(f"{trouble}: the commit may have been applied")
        for write in writes:
            self._times.forget(write.key)

    def _note_results(self, writes: Sequence[Write], results: Sequence[JsonObject]) -> None:
        """Update the cached update times of written and deleted rows after a commit.

        `results` are Firestore's results in the order of `writes`.
        """
        for write, result in zip(writes, results, strict=True):
            if isinstance(write, Put):
                self._times.remember(write.key, write.revision, result["updateTime"])
            elif isinstance(write, Delete):
                self._times.forget(write.key)

    def _to_batched(self, write: Write, times: Mapping[Key, str], token: bytes) -> JsonObject:
        """Return a write in Firestore's JSON, with the precondition.

        A Check becomes a write without effect. If the row must exist, this is an update without
        fields. If the row must be absent, this is a deletion.

        Args:
            times: the update time of each row for which a write expects a revision.
            token: the token of the commit, which a Put stores.
        """
        name = self.document_name(write.key)
        condition = _precondition(write, times)
        if isinstance(write, Put):
            document = {"name": name, "fields": to_fields(write, token)}
            return {"update": document, **condition}
        if isinstance(write, Check) and write.expect is not Expect.ABSENT:
            mask = {"fieldPaths": [_NO_FIELD]}
            return {"update": {"name": name}, "updateMask": mask, **condition}
        return {"delete": name, **condition}

    def _read(self, read: Callable[[], Answer]) -> Answer:
        """Call `read` and return its result; repeat after errors that may pass, with pauses.

        Raises Unavailable after the last attempt, or if the database or an index is missing. Raises
        TableError for every other refusal.
        """
        pauses = RetryPauses(self._sleep)
        while True:
            try:
                return read()
            except (RequestNotExecuted, UnknownOutcome) as trouble:
                pauses.wait(str(trouble))
            except Refusal as refusal:
                if refusal.status in _PRECONDITION_FAILED:
                    # The database is missing, or an index is not built yet.
                    raise Unavailable(str(refusal)) from None
                raise TableError(str(refusal)) from None

    def _remember(self, document: JsonObject) -> Row:
        """Build the row of a document, and cache the row's update time."""
        row = to_row(document)
        self._times.remember(row.key, row.revision, document["updateTime"])
        return row

    def document_name(self, key: Key) -> str:
        return f"{self._client.documents}/{document_path(key)}"


def _as_check(write: Write) -> Write:
    """Return the deletion of an absent row as a check, and any other write unchanged."""
    is_absent = isinstance(write, Delete) and write.expect is Expect.ABSENT
    return Check(write.key, Expect.ABSENT) if is_absent else write


def _is_idempotent(writes: Sequence[Write]) -> bool:
    """Return whether a repeated commit has no second effect.

    This holds for a commit with only checks. It also holds if a changing write expects a revision,
    because the update time of a revision never occurs again.
    """
    changes = [write for write in writes if not isinstance(write, Check)]
    return not changes or any(not isinstance(write.expect, Expect) for write in changes)


def _precondition(write: Write, times: Mapping[Key, str]) -> JsonObject:
    """Return a dict with the field `currentDocument` of a write, the condition in Firestore's JSON.

    Return an empty dict for a write without a condition.

    Args:
        times: the update time of each row for which a write expects a revision.
    """
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
    """Build a query of at most `limit` rows that match every filter.

    With `fields`, the query reads only these fields.
    """
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
