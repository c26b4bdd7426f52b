"""The relay as a task: the row, the pinned certificate, and each of the task's ends."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from control_plane.access.relay_record import KEY, RelayRecord, decode_relay, encode_relay
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Put, Unavailable, Write
from control_plane.usecases.relay_row import OwnRow, RowLost
from detcloud.shared.tunnel.keys import SecureChannel, make_key
from detcloud.shared.tunnel.relay_link import RelayUnavailable, dial_relay
from detcloud.shared.tunnel.tickets import Side
from lambdas.aws import relay_boot
from lambdas.aws.relay_task import RelayTask, TaskSettings, TaskTimes, read_settings
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.relay.tunnel_ends import SECRET, EchoServer, Ends, make_ticket, receive_exactly

ATTEMPT = RelayRecord("attempt-1", base64.b64encode(SECRET).decode(), 1, task="task-1")
NEVER = 10_000.0


class SelectiveTable(MemoryTable):
    """A table whose next commits fail: `lost` with the effect, `refused` without."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = self.refused = 0
        self.puts = 0

    def commit(self, writes: Sequence[Write]) -> None:
        if self.refused:
            self.refused -= 1
            raise Unavailable("refused")
        super().commit(writes)
        self.puts += 1
        if self.lost:
            self.lost -= 1
            raise Unavailable("no answer")


def named_row(table: MemoryTable, revision: int = 5) -> OwnRow:
    """Store the row as the API does after naming the task, and return the task's view."""
    table.commit((Put(KEY, revision, encode_relay(ATTEMPT), Expect.ABSENT),))
    return OwnRow(table, ATTEMPT, revision, lambda: 7)


def stored_record(table: MemoryTable) -> RelayRecord:
    row = table.get(KEY)
    assert row is not None
    return decode_relay(row.body)


def replace_row(table: MemoryTable) -> None:
    """Replace the row as an API that begins another attempt."""
    row = table.get(KEY)
    assert row is not None
    other = encode_relay(replace(ATTEMPT, attempt="attempt-2"))
    table.commit((Put(KEY, row.revision + 1_000_000, other, row.revision),))


def test_row_is_written_only_after_the_named_revision() -> None:
    table = MemoryTable()
    row = named_row(table)
    row.announce("https://192.0.2.7", "ab")
    record = stored_record(table)
    assert (record.url, record.pin, record.seen_ms) == ("https://192.0.2.7", "ab", 7)
    row.end()
    assert stored_record(table).has_ended
    late = OwnRow(table, ATTEMPT, 5, lambda: 8)
    with pytest.raises(RowLost):
        late.announce("https://192.0.2.8", "cd")
    assert stored_record(table).pin == "ab"


@pytest.mark.parametrize("kind", ["lost", "refused"])
def test_write_without_an_answer_is_repeated(kind: str) -> None:
    table = SelectiveTable()
    row = named_row(table)
    row.announce("https://192.0.2.7", "ab")
    for failures in (1, 2):
        setattr(table, kind, failures)
        for _ in range(failures):
            with pytest.raises(Unavailable):
                row.renew()
        row.renew()
    replace_row(table)
    with pytest.raises(RowLost):
        row.renew()


class RunningTask:
    """A task in a thread, with a table instead of DynamoDB."""

    def __init__(self, table: MemoryTable, row: OwnRow, times: TaskTimes) -> None:
        settings = TaskSettings(ATTEMPT, 5, port=0, times=times)
        self.task = RelayTask(settings, row, lambda url: "127.0.0.1")
        self.error: BaseException | None = None
        self._table = table
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            await self.task.run()

        try:
            asyncio.run(run())
        except (RowLost, Unavailable) as error:
            self.error = error

    def record(self) -> RelayRecord:
        """Return the record of the row, once the task has written its address."""
        wait_until(lambda: stored_record(self._table).url)
        return stored_record(self._table)

    def stop(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.task.stop)
        self.join()

    def join(self) -> None:
        self._thread.join(ANSWER_SECONDS_MAX)
        assert not self._thread.is_alive()


Start = Callable[..., RunningTask]


@pytest.fixture
def table() -> SelectiveTable:
    return SelectiveTable()


@pytest.fixture
def start(table: SelectiveTable) -> Iterator[Start]:
    running: list[RunningTask] = []

    def begin(row: OwnRow | None = None, **times: float) -> RunningTask:
        given = {"beat": 0.05, "idle": NEVER, "linger": 0.0, "confirmed": 0.1, **times}
        running.append(RunningTask(table, row or named_row(table), TaskTimes(**given)))
        return running[-1]

    yield begin
    for task in running:
        task.stop()


def test_tunnel_passes_through_a_task_that_both_ends_pin(start: Start) -> None:
    record = start().record()
    echo = EchoServer()
    try:
        ends = Ends(lambda: record.url, echo.port, pin=record.pin)
        with ends, ends.connect() as program:
            program.sendall(b"hello")
            assert receive_exactly(program, 5) == b"hello"
    finally:
        echo.close()


def test_another_pin_and_another_secret_are_refused(start: Start) -> None:
    record = start().record()
    key = make_key()
    for pin, secret, text in (
        ("0" * 64, SECRET, "the cluster named 0000"),
        (record.pin, b"x" * 32, "signature is invalid"),
    ):
        channel = SecureChannel(key, make_key().certificate, is_agent=False)
        ticket = make_ticket(Side.USER, secret=secret)
        with pytest.raises(RelayUnavailable, match=text):
            dial_relay(record.url, pin, ticket, channel)


def test_running_task_renews_its_row(start: Start, table: SelectiveTable) -> None:
    start().record()
    wait_until(lambda: table.puts > 4)


def test_idle_task_writes_its_end_and_ends(start: Start, table: SelectiveTable) -> None:
    task = start(idle=0.3)
    task.join()
    assert stored_record(table).has_ended
    assert task.error is None


def test_used_task_does_not_end(start: Start, table: SelectiveTable) -> None:
    task = start(idle=1.0)
    record = task.record()
    channel = SecureChannel(make_key(), make_key().certificate, is_agent=False)
    link = dial_relay(record.url, record.pin, make_ticket(Side.USER), channel)
    began = time.monotonic()
    # The end that waits for its peer uses the relay.
    wait_until(lambda: time.monotonic() - began > 1.5)
    assert not stored_record(table).has_ended
    link.close()
    task.join()
    assert stored_record(table).has_ended


def test_stopped_task_writes_its_end_at_once(start: Start, table: SelectiveTable) -> None:
    task = start(linger=NEVER)
    task.record()
    task.stop()
    assert stored_record(table).has_ended


def test_task_ends_when_another_attempt_has_replaced_the_row(
    start: Start, table: SelectiveTable
) -> None:
    task = start()
    task.record()
    wait_until(lambda: _is_replaced(table))
    task.join()
    assert isinstance(task.error, RowLost)
    assert stored_record(table).attempt == "attempt-2"


def _is_replaced(table: SelectiveTable) -> bool:
    """Replace the row, unless the task renews it at the same moment."""
    try:
        replace_row(table)
    except Exception:
        return False
    return True


def test_of_two_racing_tasks_the_row_decides(start: Start, table: SelectiveTable) -> None:
    row = named_row(table)
    tasks = [start(row), start(OwnRow(table, ATTEMPT, 5, lambda: 7))]
    wait_until(lambda: any(task.error is not None for task in tasks))
    [loser] = [task for task in tasks if task.error is not None]
    assert isinstance(loser.error, RowLost)
    loser.join()
    [winner] = [running for running in tasks if running is not loser]
    assert stored_record(table).url.endswith(f":{winner.task.port}")


def test_task_that_the_api_does_not_name_ends(start: Start, table: SelectiveTable) -> None:
    named_row(table)
    task = start(OwnRow(table, ATTEMPT, 6, lambda: 7))
    task.join()
    assert isinstance(task.error, RowLost)
    assert not stored_record(table).url


def test_table_without_answers_ends_the_task_after_a_while(
    start: Start, table: SelectiveTable
) -> None:
    task = start(silent_max=0.2)
    task.record()
    table.refused = 10_000
    task.join()
    assert isinstance(task.error, Unavailable)


def test_environment_is_read() -> None:
    settings = read_settings(
        {
            relay_boot.RECORD: encode_relay(ATTEMPT).decode(),
            relay_boot.REVISION: "5",
            relay_boot.TABLE: "detcloud-vision",
            relay_boot.USER: "65534",
        }
    )
    assert settings.record == ATTEMPT
    assert (settings.revision, settings.table, settings.port) == (5, "detcloud-vision", 443)
    assert (settings.user, settings.address_url) == (65_534, "https://checkip.amazonaws.com")
