"""The search for a line that the cluster does not accept, so that other lines can be sent.

The content of a call causes a refusal (413, 422). A failure (500) may have other causes in the
cluster. After some failures, the agent therefore sends an empty call. If the empty call succeeds,
the content of the failed call is at fault. Faulty content is halved until a single line is left. A
line on which the cluster fails is given up after several proofs, since the cluster may have been
repaired between the two calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from detcloud.agent.sync.payload import ENTRIES_MAX

if TYPE_CHECKING:
    from detcloud.agent.sync.payload import SyncPayload

# The failures of calls with content before an empty call.
FAILURES_MAX = 3
# The proofs that the cluster fails on a single line before the line is given up.
PROOFS_MAX = 3


class RefusedPart(NamedTuple):
    """A report line or a piece of the log that must not be sent again."""

    allocation: str
    writer: str
    """The writer of the line. `log` for a piece of the log."""
    offset: int
    """The offset after the line or piece."""


class FaultSearch:
    """The state of the search. The session records the outcome of each call."""

    def __init__(self) -> None:
        self._entries_max = ENTRIES_MAX
        # The number of entries of the halved payload that remain to be sent.
        self._entries_left = 0
        self._failures = 0
        self._failed_payload: SyncPayload | None = None
        # The line that failed as the only content, and the number of proofs.
        self._suspect: RefusedPart | None = None
        self._proofs = 0

    @property
    def entries_max(self) -> int:
        """The maximum number of lines and pieces of logs in the next call; 0 for an empty call."""
        return 0 if self.is_probing else self._entries_max

    @property
    def is_probing(self) -> bool:
        """Whether the next call must be empty, to show whether the failed content is at fault."""
        return self._failed_payload is not None

    def record_success(self, payload: SyncPayload) -> RefusedPart | None:
        """Record that the call with this payload succeeded.

        Return the part that must be given up, if this success of an empty call completes the proof.
        Otherwise return None.
        """
        failed, self._failed_payload = self._failed_payload, None
        if failed is not None:
            return self._record_proof(failed)
        self._entries_left -= payload.entry_count
        if self._entries_left <= 0:
            self._entries_max = ENTRIES_MAX
            self._failures = 0
        return None

    def record_refusal(self, payload: SyncPayload) -> RefusedPart | None:
        """Record that the cluster refused the payload, which must not be empty.

        Return the part if the payload is a single entry. Otherwise return None, and halve the size
        of the next calls until the payload's entries are sent.
        """
        count = payload.entry_count
        if count > 1:
            self._entries_max, self._entries_left = count // 2, count
            return None
        self._entries_max, self._entries_left = ENTRIES_MAX, 0
        return _only_part(payload)

    def record_failure(self, payload: SyncPayload) -> None:
        """Record that a call with this payload failed in the cluster.

        After FAILURES_MAX failures with content, the next call must be empty. A failed empty call
        clears the suspicion.
        """
        if payload.is_empty:
            # The cluster currently fails on all calls.
            self._failed_payload = None
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._failed_payload = payload

    def _record_proof(self, failed: SyncPayload) -> RefusedPart | None:
        """Record that an empty call succeeded after the cluster failed on the payload `failed`.

        Return the part to give up after PROOFS_MAX proofs of the same single entry, else None.
        """
        if failed.entry_count > 1:
            return self.record_refusal(failed)
        part = _only_part(failed)
        self._proofs = self._proofs + 1 if part == self._suspect else 1
        self._suspect = part
        return self.record_refusal(failed) if self._proofs >= PROOFS_MAX else None


def _only_part(payload: SyncPayload) -> RefusedPart:
    (((allocation, writer), offset),) = payload.sent.items()
    return RefusedPart(allocation, writer, offset)
