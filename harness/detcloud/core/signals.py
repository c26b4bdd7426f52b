"""The signals that a training process handles: SIGTERM to stop, SIGUSR1 to print the stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from detcloud.core.preempt import SIGTERM_REASON, PreemptContext
from detcloud.shared.stack_signal import STACK_SIGNAL
from detcloud.shared.trial_directory import Preemption


class SigtermHandler:
    """A handler that turns SIGTERM into a preemption with a deadline, until `restore`.

    The script's earlier handler is called after the preemption is recorded. If the code has asked
    whether to stop, an exception of that handler is kept for `raise_postponed`. The code can then
    save its work first. Nothing is installed in a thread other than the main thread, or over a
    handler that is not Python's. A trial without this handler learns of the stop by the
    directives, the file with the cluster's requests.
    """

    def __init__(self, preempt: PreemptContext) -> None:
        """Install the handler, if this is the main thread and the earlier handler is Python's.

        `preempt` receives the requests to stop.
        """
        self._preempt = preempt
        self._postponed: BaseException | None = None
        self._previous = signal.getsignal(signal.SIGTERM)
        is_main = threading.current_thread() is threading.main_thread()
        self._is_installed = is_main and self._previous is not None
        if self._is_installed:
            global _installed
            _installed = self
            signal.signal(signal.SIGTERM, self._handle)

    def restore(self) -> None:
        """Reinstall the handler from before, unless the script has installed another since."""
        # Bound methods are equal, not identical.
        if self._is_installed and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)

    def raise_postponed(self) -> None:
        """Raise the exception of the script's own handler that was kept, if any, once."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            raise postponed

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Record a request to stop now, and call the script's earlier handler.

        Keep an exception of the earlier handler if the code has asked whether to stop. Else pass it
        on.
        """
        self._preempt.request(Preemption(time.time_ns() // 1_000_000, SIGTERM_REASON))
        if not callable(self._previous):
            return
        try:
            self._previous(number, frame)
        except BaseException as error:
            if not self._preempt.was_asked:
                raise
            self._postponed = error


class _ForkGuard(threading.local):
    """Prevents forks from running the SIGTERM handler of the training process.

    Python discards a signal that arrives in a fork before the fork is set up. SIGTERM is therefore
    blocked during a fork, and delivered after the fork has restored the earlier handler.
    """

    def __init__(self) -> None:
        self._mask: set[int] = set()

    def block(self) -> None:
        """Block SIGTERM in this thread before a fork, and remember the thread's signal mask."""
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGTERM)
        self._mask = {int(number) for number in previous}

    def unblock(self) -> None:
        """Restore this thread's signal mask from before the fork, in the parent and in the fork."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def set_up_fork(self) -> None:
        """In the fork, reinstall the earlier SIGTERM handler and restore the signal mask."""
        if _installed is not None:
            _installed.restore()
        self.unblock()


_SIGTERM = (signal.SIGTERM,)
_fork_guard = _ForkGuard()
_installed: SigtermHandler | None = None
os.register_at_fork(
    before=_fork_guard.block,
    after_in_parent=_fork_guard.unblock,
    after_in_child=_fork_guard.set_up_fork,
)


def print_stacks_on_sigusr1() -> None:
    """Make SIGUSR1 print the stack of every thread to stderr, and then call the earlier handler.

    The output shows where a process hangs, even within a library. Without an earlier handler, the
    process continues after the output. The agent's signal STACK_SIGNAL prints the same. Do nothing
    if stderr is missing or has no file descriptor.
    """
    has_handler, screen = callable(signal.getsignal(signal.SIGUSR1)), sys.__stderr__
    if screen is None:
        return
    # `faulthandler` needs a stream with a file descriptor.
    with suppress(OSError, ValueError):
        faulthandler.register(signal.SIGUSR1, file=screen, chain=has_handler)
        if STACK_SIGNAL:
            faulthandler.register(STACK_SIGNAL, file=screen)
