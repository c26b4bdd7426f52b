"""The relay of tunnels as a task that the API starts on demand.

The row of the relay decides between concurrent requests and between tasks. A request that finds no
running relay commits a new attempt, and the only request whose commit succeeds asks the cloud for a
task. The task writes its address only if the row still has the attempt's revision.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from control_plane.access.relay_record import (
    ATTEMPT_STEP,
    DEAD_MS,
    KEY,
    SILENT_MS,
    START_MS_MAX,
    RelayRecord,
    decode_relay,
    encode_relay,
)
from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.errors import Code, RequestError
from control_plane.state.table import Conflict, Expect, Put, Row, StateTable

log = logging.getLogger(__name__)

# The time for the cloud's answer. A process that ended before the answer left no task's name.
_ANSWER_MS_MAX = 20_000
# A young task is not looked up, because a task that cannot start takes some seconds to fail.
_LOOK_MS_MIN = 5_000
# The time for which requests get the reason of a failed attempt instead of another attempt.
_FAILURE_KEPT_MS = 30_000
_SECRET_BYTES = 32
_ATTEMPT_BYTES = 16


class RelayNotStarted(Exception):
    """The cloud runs no task for the relay. The message is a sentence for users, with a remedy.

    Attributes:
        is_passing: whether a later attempt may succeed without a change by an operator.
    """

    def __init__(self, message: str, *, is_passing: bool) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class RelayTasks(Protocol):
    """The cloud's tasks that run the relay."""

    def start(self, record: RelayRecord, revision: int) -> str:
        """Start a task, and return the cloud's name of the task.

        A repeated call with the same attempt starts no second task. Raise RelayNotStarted.

        Args:
            record: the attempt. The task completes this record with its address.
            revision: the revision of the row after which the task may write the row.
        """

    def find_failure(self, task: str) -> RelayNotStarted | None:
        """Return why a task has stopped. Return None while the task starts or runs.

        Return None as well if the cloud does not answer.
        """

    def stop(self, task: str) -> None:
        """Stop a task. Log a refusal, because a task without a row ends without help."""


class RelayOnDemand:
    """A RelaySource that starts a task if no task runs."""

    def __init__(self, table: StateTable, tasks: RelayTasks, now_ms: Callable[[], int]) -> None:
        """Create a source. Nothing is read before the first use.

        Args:
            table: the state table.
            tasks: the cloud's tasks.
            now_ms: returns the time in epoch ms.
        """
        self._table, self._tasks, self._now_ms = table, tasks, now_ms

    def find_relay(self) -> TunnelRelay | None:
        """Return the running relay. Start a task and return None if no task runs.

        Replace a task that stopped or that does not renew its row. Raise RequestError if the cloud
        runs no task, and for _FAILURE_KEPT_MS afterwards: unavailable if a later request may
        succeed, and conflict if an operator must change something first.
        """
        row, now_ms = self._table.get(KEY), self._now_ms()
        if row is None:
            self._start(None, None, now_ms)
            return None
        record = decode_relay(row.body)
        if record.is_running:
            age_ms = now_ms - record.seen_ms
            if age_ms < SILENT_MS or (
                age_ms < DEAD_MS and self._tasks.find_failure(record.task) is None
            ):
                return record.relay()
        elif record.failure:
            if now_ms - record.failed_ms < _FAILURE_KEPT_MS:
                raise _refusal(record.failure, is_passing=record.is_passing)
        elif not record.has_ended and self._is_starting(row, record, now_ms):
            return None
        self._start(row, record, now_ms)
        return None

    def _is_starting(self, row: Row, record: RelayRecord, now_ms: int) -> bool:
        """Return whether the task of an attempt without an address may still write an address.

        Store and raise the reason if the task has stopped or takes longer than START_MS_MAX. Return
        False if the request that began the attempt ended before the cloud's answer.
        """
        age_ms = now_ms - record.started_ms
        if not record.task:
            return age_ms < _ANSWER_MS_MAX
        if age_ms < _LOOK_MS_MIN:
            return True
        failure = self._tasks.find_failure(record.task)
        if failure is None and age_ms < START_MS_MAX:
            return True
        if failure is None:
            self._tasks.stop(record.task)
            failure = RelayNotStarted(
                f"the relay did not start within {START_MS_MAX // 1000} s; read its log as "
                "docs/aws.md describes, and open the tunnel again",
                is_passing=True,
            )
        raise self._store_failure(row.revision, record, failure)

    def _start(self, row: Row | None, former: RelayRecord | None, now_ms: int) -> None:
        """Begin an attempt, and ask the cloud for a task.

        Do nothing if a concurrent request has begun an attempt. Stop the task of the former attempt
        unless that task has ended itself. Raise RequestError if the cloud refuses.
        """
        secret = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        record = RelayRecord(secrets.token_hex(_ATTEMPT_BYTES), secret, now_ms)
        revision, expected = now_ms, Expect.ABSENT if row is None else row.revision
        if row is not None:
            revision = max(now_ms, row.revision + ATTEMPT_STEP)
        if not self._commit(Put(KEY, revision, encode_relay(record), expected)):
            return
        if former is not None and former.task and not former.has_ended:
            self._tasks.stop(former.task)
        try:
            task = self._tasks.start(record, revision + 1)
        except RelayNotStarted as failure:
            raise self._store_failure(revision, record, failure) from None
        log.info("the relay starts as task %s", task)
        named = encode_relay(replace(record, task=task))
        if not self._commit(Put(KEY, revision + 1, named, revision)):
            # The cloud's answer took so long that another request has begun an attempt.
            self._tasks.stop(task)

    def _store_failure(
        self, revision: int, record: RelayRecord, failure: RelayNotStarted
    ) -> RequestError:
        """Store why an attempt failed, unless the row has changed. Return the error to raise."""
        failed = replace(
            record,
            failure=str(failure),
            is_passing=failure.is_passing,
            failed_ms=self._now_ms(),
        )
        self._commit(Put(KEY, revision + 1, encode_relay(failed), revision))
        log.warning("the relay does not start: %s", failure)
        return _refusal(str(failure), is_passing=failure.is_passing)

    def _commit(self, put: Put) -> bool:
        """Commit a write of the row. Return False if the row has changed."""
        try:
            self._table.commit((put,))
        except Conflict:
            return False
        return True


def _refusal(message: str, *, is_passing: bool) -> RequestError:
    return RequestError(Code.UNAVAILABLE if is_passing else Code.CONFLICT, message)
