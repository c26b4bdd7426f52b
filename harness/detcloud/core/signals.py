"""The signals that a training process handles: SIGTERM to stop, SIGUSR1 to show where it is."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from detcloud.core.preempt import SIGTERM_REASON, PreemptContext
from detcloud.shared.trial_directory import Preemption


def stop_on_sigterm(preempt: PreemptContext) -> Callable[[], None]:
    """Turn SIGTERM into a preemption at the next batch; the function that undoes that."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def request(_signal: int, _frame: FrameType | None) -> None:
        preempt.request(Preemption(time.time_ns() // 1_000_000, SIGTERM_REASON))

    previous = signal.signal(signal.SIGTERM, request)

    def restore() -> None:
        signal.signal(signal.SIGTERM, previous)

    return restore


def print_stacks_on_sigusr1() -> None:
    """Have SIGUSR1 print where each thread is, to stderr, and then do what it did before.

    It shows where a process hangs, also within a library.
    """
    has_handler, screen = callable(signal.getsignal(signal.SIGUSR1)), sys.__stderr__
    if screen is None:
        return
    # A stream that is no file of the system's has nowhere to print to.
    with suppress(OSError, ValueError):
        faulthandler.register(signal.SIGUSR1, file=screen, chain=has_handler)
