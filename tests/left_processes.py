"""Processes that tests started and did not end."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

from detcloud.shared.processes import PROC, Process, is_alive, list_descendants, read_process
from tests.patience import wait_until

# Inherited by what a test starts, whoever its parent is in the end. Not named after the product:
# tests leave the product's variables out of the environments that they make.
MARK = "PYTEST_SESSION_MARK"
TEST_VARIABLE = b"PYTEST_CURRENT_TEST="
# Helpers that serve this process, or wait for its end, until their input from it ends.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "home_guard.py")


@contextlib.contextmanager
def no_process_left(folder: Path, seconds: float = 2.0) -> Iterator[None]:
    """Fail, and end them, if processes that began meanwhile are still there `seconds` after it.

    Those are the descendants of this process, and all whose environment has its mark or names
    `folder`, which is that of the tests' temporary files.
    """
    mark, before = f"{os.getpid()}-{uuid.uuid4()}", os.environ.get(MARK)
    marks = (f"{MARK}={mark}".encode(), os.fsencode(folder))
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
    told = [f"{one.pid}: {one.command}, started by {starting_test(one)}" for one in left]
    for one in filter(is_alive, left):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    assert not left, "\n".join(["processes outlived their tests, and were ended now:", *told])


def list_marked(marks: tuple[bytes, ...]) -> list[Process]:
    """The processes with one of `marks` in their environment, and those that this one started."""
    found = {process.pid: process for process in list_descendants(os.getpid())}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) not in {os.getpid(), *found}:
            words = environment_of(int(entry.name))
            process = (
                read_process(int(entry.name)) if any(mark in words for mark in marks) else None
            )
            if process is not None:
                found[process.pid] = process
    return [
        item for item in found.values() if not any(helper in item.command for helper in HELPERS)
    ]


def starting_test(process: Process) -> str:
    """The test in which a process began, as far as its environment says so."""
    for variable in environment_of(process.pid).split(b"\0"):
        if variable.startswith(TEST_VARIABLE):
            return variable.removeprefix(TEST_VARIABLE).decode(errors="replace")
    return "a test that its environment does not name"


def environment_of(pid: int) -> bytes:
    """The environment that a process began with; empty when it is gone or another user's."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes()
    return b""
