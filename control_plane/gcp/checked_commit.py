"""The two forms in which a commit checks rows that the commit does not write.

Usually, a check is a write without effect in the commit's batch. If Firestore refuses such writes,
a transaction reads the checked rows and writes the others: Firestore aborts the transaction if a
row that it has read changes before the commit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from control_plane.gcp.firestore_client import (
    FirestoreClient,
    Refusal,
    RequestNotExecuted,
    UnknownOutcome,
)
from control_plane.gcp.row_documents import revision_of
from control_plane.state.table import Check, Conflict, Unavailable, Write, is_met

INVALID_ARGUMENT: Final = "INVALID_ARGUMENT"

JsonObject = Mapping[str, Any]


def holds(write: Write, document: JsonObject | None) -> bool:
    """Return whether the condition of a write holds for the stored document; None means absent."""
    return is_met(write.expect, None if document is None else revision_of(document))


def commit_in_transaction(
    client: FirestoreClient,
    checks: Sequence[Check],
    changes: Sequence[JsonObject],
    name_of: Callable[[Write], str],
) -> Sequence[JsonObject]:
    """Read the checked rows and write the changes in a transaction. Return the write results.

    Args:
        client: the client of the database.
        checks: the conditions on rows that are not written, at least one.
        changes: the writes in Firestore's JSON, with their own preconditions.
        name_of: returns the name of the document of a check's row.

    Raises:
        Conflict: a check does not hold. Nothing was written.
        RequestNotExecuted: nothing was written, for example because a read row changed meanwhile.
        UnknownOutcome: the writes may have been applied.
        Refusal: Firestore refuses the read or the writes.
        Unavailable: access is missing.
    """
    names = {check.key: name_of(check) for check in checks}
    try:
        transaction, found = client.begin_reading(list(names.values()), ("r",))
    except UnknownOutcome as trouble:
        # A transaction that was begun without an answer writes nothing and expires.
        raise RequestNotExecuted(str(trouble)) from None
    for check in checks:
        if not holds(check, found.get(names[check.key])):
            _release(client, transaction)
            raise Conflict(check.key)
    try:
        results: Sequence[JsonObject] = client.commit(changes, transaction)["writeResults"]
    except Refusal as refusal:
        if refusal.status == INVALID_ARGUMENT and "transaction" in str(refusal).lower():
            # The transaction has expired, for example because this process was stopped for a while.
            raise RequestNotExecuted(str(refusal)) from None
        raise
    return results


def _release(client: FirestoreClient, transaction: str) -> None:
    """Release the locks of a transaction. A failure is ignored, because locks expire."""
    try:
        client.rollback(transaction)
    except (RequestNotExecuted, UnknownOutcome, Refusal, Unavailable):
        return
