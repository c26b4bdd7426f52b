"""The receiver of the webhook of a simulated cluster."""

import json
from collections import defaultdict
from dataclasses import dataclass, field

from control_plane.webhooks.sender import Outcome, Request
from simulator.faults.fault_state import FaultState

ANSWER_LOST_SHARE = 0.5
"""The share of failed requests that arrive, and whose answers are lost."""


@dataclass
class SimulatedReceiver:
    """A receiver that records the events of each subject, and checks the order."""

    faults: FaultState
    received: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """The ids of the events of each subject by number, in the order of the first arrivals."""
    faults_found: list[str] = field(default_factory=list)
    """The events that overtook another event or changed the id."""

    def send(self, request: Request) -> Outcome:
        """Receive a request, and return the outcome. By the fault `failed_deliveries`, the request
        or the answer is lost.
        """
        rate = self.faults.rates.failed_deliveries
        has_failed = self.faults.draw_fault("failed_deliveries", rate)
        if not has_failed or self.faults.random.random() < ANSWER_LOST_SHARE:
            self._receive(json.loads(request.body))
        if has_failed:
            return Outcome(False, error="no answer")
        return Outcome(True, 200)

    def _receive(self, event: dict[str, object]) -> None:
        """Record an event. An event that came before must have the same id."""
        subject, number, event_id = event["subject"], event["number"], event["event_id"]
        assert isinstance(number, int)
        ids = self.received[str(subject)]
        last = max(ids, default=0)
        if number > last:
            ids[number] = str(event_id)
        elif ids.get(number) != event_id:
            self.faults_found.append(f"event {number} of {subject} came after event {last}")
