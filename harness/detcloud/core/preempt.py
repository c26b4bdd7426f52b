"""Preemption: whether this trial should stop, and whether a deadline exists."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

from detcloud.core.distributed_context import DistributedContext
from detcloud.core.stop_agreement import StopAgreement
from detcloud.shared.errors import DetcloudError, InvalidCall
from detcloud.shared.trial_directory import Directives, Preemption

READ_SECONDS_MIN = 0.1
SIGTERM_REASON = "SIGTERM"


class PreemptMode(Enum):
    """The ranks that may ask whether to stop, and the source of the answer."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    """All ranks ask equally often, and all get the same answer at the same check."""
    ChiefOnly = "CHIEF_ONLY"
    """Only the chief asks. Your code sends the answer to the other ranks."""
    WorkersAskMaster = "WORKERS_ASK_MASTER"
    """Each rank reads the cluster's request itself, so the answers may differ between ranks."""
    WorkersAskSelf = WorkersAskMaster
    """Another name of WorkersAskMaster."""


class PreemptContext:
    """Answers whether to stop, without delay, so that code may ask at every batch.

    A single process reads the directives, the file with the cluster's requests, at most every
    100 ms. In the mode WorkersAskChief, several processes agree on a common check at which to stop.

    The deadline of a request is the time at which the process is killed or the machine ends.
    SIGTERM counts as a deadline that is reached. Code stops for a request with a deadline at the
    next batch, for a request without a deadline at a convenient time.
    """

    def __init__(
        self,
        read: Callable[[], Directives],
        distributed: DistributedContext | None = None,
        mode: PreemptMode = PreemptMode.WorkersAskChief,
        on_first_check: Callable[[], None] | None = None,
    ) -> None:
        """Create the context. `read` returns the newest directives, with the request to stop.

        `on_first_check` is called once, when the code first asks whether to stop. In the mode
        WorkersAskChief, several connected processes start a thread for their agreement. Raises
        ValueError for an unknown mode.
        """
        self._read = read
        self._on_first_check = on_first_check
        # Whether the code has asked whether to stop.
        self.was_asked = False
        self._next_read = 0.0
        self._directed: Preemption | None = None
        self._requested: Preemption | None = None
        self.was_seen = False
        # Whether the code stops because of the request, so that the trial resumes later.
        self.is_acknowledged = False
        # The time at which the code learned of a notice, in seconds of `time.monotonic`.
        self.noticed_at: float | None = None
        mode = PreemptMode(mode)
        self._may_ask = mode is not PreemptMode.ChiefOnly or not (distributed and distributed.rank)
        self._agreement: StopAgreement | None = None
        control = distributed.control if distributed is not None else None
        is_gang = control is not None and (control.chief is not None or bool(control.workers))
        if is_gang and control is not None and mode is PreemptMode.WorkersAskChief:
            self._agreement = StopAgreement(control, self._read_request)

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether the cluster asks this trial to save a checkpoint and exit.

        The call is fast enough for every batch. Call this where stopping is convenient, since
        requests without a deadline wait for a call. If it returned True and your code exits, the
        trial resumes later. After an agreement of several processes, all ranks get True at a common
        check.

        Args:
            auto_ack: whether True also declares that the code stops for the request. With False,
                call `acknowledge_preemption_signal` before the exit; otherwise the exit ends the
                trial.

        Raises:
            InvalidCall: in the mode `ChiefOnly`, the rank is not the chief.
            DetcloudError: the file of directives is malformed.
        """
        self._note_check()
        is_wanted = (
            self._agreement.should_stop(urgent=False)
            if self._agreement is not None
            else self.is_requested()
        )
        return self._see(is_wanted, is_acknowledged=auto_ack)

    def acknowledge_preemption_signal(self) -> None:
        """Declare that the code stops because of the preemption, so that the trial resumes
        later.
        """
        self.is_acknowledged = True

    def must_stop_at_next_batch(self) -> bool:
        """Return whether a request to stop has a deadline: an interruption notice, a kill or
        SIGTERM.

        The deadline is the time at which the process is killed or the machine ends. Code that asks
        `should_preempt` only at the end of an epoch can ask this at every batch. If this returned
        True and your code exits, the trial resumes later.

        Raises:
            InvalidCall: in the mode `ChiefOnly`, the rank is not the chief.
            DetcloudError: the file of directives is malformed.
        """
        self._note_check()
        if self._agreement is not None:
            return self._see(self._agreement.should_stop(urgent=True))
        is_unasked = self._requested is None and self._directed is None
        if is_unasked and time.monotonic() < self._next_read:
            # Most calls return here, because the directives were read less than 100 ms ago.
            return False
        pending = self._pending() if self.is_requested() else None
        return self._see(pending is not None and pending.deadline_ms is not None)

    def is_requested(self) -> bool:
        """Return whether this process knows of a request to stop. The trial's other processes may
        not know of the request yet.

        The call does not count as a promise to stop. The first call runs `on_first_check`, which on
        a cluster declares that this process reads requests to stop. Raises DetcloudError if the
        file of directives is malformed.
        """
        if not self.was_asked:
            self._note_first_check()
        if self._agreement is not None and self._agreement.request is not None:
            return True
        self._read_directives()
        return self._pending() is not None

    @property
    def notice(self) -> Preemption | None:
        """The request to stop with a deadline, once a check has returned True; None before.

        A call of `note_stop` has the same effect as the check. The reason is an announced end of
        the machine or a stop of the trial. Remains None for requests without a deadline, and for
        SIGTERM, because a signal does not state the remaining time.
        """
        agreed = self._agreement.request if self._agreement is not None else None
        for request in (agreed, self._requested, self._directed):
            if request is None or request.deadline_ms is None or not self.was_seen:
                continue
            if request.reason != SIGTERM_REASON:
                return request
        return None

    def request(self, preempt: Preemption) -> None:
        """Record a request to stop that reached this process directly, for example by a signal.

        The request replaces an earlier direct request. The next call of `should_preempt` returns
        True. In the mode WorkersAskChief, several processes first agree on a common check. In the
        other modes, only this process learns of the request.
        """
        self._requested = preempt

    def note_stop(self) -> None:
        """Record that the code has received the request to stop and acknowledges the preemption.

        For processes that have agreed to stop by other means than the checks of this class.
        """
        self._see(True)

    def close(self) -> None:
        """End the agreement between the processes, if any."""
        if self._agreement is not None:
            self._agreement.close()

    def _see(self, is_seen: bool, *, is_acknowledged: bool = True) -> bool:
        """If `is_seen`, record that the code learns of a request. Return `is_seen`.

        With `is_acknowledged`, also acknowledge the request. The first notice sets `noticed_at`.
        """
        if is_seen:
            self.was_seen = True
            self.is_acknowledged |= is_acknowledged
            if self.noticed_at is None and self.notice is not None:
                self.noticed_at = time.monotonic()
        return is_seen

    def _note_check(self) -> None:
        """Record that the code asks whether to stop. Raises InvalidCall if this process may not
        ask.
        """
        if not self.was_asked:
            self._note_first_check()
        if not self._may_ask:
            raise InvalidCall(
                "should_preempt was called by a process that is not the chief, but preempt_mode is "
                "ChiefOnly: let the chief ask and broadcast its answer, or use WorkersAskChief"
            )

    def _note_first_check(self) -> None:
        """Set `was_asked`, and call `on_first_check`, if any."""
        self.was_asked = True
        if self._on_first_check is not None:
            self._on_first_check()

    def _pending(self) -> Preemption | None:
        """Return the request that reached this process directly, or else the cluster's request.

        The cluster's request is the one of the last reading of the directives. Return None without
        a request.
        """
        return self._requested or self._directed

    def _read_request(self) -> Preemption | None:
        """Return the request of this process, preferably with a deadline. Return None without a
        request.

        Runs in the agreement's thread. A malformed file of directives counts as no request.
        """
        try:
            directed = self._read().preempt
        except DetcloudError:
            # The next operation reads the directives as well and raises the error.
            directed = None
        requests = [request for request in (self._requested, directed) if request is not None]
        return max(requests, key=lambda request: request.deadline_ms is not None, default=None)

    def _read_directives(self) -> None:
        """Read the cluster's request from the file of directives, and store the request.

        Do nothing if the last reading was less than 100 ms ago. Raises DetcloudError if the file is
        malformed.
        """
        now = time.monotonic()
        if now >= self._next_read:
            self._next_read = now + READ_SECONDS_MIN
            self._directed = self._read().preempt
