"""The agreement of a trial's processes to stop together, at a common check.

Each rank counts its checks ("stop now?"); all ranks make the same checks in the same order. A rank
that sees a request sends the request to the chief. The chief asks for every rank's count, and a
rank that has answered waits at its next check. The chief then announces the check after the highest
count, and all ranks continue to that check. A check therefore compares integers, and no rank waits
longer than two messages take.

Requests with and without a deadline are agreed on separately. A request without a deadline counts
only for `should_preempt`. A request with a deadline also counts for the check at each batch.
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
    """A rank's part in the agreement, which runs in a thread.

    `read` returns the request that this rank sees, or None. Its deadline, if any, is the time at
    which the process is killed or the machine ends. `request` is the latest request that all ranks
    agreed on, or None. On the chief, `request` is set when the agreement begins.
    """

    def __init__(self, control: Channel, read: Callable[[], Preemption | None]) -> None:
        """Start the thread. `control` connects this rank with the chief, or the chief with all
        ranks.
        """
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
        """Count a check, and return whether all ranks stop at this check or have stopped before.

        If `urgent`, only a request with a deadline counts. Block while the ranks agree, but not
        after the agreement has ended.
        """
        with self._lock:
            while self._is_held and not self._closed:
                self._lock.wait(POLL_SECONDS)
            self._checks += 1
            stop = self._stops[True] if urgent else min(self._stops.values())
            return self._checks >= stop

    def close(self) -> None:
        """End the thread. Later checks follow the agreements made before."""
        self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join(5 * POLL_SECONDS)

    def _run(self) -> None:
        """Take part in the agreement until `close`, or on a worker until the chief has exited.

        Send the first request of each urgency that this rank sees to the chief, and answer each
        message. The chief continues without a worker that has exited. At the end, checks that wait
        in `should_stop` return. Lost connections raise nothing.
        """
        # The agreement ends when the connections are closed.
        with contextlib.suppress(OSError, EOFError, ValueError):
            while not self._closed:
                self._notice(self._read())
                connections = self._connections()
                ready = wait(connections, POLL_SECONDS)
                for connection in [each for each in connections if each in ready]:
                    self._receive(connection)
        with self._lock:
            self._is_held = False
            self._closed = True
            self._lock.notify_all()

    def _connections(self) -> list[Connection[Any, Any]]:
        """Return the connection to the chief or, on the chief, to all other ranks."""
        chief = self._control.chief
        return [chief] if chief is not None else self._control.workers

    def _notice(self, request: Preemption | None) -> None:
        """Send a request to the chief; on the chief, collect the counts.

        Do nothing without a request, or after an earlier request of the same urgency.
        """
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
        """Read a message of a connection, and carry out the step of the agreement.

        A check is a call of `should_stop`. The message is one of:

        - `request`, on the chief: ask every worker for its count of checks, and hold the chief's
          own checks. Do nothing after an earlier request of the same urgency.
        - `collect`, on a worker: send this rank's count, and hold the next check until `stop`.
        - `checks`, on the chief: store a worker's count. After the last count, send every worker
          the check at which to stop.
        - `stop`, on a worker: set the check at which to stop, and release held checks.

        On the chief, remove a worker that has exited, and continue without the worker: the counts
        may now be complete. Raises EOFError or OSError if the chief has exited.
        """
        try:
            kind, *values = connection.recv()
        except (EOFError, OSError):
            # A worker that has exited takes no more part in the agreement.
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
        """On the chief, ask every rank for the count of checks and hold the chief's own checks.

        Do nothing after an earlier request of the same urgency.
        """
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
        """On the chief, send the check at which to stop to all workers, if every rank has answered.

        Requests with and without a deadline have separate rounds of answers. All ranks stop at the
        check after the highest count of checks. Set the same check for the chief, and wake its
        waiting checks unless the second round is open. Do nothing while the count of a rank is
        missing. Workers that have exited are skipped.
        """
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
        """Set the check at which all ranks stop for `request`, and wake waiting checks.

        `is_held` tells whether checks must continue to wait, because the agreement on a request of
        the opposite urgency is open. An earlier check for the same urgency stays.
        """
        with self._lock:
            self._stops[urgent] = min(self._stops[urgent], check)
            self.request = request
            self._is_held = is_held
            self._lock.notify_all()
