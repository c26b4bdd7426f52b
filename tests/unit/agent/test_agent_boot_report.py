"""How long a machine whose boot failed tries to tell its cluster of it."""

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
    """Return a call that is answered with one status after the other, and then with success."""
    left: Iterator[int] = iter(statuses)

    def send() -> None:
        status = next(left, 200)
        if status == 0:
            raise OSError("nobody answers")
        if status != 200:
            raise urllib.error.HTTPError("https://api", status, "refused", Message(), None)

    return send


def test_an_instance_that_the_cluster_does_not_know_yet_tries_again() -> None:
    pauses: list[float] = []
    assert deliver(answers_of(404, 404, 503, 404), pauses.append)
    assert pauses == [5, 5, 1, 5]


def test_one_that_stays_unknown_gives_up_before_the_boot_script_does() -> None:
    pauses: list[float] = []
    assert not deliver(answers_of(*[404] * 100), pauses.append)
    # 90 / 5 = 18 tries.
    assert len(pauses) == UNKNOWN_SECONDS_MAX / UNKNOWN_PAUSE_SECONDS
    assert sum(pauses) < BOOT_SCRIPT_SECONDS


def test_an_api_that_does_not_answer_is_asked_a_few_times() -> None:
    pauses: list[float] = []
    assert not deliver(answers_of(*[0] * 9), pauses.append)
    assert pauses == [1, 2, 3, 4]
    assert len(pauses) == ATTEMPTS_MAX


def test_unreadable_answer_is_a_failure_that_is_retried() -> None:
    failures = [BadStatusLine("SSH-2.0")]

    def send() -> None:
        if failures:
            raise failures.pop()

    assert deliver(send, lambda _: None)


def test_a_report_that_is_refused_is_not_sent_again() -> None:
    pauses: list[float] = []
    assert not deliver(answers_of(401), pauses.append)
    assert pauses == []
