"""The search for the line that the cluster does not take, so that it does not stop all others.

A refusal of a call (413, 422) is the fault of something in it. A failure (500) may be the
cluster's own: after a few of them the agent calls with nothing, and only if that call succeeds is
something in the other one to blame. What is to blame is halved until it is one line. A line on
which the cluster fails is given up when that was shown a few times: it may have been mended between
the two calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from detcloud.agent.sync.payload import ENTRIES_MAX

if TYPE_CHECKING:
    from detcloud.agent.sync.payload import SyncPayload

# Failures of calls that carry something before one is made that carries nothing.
FAILURES_MAX = 3
# Proofs that the cluster fails on a line alone before it is given up.
PROOFS_MAX = 3


class RefusedPart(NamedTuple):
    """A line of a writer, or text of the log, that ends at `offset` and is not to be sent again."""

    allocation: str
    writer: str
    offset: int


class FaultSearch:
    """The state of the search; the session tells it how each call ended."""

    def __init__(self) -> None:
        self._entries_max = ENTRIES_MAX
        # How many entries of the halved payload are still to be sent.
        self._entries_left = 0
        self._failures = 0
        self._failed_payload: SyncPayload | None = None
        # The line that failed alone, and how often.
        self._suspect: RefusedPart | None = None
        self._proofs = 0

    @property
    def entries_max(self) -> int:
        """The number of lines and pieces of logs that the next call may carry."""
        return 0 if self.is_probing else self._entries_max

    @property
    def is_probing(self) -> bool:
        """Whether the next call is to carry nothing and shows what is to blame."""
        return self._failed_payload is not None

    def record_success(self, payload: SyncPayload) -> RefusedPart | None:
        """Note that a call succeeded; returns what is to be given up, if that shows it."""
        failed, self._failed_payload = self._failed_payload, None
        if failed is not None:
            return self._record_proof(failed)
        self._entries_left -= payload.entry_count
        if self._entries_left <= 0:
            self._entries_max = ENTRIES_MAX
            self._failures = 0
        return None

    def record_refusal(self, payload: SyncPayload) -> RefusedPart | None:
        """Note that the payload was refused; returns it if it is one entry, else it is halved."""
        count = payload.entry_count
        if count > 1:
            self._entries_max, self._entries_left = count // 2, count
            return None
        self._entries_max, self._entries_left = ENTRIES_MAX, 0
        return _only_part(payload)

    def record_failure(self, payload: SyncPayload) -> None:
        """Note that a call with this payload failed in the cluster."""
        if payload.is_empty:
            # The cluster fails on anything now.
            self._failed_payload = None
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._failed_payload = payload

    def _record_proof(self, failed: SyncPayload) -> RefusedPart | None:
        """Note that the cluster takes a call without this payload, on which it failed before."""
        if failed.entry_count > 1:
            return self.record_refusal(failed)
        part = _only_part(failed)
        self._proofs = self._proofs + 1 if part == self._suspect else 1
        self._suspect = part
        return self.record_refusal(failed) if self._proofs >= PROOFS_MAX else None


def _only_part(payload: SyncPayload) -> RefusedPart:
    (((allocation, writer), offset),) = payload.sent.items()
    return RefusedPart(allocation, writer, offset)
