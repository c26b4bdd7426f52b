"""The detection of hanging runs, and the stacks of their processes."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from detcloud.agent.allocation import hang_monitor
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.hang_monitor import STACKS_MS, HangMonitor
from detcloud.agent.allocation.hang_watch import USUAL_FACTOR, HangWatch
from detcloud.agent.allocation.printed_stacks import parse_places, request_stacks
from detcloud.shared.stack_signal import STACK_SIGNAL
from tests.patience import wait_until

MINUTE_MS = 60_000
STACKS = """\
[rank=1] Thread 0x00007f01 (most recent call first):
[rank=1]   File "/usr/lib/python3.11/threading.py", line 320 in wait
[rank=0] Current thread 0x00007f02 [python3] (most recent call first):
[rank=1]
[rank=0]   File "/usr/lib/torch/distributed_c10d.py", line 2501 in all_reduce
[rank=1] Current thread 0x00007f03 (most recent call first):
[rank=0]   File "/srv/detcloud/allocations/4.1/code/train.py", line 30 in main
[rank=1]   File "/srv/detcloud/allocations/4.1/code/loader.py", line 12 in fetch
[rank=0] later output
"""


def test_silence_of_the_timeout_is_a_hang_once() -> None:
    watch = HangWatch(30 * MINUTE_MS, 0)
    assert watch.check(30 * MINUTE_MS - 1) == 0
    assert watch.check(30 * MINUTE_MS) == 30 * MINUTE_MS
    assert watch.check(40 * MINUTE_MS) == 0
    assert watch.note_output(41 * MINUTE_MS)
    assert not watch.note_output(42 * MINUTE_MS)
    assert watch.check(72 * MINUTE_MS) == 30 * MINUTE_MS


def test_rare_outputs_extend_the_silence() -> None:
    watch = HangWatch(30 * MINUTE_MS, 0)
    for number in range(1, 6):
        watch.note_output(number * 10 * MINUTE_MS)
    limit_ms = USUAL_FACTOR * 10 * MINUTE_MS
    assert watch.limit_ms == limit_ms
    assert watch.check(50 * MINUTE_MS + limit_ms - 1) == 0
    assert watch.check(50 * MINUTE_MS + limit_ms) == limit_ms


def test_hang_itself_is_no_usual_interval() -> None:
    watch = HangWatch(MINUTE_MS, 0)
    watch.check(100 * MINUTE_MS)
    watch.note_output(100 * MINUTE_MS)
    assert watch.limit_ms == MINUTE_MS


def test_clock_that_was_set_back_begins_a_new_silence() -> None:
    watch = HangWatch(MINUTE_MS, 10 * MINUTE_MS)
    assert watch.check(2 * MINUTE_MS) == 0
    assert watch.check(3 * MINUTE_MS) == MINUTE_MS


def test_place_of_each_rank_is_the_innermost_frame_and_the_model_code() -> None:
    assert parse_places(STACKS, 0) == {
        0: "distributed_c10d.py:2501 all_reduce, called at train.py:30 main",
        1: "loader.py:12 fetch",
    }


def test_lines_without_a_rank_belong_to_the_node() -> None:
    text = 'Current thread 0x1 (most recent call first):\n  File "/code/a.py", line 3 in f\n'
    assert parse_places(text, 5) == {5: "a.py:3 f"}
    assert parse_places("no stacks\n", 5) == {}


def test_process_without_a_handler_gets_no_signal() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(0.2)
        assert request_stacks([process.pid, 1 << 22]) == 0
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_process_with_the_handler_prints_its_stacks() -> None:
    code = (
        "import time, detcloud.core.signals as s; s.print_stacks_on_sigusr1();"
        " print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert STACK_SIGNAL
        wait_until(lambda: request_stacks([process.pid]))
        time.sleep(0.5)
        assert process.poll() is None
    finally:
        process.kill()
        _, text = process.communicate()
    assert parse_places(text, 0) == {0: "<string>:1 <module>"}


class Run:
    """A monitored run with a clock that a test moves. Its processes print prepared stacks."""

    def __init__(
        self, directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch, rank: int = 0
    ) -> None:
        self.now_ms = 0
        self.directory = directory
        self.requests = 0
        monkeypatch.setattr(hang_monitor, "request_stacks", self.print_stacks)
        monitor = HangMonitor.of_spec(
            directory, {"hang_timeout_ms": 30 * MINUTE_MS, "node_rank": rank}, 0
        )
        assert monitor is not None
        self.monitor = monitor

    def print_stacks(self, processes: list[int]) -> int:
        assert processes == [7]
        self.requests += 1
        with self.directory.log.open("a") as log:
            log.write(STACKS)
        return 1

    def check(self, minutes: float, directives: dict[str, Any] | None = None) -> list[Any]:
        self.now_ms = round(minutes * MINUTE_MS)
        return list(self.monitor.check(self.now_ms, directives or {}, lambda: [7]))


def test_hang_is_reported_with_the_stacks_in_the_log(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(directory, monkeypatch)
    assert run.check(29) == []
    limit_ms = 30 * MINUTE_MS
    assert run.check(30) == [{"kind": "hang", "silent_ms": limit_ms, "timeout_ms": limit_ms}]
    [stacks] = run.check(30 + STACKS_MS / MINUTE_MS)
    assert stacks["kind"] == "stacks"
    assert [rank for rank, _ in stacks["places"]] == [0, 1]
    # The stacks are no output of the run.
    assert run.check(50) == []
    with directory.log.open("a") as log:
        log.write("works\n")
    assert run.check(51) == [{"kind": "hang", "silent_ms": 0}]
    assert run.requests == 1


def test_other_nodes_print_stacks_when_told(
    directory: AllocationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(directory, monkeypatch, rank=1)
    assert run.check(90) == []
    assert run.check(91, {"hang": 1}) == []
    [stacks] = run.check(92, {"hang": 1})
    assert stacks["kind"] == "stacks"
    assert run.check(93, {"hang": 1}) == []
    assert run.requests == 1


@pytest.mark.parametrize("spec", [None, {}, {"hang_timeout_ms": 0}, {"hang_timeout_ms": "5"}])
def test_run_without_a_timeout_is_not_watched(
    directory: AllocationDirectory, spec: dict[str, Any] | None
) -> None:
    assert HangMonitor.of_spec(directory, spec, 0) is None
