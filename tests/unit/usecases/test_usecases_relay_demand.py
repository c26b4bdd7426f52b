"""The relay on demand: concurrent requests, starts, failures, and replaced tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

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
from control_plane.errors import Code, RequestError
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Put
from control_plane.usecases.relay_demand import RelayNotStarted, RelayOnDemand

NOW_MS = 1_800_000_000_000
CAPACITY = RelayNotStarted("AWS has no room; try again", is_passing=True)
DENIED = RelayNotStarted("the role may not start tasks; deploy again", is_passing=False)


@dataclass
class FakeTasks:
    """A cloud that starts tasks by number, and remembers requests."""

    started: list[tuple[RelayRecord, int]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    failures: dict[str, RelayNotStarted] = field(default_factory=dict)
    refusal: RelayNotStarted | None = None

    def start(self, record: RelayRecord, revision: int) -> str:
        self.started.append((record, revision))
        if self.refusal is not None:
            raise self.refusal
        return f"task-{len(self.started)}"

    def find_failure(self, task: str) -> RelayNotStarted | None:
        return self.failures.get(task)

    def stop(self, task: str) -> None:
        self.stopped.append(task)


class Case:
    """A table, a clock, and a source of the relay."""

    def __init__(self) -> None:
        self.table, self.tasks, self.now_ms = MemoryTable(), FakeTasks(), NOW_MS
        self.source = self.make_source()

    def make_source(self) -> RelayOnDemand:
        return RelayOnDemand(self.table, self.tasks, lambda: self.now_ms)

    def record(self) -> RelayRecord:
        row = self.table.get(KEY)
        assert row is not None
        return decode_relay(row.body)

    def write(self, record: RelayRecord) -> None:
        """Write the row as the task does."""
        row = self.table.get(KEY)
        assert row is not None
        put = Put(KEY, row.revision + 1, encode_relay(record), row.revision)
        self.table.commit((put,))

    def announce(self) -> None:
        seen = replace(self.record(), url="https://192.0.2.7", pin="ab", seen_ms=self.now_ms)
        self.write(seen)

    def find_refusal(self) -> RequestError:
        with pytest.raises(RequestError) as refused:
            self.source.find_relay()
        return refused.value


@pytest.fixture
def case() -> Case:
    return Case()


def test_first_request_starts_a_task_and_the_next_one_waits(case: Case) -> None:
    assert case.source.find_relay() is None
    case.now_ms += 4_000
    assert case.source.find_relay() is None
    [(record, revision)] = case.tasks.started
    row = case.table.get(KEY)
    assert row is not None
    # The task may write the row after the API has named the task there.
    assert (row.revision, row.revision) == (revision, NOW_MS + 1)
    assert case.record() == replace(record, task="task-1")


def test_announced_relay_is_returned_with_its_pin_and_secret(case: Case) -> None:
    case.source.find_relay()
    case.announce()
    relay = case.source.find_relay()
    assert relay is not None
    assert (relay.url, relay.pin, len(relay.secret)) == ("https://192.0.2.7", "ab", 32)
    assert len(case.tasks.started) == 1


def test_secret_is_in_no_representation(case: Case) -> None:
    case.source.find_relay()
    record = case.record()
    assert record.secret
    assert record.secret not in repr(record)


def test_only_one_of_two_concurrent_requests_starts_a_task(case: Case) -> None:
    other = case.make_source()
    ask = case.tasks.start

    def start(record: RelayRecord, revision: int) -> str:
        # The second request arrives while the first waits for the cloud.
        case.tasks.start = ask  # type: ignore[method-assign]
        assert other.find_relay() is None
        return ask(record, revision)

    case.tasks.start = start  # type: ignore[method-assign]
    assert case.source.find_relay() is None
    assert len(case.tasks.started) == 1


def test_attempt_without_an_answer_of_the_cloud_is_replaced_and_its_task_stopped(
    case: Case,
) -> None:
    other = case.make_source()
    ask = case.tasks.start

    def start(record: RelayRecord, revision: int) -> str:
        case.tasks.start = ask  # type: ignore[method-assign]
        # The cloud's answer takes longer than a request may take, and another request begins.
        case.now_ms += 20_000
        assert other.find_relay() is None
        return "task-late"

    case.tasks.start = start  # type: ignore[method-assign]
    assert case.source.find_relay() is None
    assert case.tasks.stopped == ["task-late"]
    assert case.record().task == "task-1"


def test_revisions_of_attempts_are_far_apart(case: Case) -> None:
    case.source.find_relay()
    first = case.tasks.started[0][1]
    case.now_ms += START_MS_MAX
    case.find_refusal()
    case.now_ms += 30_000
    case.source.find_relay()
    # Time has passed less than the step, so the step decides. The failure took a revision.
    assert case.tasks.started[1][1] == first + 1 + ATTEMPT_STEP + 1


def test_silent_task_is_looked_up_and_a_stopped_one_replaced(case: Case) -> None:
    case.source.find_relay()
    case.announce()
    case.now_ms += SILENT_MS
    assert case.source.find_relay() is not None
    case.tasks.failures["task-1"] = CAPACITY
    assert case.source.find_relay() is None
    assert len(case.tasks.started) == 2


def test_dead_task_is_stopped_and_replaced(case: Case) -> None:
    case.source.find_relay()
    case.announce()
    case.now_ms += DEAD_MS
    assert case.source.find_relay() is None
    assert case.tasks.stopped == ["task-1"]
    assert len(case.tasks.started) == 2


def test_ended_relay_starts_again_with_another_secret(case: Case) -> None:
    case.source.find_relay()
    case.announce()
    former = case.record()
    case.write(replace(former, has_ended=True))
    assert case.source.find_relay() is None
    assert case.tasks.stopped == []
    assert case.record().secret != former.secret


@pytest.mark.parametrize(
    ("refusal", "code"), [(CAPACITY, Code.UNAVAILABLE), (DENIED, Code.CONFLICT)]
)
def test_refusal_of_the_cloud_reaches_the_user_for_half_a_minute(
    case: Case, refusal: RelayNotStarted, code: Code
) -> None:
    case.tasks.refusal = refusal
    assert (case.find_refusal().code, case.find_refusal().message) == (code, str(refusal))
    assert len(case.tasks.started) == 1
    case.now_ms += 30_000
    case.tasks.refusal = None
    assert case.source.find_relay() is None
    assert len(case.tasks.started) == 2


def test_task_that_stops_while_it_starts_is_reported(case: Case) -> None:
    case.source.find_relay()
    case.tasks.failures["task-1"] = DENIED
    case.now_ms += 5_000
    assert case.find_refusal().message == str(DENIED)
    assert case.record().failure == str(DENIED)


def test_task_without_an_address_is_given_up_before_the_ends_do(case: Case) -> None:
    case.source.find_relay()
    case.now_ms += START_MS_MAX - 1
    assert case.source.find_relay() is None
    case.now_ms += 1
    assert "did not start within 110 s" in case.find_refusal().message
    assert case.tasks.stopped == ["task-1"]
