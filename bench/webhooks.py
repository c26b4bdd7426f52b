"""Webhooks: the time from a change to the receipt, and 10,000 events to a failing receiver."""

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_most, progress, row_without_target
from control_plane.actors.event_routes import EventType, Route
from control_plane.actors.events import Event, event_row, events_partition
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Put, StateTable
from control_plane.webhooks.deliverer import Deliverer
from control_plane.webhooks.event_writes import event_put
from control_plane.webhooks.records import WebhookRecord, encode_webhook, webhook_key
from control_plane.webhooks.sender import HttpSender
from control_plane.webhooks.signatures import new_secret
from detcloud.shared.http import Transport
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.unit.webhooks.receiver import HERE, run_receiver

P95_MS_MAX = 2_000
WAIT_SECONDS_MAX = 120.0
ALLOWED = "webhooks: {allowed_private_hosts: [127.0.0.1]}\n"
CHANGE = EventType.EXPERIMENT_STATE_CHANGE.value
# A custom search without operations creates no trials, so that no agent takes part.
CONFIG: dict[str, Any] = {
    "name": "bench",
    "entrypoint": "sleep 1",
    "searcher": {"name": "custom", "metric": "loss"},
    "hyperparameters": {},
    "max_restarts": 0,
}
EVENTS_OF_SUBJECT = 50
"""The events of each experiment of the figure with a failing receiver."""
FAILING_SHARE = 1 / 3
WORKERS = 8
STEP_MS = 10_000
"""The step of the virtual clock between two rounds, the first delay after a failure."""
ROUNDS_MAX = 5_000
BEGIN_MS = 1_800_000_000_000
"""The first time of the virtual clock, in epoch ms."""


@dataclass
class Arrivals:
    """The arrival times of requests at a receiver, by the monotonic clock."""

    times: list[float] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, number: int) -> int:
        """Record the arrival of a request, and return the status of the answer."""
        with self.changed:
            self.times.append(time.monotonic())
            self.changed.notify_all()
        return 200

    def wait(self, count: int) -> float:
        """Return the arrival time of the request with a number from 1.

        Raises:
            TimeoutError: the request has not arrived after WAIT_SECONDS_MAX.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.times) >= count, WAIT_SECONDS_MAX):
                raise TimeoutError(f"request {count} has not arrived")
            return self.times[count - 1]


def webhooks(scale: Scale) -> Iterator[Row]:
    """Measure webhooks of an embedded cluster, and of a table with a failing receiver."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        cluster = EmbeddedCluster(Path(name) / "home")
        try:
            with progress("an embedded cluster"):
                client = cluster.start()
            client.put("/cluster/configuration", {"config": ALLOWED})
            experiment = client.create_experiment(CONFIG, None).id
            with progress(f"{scale.webhook_changes} changes"):
                token = (cluster.home / "token").read_text().strip()
                api = Transport(cluster.record()["url"], token)
                waits = receipt_waits_ms(api, experiment, scale.webhook_changes)
        finally:
            cluster.end()
    yield from receipt_rows(waits, "embedded", P95_MS_MAX)
    yield from _failing_receiver(scale.webhook_events)


def receipt_waits_ms(api: Transport, experiment: int, changes: int) -> list[float]:
    """Create a webhook, pause and activate an experiment, and return the waits in ms.

    A wait is the time from the begin of the request until the receiver has the event.
    """
    arrivals = Arrivals()
    waits = []
    with run_receiver(arrivals.note) as receiver:
        body = {"name": "bench", "url": receiver.url, "triggers": [{"type": CHANGE}]}
        hook = api.request("POST", "/api/v1/webhooks", body)["id"]
        for number in range(changes):
            verb = "activate" if number % 2 else "pause"
            began = time.monotonic()
            api.request("POST", f"/api/v1/experiments/{experiment}/{verb}", {})
            waits.append((arrivals.wait(number + 1) - began) * 1000)
        api.request("DELETE", f"/api/v1/webhooks/{hook}")
    return waits


def receipt_rows(waits: list[float], where: str, p95_max: int) -> Iterator[Row]:
    """Yield the rows of the waits of changes for the receipt."""
    ordered = sorted(waits)
    p95 = ordered[ceil(0.95 * len(ordered)) - 1]
    what = f"webhook, change to receipt, {where}"
    yield row_without_target(f"{what}: p50", median(ordered), "ms", beside=f"{len(waits)} changes")
    yield at_most(f"{what}: p95", p95, p95_max, "ms", beside=f"largest {ordered[-1]:.0f} ms")


def _failing_receiver(events: int) -> Iterator[Row]:
    """Deliver events to a receiver that fails a third of the time, in virtual time.

    The table is a file, the requests are real, and eight workers deliver the events of each subject
    as in a cluster.
    """
    subjects = [f"experiment#{n}" for n in range(1, max(2, events // EVENTS_OF_SUBJECT) + 1)]
    of_subject = events // len(subjects)
    draws, lock = random.Random(1), threading.Lock()

    def answer(number: int) -> int:
        with lock:
            return 500 if draws.random() < FAILING_SHARE else 200

    with (
        TemporaryDirectory(prefix="detcloud-bench-") as folder,
        run_receiver(answer) as receiver,
        progress(f"{of_subject * len(subjects)} events to a failing receiver"),
    ):
        # Each refusal is a line of the log.
        logging.getLogger("control_plane.webhooks").setLevel(logging.ERROR)
        table = SqliteTable(Path(folder) / "state.db", synchronous="NORMAL")
        _store_webhook(table, receiver.url)
        began = time.monotonic()
        hours = _deliver_all(table, subjects, of_subject) / 3_600_000
        seconds = time.monotonic() - began
        arrived: dict[str, list[int]] = defaultdict(list)
        for payload in receiver.accepted_payloads():
            arrived[payload["subject"]].append(payload["number"])
        requests = len(receiver.requests)
    count = of_subject * len(subjects)
    lost = count - sum(len(set(arrived[subject])) for subject in subjects)
    wrong = sum(_disorder(arrived[subject]) for subject in subjects)
    doubled = sum(len(numbers) - len(set(numbers)) for numbers in arrived.values())
    beside = f"{requests} requests, {hours:.1f} h of virtual time"
    what = f"{count:,} events, receiver fails a third"
    yield at_most(f"{what}: lost", lost, 0, "events", beside=beside)
    yield at_most(f"{what}: out of order", wrong, 0, "events", beside=f"{len(subjects)} subjects")
    yield row_without_target(f"{what}: doubled", doubled, "events")
    yield row_without_target(f"{what}: attempts", requests / seconds, "/s")


def _deliver_all(table: StateTable, subjects: list[str], of_subject: int) -> int:
    """Raise and deliver the events of all subjects, and return the duration in virtual ms.

    A round raises an event of each subject until all are raised, delivers what is due, and moves
    the clock.

    Raises:
        RuntimeError: events are left after ROUNDS_MAX rounds.
    """
    clock = [BEGIN_MS]
    with ThreadPoolExecutor(WORKERS) as workers:
        deliverer = Deliverer(table, lambda: clock[0], HttpSender(lambda: HERE), "bench")
        open_subjects = list(subjects)
        for number in range(1, ROUNDS_MAX):
            if number <= of_subject:
                for subject in subjects:
                    event = Event(EventType(CHANGE), subject, number, f"event {number}")
                    table.commit((event_put(event_row(event, (1,), clock[0]), clock[0]),))
            waits = list(workers.map(lambda name: _deliver(deliverer, name), open_subjects))
            if number >= of_subject:
                open_subjects = [
                    subject
                    for subject, wait_ms in zip(open_subjects, waits, strict=True)
                    if wait_ms is not None
                ]
            if not open_subjects:
                return clock[0] - BEGIN_MS
            clock[0] += STEP_MS
    raise RuntimeError("events are left")


def _deliver(deliverer: Deliverer, subject: str) -> int | None:
    """Deliver the due events of a subject, and return the delay until the next attempt in ms."""
    return deliverer.deliver((events_partition(subject),))


def _store_webhook(table: StateTable, url: str) -> None:
    route = Route(1, "bench", ())
    record = WebhookRecord(1, "bench", url, "json", new_secret(), "ann", 1, route)
    table.commit((Put(webhook_key(1), 1, encode_webhook(record), Expect.ABSENT),))


def _disorder(numbers: list[int]) -> int:
    """Return how many numbers of a sequence are smaller than an earlier number."""
    return sum(number < max(numbers[:place], default=0) for place, number in enumerate(numbers))
