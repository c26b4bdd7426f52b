"""The thread of an embedded cluster that delivers events."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from control_plane.state.table import Key, Unavailable
from control_plane.webhooks.deliverer import Deliverer
from local_cluster.delivery_thread import DeliveryThread
from tests.patience import wait_until


class FakeDeliverer:
    """A deliverer that records calls. `waits` are the delays that the calls return."""

    def __init__(self, *waits: int | Exception | None) -> None:
        self.waits = list(waits)
        self.calls: list[str] = []
        self.held = threading.Event()

    def deliver(self, partitions: tuple[str, ...]) -> int | None:
        (partition,) = partitions
        self.calls.append(partition)
        if partition == "events#slow":
            self.held.wait(10)
            return None
        wait = self.waits.pop(0) if self.waits else None
        if isinstance(wait, Exception):
            raise wait
        return wait


@contextmanager
def running(deliverer: FakeDeliverer) -> Iterator[DeliveryThread]:
    thread = DeliveryThread(cast("Deliverer", deliverer))
    thread.start()
    try:
        yield thread
    finally:
        deliverer.held.set()
        thread.stop()


def test_new_event_is_delivered_and_other_rows_are_ignored() -> None:
    deliverer = FakeDeliverer()
    with running(deliverer) as thread:
        thread.wake_on_row(Key("experiments", "000000000001"))
        thread.wake_on_row(Key("events#experiment#1", "0000000000000001"))
        wait_until(lambda: bool(deliverer.calls))
        thread.wake(())
    assert deliverer.calls == ["events#experiment#1"]


def test_failed_attempt_is_repeated_after_its_delay() -> None:
    deliverer = FakeDeliverer(20, 10, None)
    with running(deliverer) as thread:
        thread.wake(("events#a",))
        wait_until(lambda: len(deliverer.calls) == 3)


def test_slow_receiver_delays_no_other_subject() -> None:
    deliverer = FakeDeliverer()
    with running(deliverer) as thread:
        thread.wake(("events#slow",))
        wait_until(lambda: deliverer.calls == ["events#slow"])
        thread.wake(("events#fast",))
        wait_until(lambda: "events#fast" in deliverer.calls)


def test_errors_end_no_thread() -> None:
    deliverer = FakeDeliverer(ValueError("x"), Unavailable("away"))
    with running(deliverer) as thread:
        for name in ("events#a", "events#b", "events#c"):
            thread.wake((name,))
            wait_until(lambda name=name: name in deliverer.calls)  # type: ignore[misc]


def test_stopped_thread_delivers_nothing() -> None:
    deliverer = FakeDeliverer()
    with running(deliverer) as thread:
        pass
    thread.wake(("events#a",))
    assert deliverer.calls == []
