"""Detection of processes that tests started and did not end."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

from detcloud.shared.processes import PROC, Process, is_alive, list_descendants, read_process
from tests.patience import wait_until

# Environment variable that every process of a test inherits. The name lacks the product's prefix,
# because tests remove the product's variables from environments.
MARK = "PYTEST_SESSION_MARK"
TEST_VARIABLE = b"PYTEST_CURRENT_TEST="
# Helper processes that end together with this process.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "home_guard.py")


@contextlib.contextmanager
def no_process_left(folder: Path, seconds: float = 2.0) -> Iterator[None]:
    """Kill processes that outlive the block, and raise AssertionError if any did.

    Processes get `seconds` to end, times the factor of `wait_until`. Checked processes are
    descendants of this process and processes with a mark in their environment: the mark of the
    block, or `folder`, the folder of the tests' temporary files.
    """
    mark, before = f"{os.getpid()}-{uuid.uuid4()}", os.environ.get(MARK)
    # The slash tells the folders of the runs 9 and 96 apart.
    marks = (f"{MARK}={mark}".encode(), os.fsencode(folder) + b"/")
    known = {(process.pid, process.started_ticks) for process in list_marked(marks)}

    def list_new() -> list[Process]:
        return [
            process
            for process in list_marked(marks)
            if (process.pid, process.started_ticks) not in known
        ]

    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK)
        if before is not None:
            os.environ[MARK] = before
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not list_new(), seconds)
    left = list_new()
    lines = [f"{item.pid}: {item.command}, started by {starting_test(item)}" for item in left]
    for process in filter(is_alive, left):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert not left, "\n".join(["processes outlived their tests and were killed:", *lines])


def list_marked(marks: tuple[bytes, ...]) -> list[Process]:
    """Return descendants of this process and processes with one of `marks` in the environment.

    Helper processes are left out.
    """
    listed = {process.pid: process for process in list_descendants(os.getpid())}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) not in {os.getpid(), *listed}:
            words = environment_of(int(entry.name))
            process = (
                read_process(int(entry.name)) if any(mark in words for mark in marks) else None
            )
            if process is not None:
                listed[process.pid] = process
    return [
        item for item in listed.values() if not any(helper in item.command for helper in HELPERS)
    ]


def starting_test(process: Process) -> str:
    """Return the test that started a process, or a placeholder for an unknown test."""
    for variable in environment_of(process.pid).split(b"\0"):
        if variable.startswith(TEST_VARIABLE):
            return variable.removeprefix(TEST_VARIABLE).decode(errors="replace")
    return "an unknown test"


def environment_of(pid: int) -> bytes:
    """Return the initial environment of a process, empty for an ended or foreign process."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes()
    return b""
