"""The deliverer, which sends events to the receivers of webhooks.

A lane is the sequence of a subject's events for a webhook. The events of a lane are delivered in
order: a later event waits until the earlier event was delivered, or until its delivery failed for
good. Lanes are independent of each other.

Each attempt is claimed in the event's row first, so that of concurrent processes only one makes the
attempt. A process that is killed between the attempt and its record leaves the claim. After
CLAIM_MS, another process repeats the attempt with the same event id. Events are therefore never
lost and never overtake each other, and are repeated only after such a kill.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from control_plane.actors.events import EventRow, Pending, decode_event, encode_event
from control_plane.clock_skew import is_from_future
from control_plane.rows import webhook_rows
from control_plane.state.table import Conflict, Delete, Put, Row, StateTable, TableError, Write
from control_plane.webhooks.backoff import LAST_DELAY_MS, next_attempt_ms
from control_plane.webhooks.formats.message import Announcement, NotAnnounced
from control_plane.webhooks.formats.registry import FORMATS
from control_plane.webhooks.records import (
    DeliveryRecord,
    DeliveryState,
    WebhookRecord,
    decode_webhook,
    delivery_write,
    event_fields,
    webhook_key,
)
from control_plane.webhooks.sender import Outcome, Sender
from control_plane.webhooks.signatures import signature_headers

log = logging.getLogger(__name__)

CLAIM_MS = 60_000
"""The time after which a process with a claim counts as dead, in ms. An attempt takes 10 s."""
LANES_MAX = 8
"""The most lanes that are delivered at the same time."""
BUDGET_MS = 20_000
"""The default time of a call, in ms. An attempt that has begun is completed."""
CONFLICTS_MAX = 20
FAILING_MS = 10_000
"""The delay before the other lanes of a webhook with a failed attempt, in ms."""
POSTPONED_MAX = 100
"""The most events that a failed attempt postpones."""
CHANGED_MS = 1_000
"""The delay after which a lane is read again that another process delivers, in ms."""
_PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A claimed attempt to deliver an event to a webhook."""

    row: Row
    """The row of the event with the claim."""
    event: EventRow
    webhook: WebhookRecord
    begun_ms: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of `deliver`."""

    until: float
    """The time after which no further attempt begins, by `time.monotonic`."""
    failing: set[int] = field(default_factory=set)
    """The webhooks with a failed attempt in this call."""


class Deliverer:
    """The deliverer of a process.

    Args:
        table: the state table.
        clock: returns the time in epoch ms.
        sender: sends the requests.
        cluster_id: the id of the cluster, for requests.
        page_url: the URL of the cluster's web page for links, or "".
    """

    def __init__(
        self,
        table: StateTable,
        clock: Callable[[], int],
        sender: Sender,
        cluster_id: str,
        page_url: str = "",
    ) -> None:
        self._table = table
        self._clock = clock
        self._sender = sender
        self._cluster_id = cluster_id
        self._page_url = page_url

    def deliver(self, partitions: Iterable[str], budget_ms: int = BUDGET_MS) -> int | None:
        """Deliver the due events of subjects, and return the delay in ms until the next attempt.

        Return None if no attempt is known to follow. Events whose time has not come, or that
        another process delivers, are left in the table. After a failed attempt, the other lanes of
        the webhook wait for a later call, so that one dead receiver does not hold up the other
        receivers. Errors of a subject or a lane are logged, and do not stop other lanes.

        Args:
            partitions: the partitions of the subjects' events.
            budget_ms: the time after which no further attempt begins.
        """
        lanes = [lane for name in dict.fromkeys(partitions) for lane in self._lanes(name)]
        if not lanes:
            return None
        call = _Call(time.monotonic() + budget_ms / 1000)
        with ThreadPoolExecutor(min(LANES_MAX, len(lanes)), "delivering") as pool:
            waits = list(pool.map(lambda lane: self._deliver_lane(lane[0], lane[1], call), lanes))
        return min((wait for wait in waits if wait is not None), default=None)

    def _lanes(self, partition: str) -> list[tuple[str, int]]:
        """Return the partition and the webhook of each lane of a subject.

        Return no lanes if the events cannot be read, which is logged.
        """
        try:
            found = {webhook for _, event in self._events(partition) for webhook in event.pending}
        except TableError as error:
            log.warning("the events of %s cannot be read: %s", partition, error)
            return []
        return [(partition, webhook) for webhook in sorted(found)]

    def _events(self, partition: str) -> Iterator[tuple[Row, EventRow]]:
        """Yield the events of a subject in order. An undecodable row is logged and left out.

        Raises TableError.
        """
        first: str | None = " "
        while first is not None:
            page = self._table.query(partition, first, "\x7f", limit=_PAGE_ROWS)
            for row in page.rows:
                try:
                    yield row, decode_event(row.body)
                except (ValueError, TypeError):
                    log.exception("event %s of %s cannot be decoded", row.key.sort, partition)
            first = page.next_sort

    def _deliver_lane(self, partition: str, webhook_id: int, call: _Call) -> int | None:
        """Deliver the due events of a lane in order, and return the delay until the next attempt.

        Return None if no event is left, and also after an error, which is logged. The lane of a
        webhook with a failed attempt in this call waits.
        """
        if webhook_id in call.failing:
            return FAILING_MS
        try:
            # An event may be written while this process delivers the event before. The process
            # that was woken for the event leaves the event to this process.
            while True:
                count, wait_ms = self._deliver_page(partition, webhook_id, call)
                if not count or wait_ms is not None:
                    return wait_ms
        except TableError as error:
            # The events are due again, and the tick finds them.
            log.warning("the events of %s cannot be delivered now: %s", partition, error)
        except Exception:
            log.exception("the events of %s were not delivered to %s", partition, webhook_id)
        return None

    def _deliver_page(self, partition: str, webhook_id: int, call: _Call) -> tuple[int, int | None]:
        """Deliver the events of a lane that are stored now.

        Return the number of ended deliveries, and the delay in ms until the next attempt of the
        lane. The delay is None if no event is left. The webhook is read before each event, because
        a user may change the webhook meanwhile. The deliveries of a deleted webhook are dropped.
        Raises TableError, and ValueError for a damaged webhook.
        """
        count = 0
        for row, event in self._events(partition):
            pending = event.pending.get(webhook_id)
            if pending is None:
                continue
            stored = self._table.get(webhook_key(webhook_id))
            if stored is None:
                self._finish(row, event, webhook_id, ())
                continue
            if time.monotonic() >= call.until:
                return count, 0
            webhook = decode_webhook(stored.body)
            wait_ms = self._deliver_event(row, event, webhook, pending, call)
            if wait_ms is None:
                count += 1
            elif not pending.retried_ms:
                if not _is_claimed(pending, self._clock()):
                    self._postpone_later(row, self._clock() + wait_ms, call.until)
                return count, wait_ms
        return count, None

    def _deliver_event(
        self, row: Row, event: EventRow, webhook: WebhookRecord, pending: Pending, call: _Call
    ) -> int | None:
        """Make an attempt if the attempt is due. Return the delay until the next attempt in ms.

        Return None if the event was delivered, or has failed for good. A failed attempt adds the
        webhook to the failing webhooks of the call. Raises TableError.
        """
        now_ms = self._clock()
        if _is_claimed(pending, now_ms):
            return max(1, pending.claimed_ms + CLAIM_MS - now_ms)
        if _must_wait(pending, now_ms):
            return pending.next_ms - now_ms
        attempt = self._claim(row, event, webhook, now_ms)
        if attempt is None:
            # Another process has changed the event, and delivers the lane.
            return CHANGED_MS
        outcome = self._send(attempt)
        if not (outcome.is_delivered or outcome.is_skipped):
            call.failing.add(webhook.id)
        return self._record(attempt, outcome)

    def _claim(
        self, row: Row, event: EventRow, webhook: WebhookRecord, now_ms: int
    ) -> _Attempt | None:
        """Claim an attempt in the event's row. Return None if another process claimed it first.

        Raises TableError.
        """
        for _ in range(CONFLICTS_MAX):
            pending = event.pending.get(webhook.id)
            if pending is None or _is_claimed(pending, now_ms) or _must_wait(pending, now_ms):
                return None
            claimed = _with_pending(event, webhook.id, pending._replace(claimed_ms=now_ms))
            put = _replacement(row, claimed, now_ms + CLAIM_MS)
            try:
                self._table.commit((put,))
            except Conflict:
                # The lane of another webhook may have changed the same row.
                found = self._table.get(row.key)
                if found is None:
                    return None
                row, event = found, decode_event(found.body)
                continue
            return _Attempt(_row_of(put), claimed, webhook, now_ms)
        return None

    def _send(self, attempt: _Attempt) -> Outcome:
        """Send the request of an attempt, and return the outcome. Log a failure.

        No error is raised, so that each attempt is counted.
        """
        webhook, event_id = attempt.webhook.id, attempt.event.id
        try:
            outcome = self._send_request(attempt.event, attempt.webhook, attempt.begun_ms)
        except Exception:
            log.exception("the request of webhook %s for event %s failed", webhook, event_id)
            return Outcome(False, error="the attempt failed inside the cluster")
        if not outcome.is_delivered:
            log.warning("webhook %s did not accept event %s", webhook, event_id)
        return outcome

    def _send_request(self, event: EventRow, webhook: WebhookRecord, begun_ms: int) -> Outcome:
        """Build, sign and send the request for an event. Raises any error of the format."""
        build = FORMATS.get(webhook.format)
        if build is None:
            return Outcome(False, error=f"this release has no format {webhook.format}")
        announcement = Announcement(
            event,
            webhook.url,
            self._cluster_id,
            self._page_url,
            webhook.options,
            webhook.token,
        )
        try:
            request = build(announcement)
        except NotAnnounced as error:
            return Outcome(False, error=str(error), is_final=True, is_skipped=True)
        signed = signature_headers(webhook.secret, event.id, begun_ms // 1000, request.body)
        headers = {"User-Agent": "detcloud-webhooks", **request.headers, **signed}
        if self._clock() - begun_ms > CLAIM_MS // 2:
            # A function may be frozen after the claim, until another process has the next event.
            return Outcome(False, error="the attempt was interrupted before the request")
        return self._sender.send(replace(request, headers=headers))

    def _record(self, attempt: _Attempt, outcome: Outcome) -> int | None:
        """Store the outcome of an attempt. Return the delay until the next attempt in ms.

        Return None if the event was delivered, or has failed for good. Raises TableError.
        """
        now_ms = self._clock()
        webhook = attempt.webhook.id
        pending = attempt.event.pending[webhook]
        failures = pending.attempts + 1
        begun_ms = pending.retried_ms or attempt.event.time_ms
        next_ms = None
        if not (outcome.is_delivered or outcome.is_final):
            next_ms = next_attempt_ms(failures, begun_ms, now_ms)
        state: DeliveryState = "waiting"
        if next_ms is None:
            state = "delivered" if outcome.is_delivered else "failed"
        record = DeliveryRecord(
            webhook,
            event_fields(attempt.event),
            state,
            failures,
            attempt.begun_ms,
            next_ms,
            outcome.status,
            outcome.error,
            max(0, now_ms - attempt.begun_ms),
        )
        write = delivery_write(record, now_ms)
        if next_ms is None:
            self._finish(attempt.row, attempt.event, webhook, (write,))
            return None
        kept = Pending(failures, next_ms, 0, pending.retried_ms)
        self._change(attempt.row, attempt.event, webhook, kept, (write,))
        return max(1, next_ms - now_ms)

    def _finish(self, row: Row, event: EventRow, webhook: int, more: tuple[Write, ...]) -> None:
        """Remove a webhook from an event, in a commit with more writes. Raises TableError.

        The row of an event without pending deliveries is deleted.
        """
        self._change(row, event, webhook, None, more)

    def _change(
        self,
        row: Row,
        event: EventRow,
        webhook: int,
        pending: Pending | None,
        more: tuple[Write, ...],
    ) -> None:
        """Replace the pending delivery of a webhook, in a commit with more writes.

        `None` removes the delivery. If the row has changed meanwhile, the change is applied to the
        new row, unless another process has claimed the delivery since. Raises TableError.
        """
        claimed = event.pending.get(webhook)
        for _ in range(CONFLICTS_MAX):
            changed = _with_pending(event, webhook, pending)
            write: Write = Delete(row.key, row.revision)
            if changed.pending:
                write = _replacement(row, changed, _due_ms(changed, self._clock()))
            try:
                self._table.commit((write, *more))
                return
            except Conflict:
                found = self._table.get(row.key)
                if found is None:
                    return
                row, event = found, decode_event(found.body)
                if event.pending.get(webhook) != claimed:
                    return
        log.warning("event %s changes too fast", event.id)

    def _postpone_later(self, row: Row, due_ms: int, until: float) -> None:
        """Let the later events of a subject be due only at the next attempt of `row`.

        Otherwise each tick would find events that wait. An event stays due if the event is the
        first of any lane, because only the first event of a lane leads to the lane. At most
        POSTPONED_MAX events are changed, and none after `until`. Raises TableError other than
        conflicts.
        """
        led, changed = set[int](), 0
        for later, event in self._events(row.key.partition):
            waits = set(event.pending) <= led and not _is_retried(event)
            led |= set(event.pending)
            if later.key.sort <= row.key.sort or not waits or (later.due_ms or 0) >= due_ms:
                continue
            if changed == POSTPONED_MAX or time.monotonic() >= until:
                return
            changed += 1
            try:
                self._table.commit((_replacement(later, event, due_ms),))
            except Conflict:
                continue


def _is_retried(event: EventRow) -> bool:
    """Return whether a user has requested a delivery of the event again."""
    return any(pending.retried_ms for pending in event.pending.values())


def is_event_partition(partition: str) -> bool:
    """Return whether a partition has the events of a subject."""
    return partition.startswith(webhook_rows.EVENT.partition)


def _is_claimed(pending: Pending, now_ms: int) -> bool:
    """Return whether a process began an attempt less than CLAIM_MS ago.

    A time far in the future, from a clock that was ahead, does not count.
    """
    if not pending.claimed_ms or is_from_future(pending.claimed_ms, now_ms):
        return False
    return now_ms - pending.claimed_ms < CLAIM_MS


def _must_wait(pending: Pending, now_ms: int) -> bool:
    """Return whether the time of the next attempt has not come.

    A time later than any delay, from a clock that was ahead, does not count.
    """
    return pending.next_ms > now_ms and not is_from_future(pending.next_ms, now_ms, LAST_DELAY_MS)


def _with_pending(event: EventRow, webhook: int, pending: Pending | None) -> EventRow:
    """Return an event with another pending delivery of a webhook, or without the delivery."""
    others = {other: kept for other, kept in event.pending.items() if other != webhook}
    return replace(event, pending=others if pending is None else {**others, webhook: pending})


def _due_ms(event: EventRow, now_ms: int) -> int:
    """Return the time at which the next attempt of an event is due, in epoch ms."""
    return min(
        pending.claimed_ms + CLAIM_MS if _is_claimed(pending, now_ms) else pending.next_ms
        for pending in event.pending.values()
    )


def _replacement(row: Row, event: EventRow, due_ms: int) -> Put:
    """Return the write that replaces the row of an event."""
    return Put(row.key, row.revision + 1, encode_event(event, row.body), row.revision, due_ms)


def _row_of(put: Put) -> Row:
    """Return the row that a write stores."""
    return Row(put.key, put.revision, put.body, put.due_ms, put.expires)
