"""The deliverer: order, retries, claims, dead deliveries, crashes and concurrent processes."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from control_plane.actors.event_routes import EventCondition, EventType, Route
from control_plane.actors.events import Event, decode_event, event_row, events_partition
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Delete, Expect, Put, StateTable, Write
from control_plane.webhooks.backoff import (
    FAILURES_MIN,
    GIVEN_UP_MS,
    LAST_DELAY_MS,
    next_attempt_ms,
)
from control_plane.webhooks.deliverer import CLAIM_MS, LANES_MAX, Deliverer
from control_plane.webhooks.event_writes import event_put
from control_plane.webhooks.records import (
    DeliveryRecord,
    WebhookRecord,
    decode_delivery,
    deliveries_partition,
    encode_webhook,
    webhook_key,
)
from control_plane.webhooks.sender import HttpSender, Outcome, Request
from control_plane.webhooks.signatures import new_secret
from tests.unit.webhooks.receiver import HERE, Receiver, run_receiver

NOW_MS = 1_800_000_000_000
SUBJECT = "experiment#1"
PARTITION = events_partition(SUBJECT)


class ScriptedSender:
    """A sender with scripted outcomes; the last outcome is repeated."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[Request] = []

    def send(self, request: Request) -> Outcome:
        self.requests.append(request)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


DELIVERED, REFUSED = Outcome(True, 200), Outcome(False, 500, "the receiver answered")


def store_webhook(table: StateTable, number: int, url: str = "https://example.com/") -> None:
    route = Route(number, f"hook-{number}", ())
    record = WebhookRecord(number, route.name, url, "json", new_secret(), "ann", 1, route)
    table.commit((Put(webhook_key(number), 1, encode_webhook(record), Expect.ABSENT),))


def raise_test_event(
    table: StateTable, number: int, webhooks: tuple[int, ...] = (1,), subject: str = SUBJECT
) -> None:
    event = Event(EventType.EXPERIMENT_STATE_CHANGE, subject, number, f"event {number}")
    table.commit((event_put(event_row(event, webhooks, NOW_MS), NOW_MS),))


def deliveries(table: StateTable, webhook: int = 1) -> list[DeliveryRecord]:
    rows = table.query(deliveries_partition(webhook), " ", "\x7f").rows
    return [decode_delivery(row.body) for row in rows]


def waiting(table: StateTable, subject: str = SUBJECT) -> list[int]:
    """Return the numbers of the events that are not delivered."""
    rows = table.query(events_partition(subject), " ", "\x7f").rows
    return [decode_event(row.body).number for row in rows]


def numbers(sender: ScriptedSender) -> list[str]:
    return [request.headers["webhook-id"] for request in sender.requests]


def test_delivered_event_is_removed_and_recorded() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(DELIVERED)
    store_webhook(table, 1)
    raise_test_event(table, 1)
    assert Deliverer(table, clock, sender, "c").deliver([PARTITION]) is None
    assert waiting(table) == []
    (record,) = deliveries(table)
    assert (record.state, record.attempts, record.status) == ("delivered", 1, 200)
    assert record.event["title"] == "event 1"


def test_later_events_wait_for_a_failed_event() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(REFUSED, DELIVERED)
    store_webhook(table, 1)
    raise_test_event(table, 1)
    raise_test_event(table, 2)
    deliverer = Deliverer(table, clock, sender, "c")
    # The first retry is after 10 s.
    assert deliverer.deliver([PARTITION]) == 10_000
    assert (len(sender.requests), waiting(table)) == (1, [1, 2])
    assert {row.due_ms for row in table.query(PARTITION, " ", "\x7f").rows} == {NOW_MS + 10_000}
    clock.ms += 9_999
    assert deliverer.deliver([PARTITION]) == 1
    assert len(sender.requests) == 1
    clock.ms += 1
    assert deliverer.deliver([PARTITION]) is None
    first, again, second = numbers(sender)
    assert first == again != second
    assert waiting(table) == []


def test_other_webhooks_and_subjects_do_not_wait() -> None:
    table, clock = MemoryTable(), Clock()
    store_webhook(table, 1)
    store_webhook(table, 2, "https://example.org/")
    for number in (1, 2):
        raise_test_event(table, number, (1, 2))
    raise_test_event(table, 1, (2,), "model#m")

    class HalfSender:
        def send(self, request: Request) -> Outcome:
            return REFUSED if "example.com" in request.url else DELIVERED

    deliverer = Deliverer(table, clock, HalfSender(), "c")
    deliverer.deliver([PARTITION, events_partition("model#m")])
    assert [record.state for record in deliveries(table, 2)] == ["delivered"] * 3
    assert [record.state for record in deliveries(table, 1)] == ["waiting"]


def test_receiver_that_fails_gets_one_attempt_in_a_call() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(REFUSED)
    store_webhook(table, 1)
    partitions = []
    for number in range(30):
        raise_test_event(table, 1, (1,), f"experiment#{number}")
        partitions.append(events_partition(f"experiment#{number}"))
    deliverer = Deliverer(table, clock, sender, "c")
    deliverer.deliver(partitions)
    # The lanes that run at the same time.
    assert len(sender.requests) <= LANES_MAX
    before = len(sender.requests)
    deliverer.deliver(partitions)
    # The other lanes are not forgotten.
    assert len(sender.requests) > before


def test_events_behind_two_failing_receivers_are_postponed() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(REFUSED)
    for webhook in (1, 2):
        store_webhook(table, webhook)
    for number in (1, 2, 3):
        raise_test_event(table, number, (1, 2))
    Deliverer(table, clock, sender, "c").deliver([PARTITION])
    due = [row.due_ms for row in table.query(PARTITION, " ", "\x7f").rows]
    assert due == [NOW_MS + 10_000] * 3


def test_event_fails_for_good_after_a_day() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(REFUSED)
    store_webhook(table, 1)
    raise_test_event(table, 1)
    deliverer = Deliverer(table, clock, sender, "c")
    while (wait_ms := deliverer.deliver([PARTITION])) is not None:
        clock.ms += wait_ms
    # 10 + 30 + 60 + 120 + 300 + 600 s and 6 attempts, then each half hour until the day is over:
    # (86400 - 1120) // 1800 = 47 more attempts, after the first attempt.
    assert len(sender.requests) == 1 + 6 + 47
    (record,) = deliveries(table)
    assert (record.state, record.next_ms) == ("failed", None)
    assert waiting(table) == []


def test_delays_grow_to_half_an_hour() -> None:
    delays = [(next_attempt_ms(n, 0, 0) or 0) // 1000 for n in range(1, 9)]
    assert delays == [10, 30, 60, 120, 300, 600, 1800, 1800]
    assert next_attempt_ms(9, 0, GIVEN_UP_MS - LAST_DELAY_MS) == GIVEN_UP_MS
    assert next_attempt_ms(9, 0, GIVEN_UP_MS - LAST_DELAY_MS + 1) is None


def test_host_with_a_clock_ahead_does_not_give_an_event_up() -> None:
    late = GIVEN_UP_MS + 1
    assert next_attempt_ms(1, 0, late) is not None
    assert next_attempt_ms(FAILURES_MIN, 0, late) is None


def test_receiver_that_is_gone_ends_the_delivery() -> None:
    table, clock = MemoryTable(), Clock()
    store_webhook(table, 1)
    raise_test_event(table, 1)
    sender = ScriptedSender(Outcome(False, 410, "gone", is_final=True))
    assert Deliverer(table, clock, sender, "c").deliver([PARTITION]) is None
    assert [record.state for record in deliveries(table)] == ["failed"]


def test_events_of_a_deleted_webhook_are_dropped() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(DELIVERED)
    store_webhook(table, 1)
    raise_test_event(table, 1, (1, 2))
    Deliverer(table, clock, sender, "c").deliver([PARTITION])
    assert (waiting(table), deliveries(table, 2)) == ([], [])


def test_claimed_event_is_left_to_its_process_for_a_minute() -> None:
    table, clock = MemoryTable(), Clock()
    store_webhook(table, 1)
    raise_test_event(table, 1)

    class KilledSender:
        def send(self, request: Request) -> Outcome:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Deliverer(table, clock, KilledSender(), "c").deliver([PARTITION])
    sender = ScriptedSender(DELIVERED)
    deliverer = Deliverer(table, clock, sender, "c")
    assert deliverer.deliver([PARTITION]) == CLAIM_MS
    clock.ms += CLAIM_MS
    assert deliverer.deliver([PARTITION]) is None
    assert (len(sender.requests), waiting(table)) == (1, [])


def test_format_of_a_newer_release_counts_as_a_failure() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(DELIVERED)
    route = Route(1, "hook", ())
    record = WebhookRecord(1, "hook", "https://a.example/", "fax", new_secret(), "ann", 1, route)
    table.commit((Put(webhook_key(1), 1, encode_webhook(record), Expect.ABSENT),))
    raise_test_event(table, 1)
    assert Deliverer(table, clock, sender, "c").deliver([PARTITION]) == 10_000
    (delivery,) = deliveries(table)
    assert delivery.error == "this release has no format fax"


def test_event_that_is_raised_during_a_delivery_is_delivered_too() -> None:
    table, clock = MemoryTable(), Clock()
    store_webhook(table, 1)
    raise_test_event(table, 1)

    class RaisingSender(ScriptedSender):
        def send(self, request: Request) -> Outcome:
            if not self.requests:
                raise_test_event(table, 2)
            return super().send(request)

    sender = RaisingSender(DELIVERED)
    assert Deliverer(table, clock, sender, "c").deliver([PARTITION]) is None
    assert (len(sender.requests), waiting(table)) == (2, [])


def test_change_between_two_events_moves_the_later_event() -> None:
    table, clock = MemoryTable(), Clock()
    store_webhook(table, 1)
    raise_test_event(table, 1)
    raise_test_event(table, 2)

    class MovingSender(ScriptedSender):
        def send(self, request: Request) -> Outcome:
            if not self.requests:
                table.commit((Delete(webhook_key(1), 1),))
                store_webhook(table, 1, "https://new.example/")
            return super().send(request)

    sender = MovingSender(DELIVERED)
    assert Deliverer(table, clock, sender, "c").deliver([PARTITION]) is None
    urls = [request.url for request in sender.requests]
    assert urls == ["https://example.com/", "https://new.example/"]


def test_event_that_a_format_cannot_announce_stops_no_other_event() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(DELIVERED)
    route = Route(1, "hook", ())
    url = "https://api.github.com/repos/a/b"
    record = WebhookRecord(1, "hook", url, "github", new_secret(), "ann", 1, route, token="t")
    table.commit((Put(webhook_key(1), 1, encode_webhook(record), Expect.ABSENT),))
    source = {"github": {"commit": "a" * 40}}
    for number, data in ((1, {}), (2, {"experiment": source}), (3, {})):
        event = Event(
            EventType.EXPERIMENT_STATE_CHANGE,
            SUBJECT,
            number,
            f"event {number}",
            condition=EventCondition(state="ACTIVE"),
            data=data,
        )
        table.commit((event_put(event_row(event, (1,), NOW_MS), NOW_MS),))
    assert Deliverer(table, clock, sender, "c").deliver([PARTITION]) is None
    (request,) = sender.requests
    assert request.url == f"{url}/statuses/{'a' * 40}"
    assert request.headers["Authorization"] == "Bearer t"
    states = {record.event["number"]: record.state for record in deliveries(table)}
    assert states == {1: "failed", 2: "delivered", 3: "failed"}


class ProcessDeath(BaseException):
    """The death of a process."""


class KillingTable:
    """A table whose commits kill the process at random, before or after the commit."""

    def __init__(self, table: StateTable, chance: random.Random) -> None:
        self.table = table
        self._chance = chance
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> object:
        return getattr(self.table, name)

    def commit(self, writes: Sequence[Write]) -> None:
        with self._lock:
            draw = self._chance.random()
        if draw < 0.05:
            raise ProcessDeath
        self.table.commit(writes)
        if draw > 0.95:
            raise ProcessDeath


def check_order(receiver: Receiver, expected: dict[str, int]) -> None:
    """Check that each subject's events arrived in order, all of them, and none overtook."""
    arrived: dict[str, list[int]] = defaultdict(list)
    for payload in receiver.accepted_payloads():
        arrived[payload["subject"]].append(payload["number"])
    for subject, count in expected.items():
        assert arrived[subject] == sorted(arrived[subject]), subject
        assert sorted(set(arrived[subject])) == list(range(1, count + 1)), subject


@pytest.mark.parametrize("seed", range(3))
def test_no_event_is_lost_or_overtaken_by_crashes_failures_and_doubled_ticks(seed: int) -> None:
    # Two processes deliver the same events, each is killed at every tenth commit, and the receiver
    # refuses every third request.
    chance, clock, table = random.Random(seed), Clock(), MemoryTable()
    draws = random.Random(seed + 100)
    subjects = {f"experiment#{number}": 8 for number in range(1, 5)}
    lock = threading.Lock()

    def status(number: int) -> int:
        with lock:
            return 500 if draws.random() < 1 / 3 else 200

    with run_receiver(status) as receiver:
        store_webhook(table, 1, receiver.url)
        killing = KillingTable(table, chance)

        def tick() -> None:
            sender = HttpSender(lambda: HERE)
            deliverer = Deliverer(killing, clock, sender, "c")  # type: ignore[arg-type]
            with suppress(ProcessDeath):
                deliverer.deliver([events_partition(subject) for subject in subjects])

        for number in range(1, 9):
            for subject in subjects:
                raise_test_event(table, number, (1,), subject)
            run_twice(tick)
            clock.ms += 3_000
        for _ in range(400):
            if not any(waiting(table, subject) for subject in subjects):
                break
            run_twice(tick)
            clock.ms += 10_000
        assert not any(waiting(table, subject) for subject in subjects)
        check_order(receiver, subjects)


def run_twice(tick: Callable[[], None]) -> None:
    """Run a function in two threads at the same time."""
    threads = [threading.Thread(target=tick) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_undecodable_event_stops_no_other_event() -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(DELIVERED)
    store_webhook(table, 1)
    raise_test_event(table, 1)
    raise_test_event(table, 2)
    (first, _) = table.query(PARTITION, " ", "\x7f").rows
    table.commit((Put(first.key, first.revision + 1, b"{", first.revision, NOW_MS),))
    Deliverer(table, clock, sender, "c").deliver([PARTITION])
    assert len(sender.requests) == 1


def test_concurrent_change_by_another_webhook_keeps_both_results() -> None:
    table, clock = MemoryTable(), Clock()
    store_webhook(table, 1)
    store_webhook(table, 2)
    raise_test_event(table, 1, (1, 2))

    class SlowSender:
        barrier = threading.Barrier(2, timeout=10)

        def send(self, request: Request) -> Outcome:
            # Both lanes have claimed their attempts before either records the outcome.
            self.barrier.wait()
            return DELIVERED

    Deliverer(table, clock, SlowSender(), "c").deliver([PARTITION])
    assert waiting(table) == []
    for webhook in (1, 2):
        assert [record.state for record in deliveries(table, webhook)] == ["delivered"]


@pytest.mark.parametrize(
    ("wrong", "is_delivered"),
    [
        ({"claimed_ms": NOW_MS + 3_600_000}, True),
        ({"next_ms": NOW_MS + 24 * 3_600_000}, True),
        # The clocks of two correct hosts differ by some seconds.
        ({"claimed_ms": NOW_MS + 3_000}, False),
        ({"next_ms": NOW_MS + LAST_DELAY_MS}, False),
    ],
)
def test_times_from_a_clock_far_ahead_are_ignored(
    wrong: dict[str, int], is_delivered: bool
) -> None:
    table, clock, sender = MemoryTable(), Clock(), ScriptedSender(DELIVERED)
    store_webhook(table, 1)
    raise_test_event(table, 1)
    (row,) = table.query(PARTITION, " ", "\x7f").rows
    event = decode_event(row.body)
    ahead = event.pending[1]._replace(**wrong)
    table.commit((Delete(row.key, row.revision),))
    table.commit((event_put(replace(event, pending={1: ahead}), NOW_MS),))
    Deliverer(table, clock, sender, "c").deliver([PARTITION])
    assert len(sender.requests) == is_delivered
