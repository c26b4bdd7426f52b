"""The forced end of a trial's process whose threads do not end.

Python joins every non-daemon thread before a process ends. A thread that never ends would keep the
trial's slots forever, without a line in the log.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from detcloud.shared.process_end import end_process, requested_status

EXIT_SECONDS = 60.0
# Threads that end this soon are not worth a line of the log.
QUIET_SECONDS = 5.0
POLL_SECONDS = 0.1
NAMES_MAX = 3
_watches: list[float] = []


def watch_threads(exit_seconds: float = EXIT_SECONDS) -> None:
    """Start a thread that ends this process `exit_seconds` after the main thread's end.

    QUIET_SECONDS after the main thread's end, print the non-daemon threads that still run to
    stderr. If all of these threads end in time, the process ends by itself. A forced end keeps the
    exit code. Only the first call counts. Do nothing after the end of the main thread.
    """
    if _watches or not threading.main_thread().is_alive():
        # After the interpreter has joined all threads, `Thread.start` would wait forever. A context
        # that the code never closed is closed that late.
        return
    _watches.append(exit_seconds)
    arguments = (threading.main_thread(), exit_seconds)
    threading.Thread(target=_watch, args=arguments, name="thread-watch", daemon=True).start()


@contextmanager
def watch_threads_after(exit_seconds: float) -> Iterator[None]:
    """Call `watch_threads` after the block, also if the block fails."""
    try:
        yield
    finally:
        watch_threads(exit_seconds)


def _watch(main: threading.Thread, exit_seconds: float) -> None:
    """Wait for the end of the main thread, then for other threads.

    Print the threads that still run. End the process after `exit_seconds`.
    """
    main.join()
    ended_at, is_told = time.monotonic(), False
    while running := _running_threads():
        waited = time.monotonic() - ended_at
        if waited >= exit_seconds:
            _print(f"{exit_seconds:g} s after its end the process is ended")
            end_process(_exit_status())
        if waited >= min(QUIET_SECONDS, exit_seconds / 2) and not is_told:
            is_told = True
            names = "; ".join(map(_render_thread, running[:NAMES_MAX]))
            more = len(running) - NAMES_MAX
            left = exit_seconds - waited
            _print(
                f"the trial's code has ended, but its process waits for {names}"
                f"{f' and {more} more' if more > 0 else ''}. It is ended in {left:.0f} s "
                "(exit_timeout of the configuration). End the thread, or make it a daemon"
            )
        time.sleep(POLL_SECONDS)


def _running_threads() -> list[threading.Thread]:
    """Return the threads that the interpreter joins before the process ends."""
    main = threading.main_thread()
    return [each for each in threading.enumerate() if each is not main and not each.daemon]


def _render_thread(thread: threading.Thread) -> str:
    """Return the thread's name and, if known, the present function, file and line."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return f"thread {thread.name!r}"
    place = traceback.extract_stack(frame)[-1]
    return f"thread {thread.name!r} in {place.name} ({place.filename}:{place.lineno})"


def _exit_status() -> int:
    """Return the exit code that the process was about to end with: 1 after an uncaught
    exception.
    """
    if requested_status:
        return requested_status[-1]
    return int(getattr(sys, "last_value", None) is not None)


def _print(text: str) -> None:
    print(f"[detcloud] {text}", file=sys.stderr, flush=True)
