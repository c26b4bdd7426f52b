"""Retries of the report that an instance sends to the cluster after a failed boot."""

import urllib.error
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import BadStatusLine

from detcloud.agent.boot_report import (
    ATTEMPTS_MAX,
    UNKNOWN_PAUSE_SECONDS,
    UNKNOWN_SECONDS_MAX,
    deliver,
)

BOOT_SCRIPT_SECONDS = 120


def answers_of(*statuses: int) -> Callable[[], None]:
    """Return a send function that fails by the given statuses in turn, and then succeeds.

    Status 0 raises OSError, 200 succeeds, and all other statuses raise HTTPError.
    """
    left: Iterator[int] = iter(statuses)

    def send() -> None:
        status = next(left, 200)
        if status == 0:
            raise OSError("nobody answers")
        if status != 200:
            raise urllib.error.HTTPError("https://api", status, "refused", Message(), None)

    return send


def test_boot_report_of_an_unknown_instance_is_retried() -> None:
    pauses: list[float] = []
    assert deliver(answers_of(404, 404, 503, 404), pauses.append)
    assert pauses == [5, 5, 1, 5]


def test_boot_report_is_abandoned_before_the_boot_script_timeout() -> None:
    pauses: list[float] = []
    assert not deliver(answers_of(*[404] * 100), pauses.append)
    # 90 / 5 = 18 tries.
    assert len(pauses) == UNKNOWN_SECONDS_MAX / UNKNOWN_PAUSE_SECONDS
    assert sum(pauses) < BOOT_SCRIPT_SECONDS


def test_boot_report_without_an_answer_is_retried_a_few_times() -> None:
    pauses: list[float] = []
    assert not deliver(answers_of(*[0] * 9), pauses.append)
    assert pauses == [1, 2, 3, 4]
    assert len(pauses) == ATTEMPTS_MAX


def test_boot_report_is_retried_after_an_unreadable_answer() -> None:
    failures = [BadStatusLine("SSH-2.0")]

    def send() -> None:
        if failures:
            raise failures.pop()

    assert deliver(send, lambda _: None)


def test_a_refused_boot_report_is_not_retried() -> None:
    pauses: list[float] = []
    assert not deliver(answers_of(401), pauses.append)
    assert pauses == []
