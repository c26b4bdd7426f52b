"""A program that serves a port of this machine for the duration of tests."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.patience import ANSWER_SECONDS_MAX, PATIENCE, poll_until

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0 * PATIENCE
LOOK_SECONDS = 0.05


def require_program(name: str, *places: Path, remedy: str = "`make setup` installs it") -> Path:
    """Return the path of a program at one of `places`, beside the interpreter, or on the PATH.

    Skip the test if the program is missing, or fail if DETCLOUD_REQUIRE names the program.
    """
    for place in (*places, Path(sys.prefix) / "bin" / name):
        if os.access(place, os.X_OK):
            return place
    if path := shutil.which(name):
        return Path(path)
    return missing(name, f"{name} is not installed; {remedy}")


def missing(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail if DETCLOUD_REQUIRE names `name`."""
    if name in os.environ.get("DETCLOUD_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and DETCLOUD_REQUIRE names it", pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    command: Sequence[str | Path],
    ready: str | Callable[[], object],
    log: Path,
    environment: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` until the block ends and yield the process.

    The block begins when the URL `ready` answers or the function `ready` raises no OSError. `stop`
    is the ending signal: SIGKILL for programs that are slow to stop and keep no data.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        is_ready = ready if callable(ready) else partial(_answers, ready)
        _wait_until_ready(process, is_ready, log)
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> None:
    try:
        urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX).close()
    except urllib.error.HTTPError as answer:
        answer.close()


def _wait_until_ready(
    process: subprocess.Popen[bytes], is_ready: Callable[[], object], log: Path
) -> None:
    def describe() -> str:
        output = log.read_text(errors="replace")[-2000:]
        return f"{process.args!r} does not get ready:\n{output}"

    def look() -> bool:
        assert process.poll() is None, describe()
        try:
            is_ready()
        except OSError:
            return False
        return True

    poll_until(look, READY_SECONDS_MAX, describe, LOOK_SECONDS)
