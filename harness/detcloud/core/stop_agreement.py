"""The agreement of a trial's processes on where to stop, so that all stop at the same check.

Each rank counts its checks ("stop now?"), which all make in the same order. A request that any rank
sees goes to the chief. It asks for every rank's count; a rank that has answered waits at its next
check. The chief then announces the check after the highest count, and all go on to that one. So a
check is a comparison of integers, and no rank waits longer than two messages take.

A request without a deadline counts for `should_preempt` alone, one with a deadline for the check at
each batch too: they are agreed on separately.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from detcloud.core.channel import Channel
from detcloud.shared.trial_directory import Preemption

POLL_SECONDS = 0.2
NEVER = sys.maxsize


class StopAgreement:
    """One rank's part in the agreement; `read` gives the request that this rank sees, or None."""

    def __init__(self, control: Channel, read: Callable[[], Preemption | None]) -> None:
        self._control = control
        self._read = read
        self._lock = threading.Condition()
        self._checks = 0
        self._is_held = False
        # The checks at which to stop, by whether the request has a deadline.
        self._stops = {False: NEVER, True: NEVER}
        self._sent: set[bool] = set()
        self._answers: dict[bool, dict[int, int]] = {}
        self._closed = False
        self.request: Preemption | None = None
        self._thread = threading.Thread(target=self._run, name="stop-agreement", daemon=True)
        self._thread.start()

    def should_stop(self, *, urgent: bool) -> bool:
        """Whether all ranks stop at this check; `urgent` asks for a request with a deadline."""
        with self._lock:
            while self._is_held and not self._closed:
                self._lock.wait(POLL_SECONDS)
            self._checks += 1
            stop = self._stops[True] if urgent else min(self._stops.values())
            return self._checks >= stop

    def close(self) -> None:
        """End the thread; checks after it answer as before."""
        self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join(5 * POLL_SECONDS)

    def _run(self) -> None:
        # The end of the connections is the end of the agreement.
        with contextlib.suppress(OSError, EOFError, ValueError):
            while not self._closed:
                self._notice(self._read())
                connections = self._connections()
                ready = wait(connections, POLL_SECONDS)
                for connection in [one for one in connections if one in ready]:
                    self._receive(connection)
        with self._lock:
            self._is_held = False
            self._closed = True
            self._lock.notify_all()

    def _connections(self) -> list[Connection[Any, Any]]:
        chief = self._control.chief
        return [chief] if chief is not None else self._control.workers

    def _notice(self, request: Preemption | None) -> None:
        """Pass a request on, once for each urgency."""
        if request is None:
            return
        urgent = request.deadline_ms is not None
        if urgent in self._sent:
            return
        if self._control.chief is not None:
            self._sent.add(urgent)
            self._control.chief.send(("request", request))
        else:
            self._collect(request)

    def _receive(self, connection: Connection[Any, Any]) -> None:
        try:
            kind, *values = connection.recv()
        except (EOFError, OSError):
            # A rank that has ended well needs no agreement any more.
            if connection is self._control.chief:
                raise
            self._control.workers.remove(connection)
            self._finish_rounds()
            return
        match kind:
            case "request":
                self._collect(values[0])
            case "collect":
                with self._lock:
                    self._is_held = True
                    checks = self._checks
                connection.send(("checks", values[0], checks))
            case "checks":
                self._answers.setdefault(values[0], {})[id(connection)] = values[1]
                self._finish_rounds()
            case "stop":
                self._stop(*values)

    def _collect(self, request: Preemption) -> None:
        """Ask every rank for its count, on the chief."""
        urgent = request.deadline_ms is not None
        if urgent in self._sent:
            return
        self._sent.add(urgent)
        self.request = request
        with self._lock:
            self._is_held = True
            self._answers[urgent] = {0: self._checks}
        for worker in self._control.workers:
            with contextlib.suppress(OSError):
                worker.send(("collect", urgent))
        self._finish_rounds()

    def _finish_rounds(self) -> None:
        """Announce where to stop once every rank has answered, on the chief."""
        expected = {0, *map(id, self._control.workers)}
        for urgent, answers in list(self._answers.items()):
            if not expected <= answers.keys():
                continue
            del self._answers[urgent]
            stop = max(answers.values()) + 1
            assert self.request is not None
            for worker in self._control.workers:
                with contextlib.suppress(OSError):
                    worker.send(("stop", urgent, stop, self.request, bool(self._answers)))
            self._stop(urgent, stop, self.request, bool(self._answers))

    def _stop(self, urgent: bool, check: int, request: Preemption, is_held: bool) -> None:
        with self._lock:
            self._stops[urgent] = min(self._stops[urgent], check)
            self.request = request
            self._is_held = is_held
            self._lock.notify_all()
