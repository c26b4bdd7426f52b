"""Preemption: whether this trial should stop, and how soon."""

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
    """The ranks that may ask whether to stop, and who answers.

    `WorkersAskChief`: all ranks ask, each as often as the others, and all hear of it at the same
    check. `ChiefOnly`: the chief asks and tells the others itself. `WorkersAskMaster`, also called
    `WorkersAskSelf`: each rank reads its own directives, so that the answers may differ.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"
    WorkersAskSelf = WorkersAskMaster


class PreemptContext:
    """Answers at once, so that it may be asked at every batch.

    A process alone reads the directives at most every 100 ms; several agree on where to stop.
    """

    def __init__(
        self,
        read: Callable[[], Directives],
        distributed: DistributedContext | None = None,
        mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        self._read = read
        self._next_read = 0.0
        self._directed: Preemption | None = None
        self._requested: Preemption | None = None
        self.was_seen = False
        # Whether the code means to stop for what it has seen, and to go on later.
        self.is_acknowledged = False
        # When the code was told of a notice, of `time.monotonic`.
        self.noticed_at: float | None = None
        mode = PreemptMode(mode)
        self._may_ask = mode is not PreemptMode.ChiefOnly or not (distributed and distributed.rank)
        self._agreement: StopAgreement | None = None
        control = distributed.control if distributed is not None else None
        is_gang = control is not None and (control.chief is not None or bool(control.workers))
        if is_gang and control is not None and mode is PreemptMode.WorkersAskChief:
            self._agreement = StopAgreement(control, self._read_request)

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether the cluster wants this trial to checkpoint and exit, with a deadline or not.

        Call it where stopping is convenient: the cluster waits for the end of a workload. Code that
        was told so and then ends well goes on later. Without `auto_ack` it does so only where it
        has called `acknowledge_preemption_signal`; else its end is that of the trial.
        """
        self._check_may_ask()
        is_wanted = (
            self._agreement.should_stop(urgent=False)
            if self._agreement is not None
            else self.is_requested()
        )
        return self._see(is_wanted, is_acknowledged=auto_ack)

    def acknowledge_preemption_signal(self) -> None:
        """Say that the code stops for what `should_preempt` has told it, and goes on later."""
        self.is_acknowledged = True

    def must_stop_at_next_batch(self) -> bool:
        """Whether there is a deadline: an interruption notice or SIGTERM."""
        self._check_may_ask()
        if self._agreement is not None:
            return self._see(self._agreement.should_stop(urgent=True))
        is_unasked = self._requested is None and self._directed is None
        if is_unasked and time.monotonic() < self._next_read:
            # The answer at nearly every batch.
            return False
        pending = self._pending() if self.is_requested() else None
        return self._see(pending is not None and pending.deadline_ms is not None)

    def is_requested(self) -> bool:
        """Whether this process knows of a request; the others need not."""
        if self._agreement is not None and self._agreement.request is not None:
            return True
        self._read_directives()
        return self._pending() is not None

    @property
    def notice(self) -> Preemption | None:
        """The request to stop before a deadline that the code was told of, because its machine
        ends; None without one. A SIGTERM does not say how much time is left.
        """
        agreed = self._agreement.request if self._agreement is not None else None
        for request in (agreed, self._requested, self._directed):
            if request is None or request.deadline_ms is None or not self.was_seen:
                continue
            if request.reason != SIGTERM_REASON:
                return request
        return None

    def request(self, preempt: Preemption) -> None:
        """Note a preemption that reached this process itself, such as a signal."""
        self._requested = preempt

    def note_stop(self) -> None:
        """Note that the processes have agreed in another way to stop for the request."""
        self._see(True)

    def close(self) -> None:
        """End the agreement with the other processes."""
        if self._agreement is not None:
            self._agreement.close()

    def _see(self, is_seen: bool, *, is_acknowledged: bool = True) -> bool:
        if is_seen:
            self.was_seen = True
            self.is_acknowledged |= is_acknowledged
            if self.noticed_at is None and self.notice is not None:
                self.noticed_at = time.monotonic()
        return is_seen

    def _check_may_ask(self) -> None:
        if not self._may_ask:
            raise InvalidCall(
                "should_preempt was called by a process that is not the chief, but preempt_mode is "
                "ChiefOnly: let the chief ask and broadcast its answer, or use WorkersAskChief"
            )

    def _pending(self) -> Preemption | None:
        return self._requested or self._directed

    def _read_request(self) -> Preemption | None:
        """Read the most urgent request that this process sees, in the agreement's thread."""
        try:
            directed = self._read().preempt
        except DetcloudError:
            # The next operation reads them too, and says what is wrong.
            directed = None
        requests = [one for one in (self._requested, directed) if one is not None]
        return max(requests, key=lambda one: one.deadline_ms is not None, default=None)

    def _read_directives(self) -> None:
        now = time.monotonic()
        if now >= self._next_read:
            self._next_read = now + READ_SECONDS_MIN
            self._directed = self._read().preempt
