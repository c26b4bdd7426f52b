"""Notice of a spot instance's interruption, as EC2 announces it in the instance's metadata."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from detcloud.agent.aws.metadata import InstanceMetadata

# AWS asks for a look every five seconds; each later one is taken from the trials' two minutes.
LOOK_SECONDS = 2.0
INTERRUPTION_MS = 120_000
ACTION_PATH = "latest/meta-data/spot/instance-action"
ADVICE_PATH = "latest/meta-data/events/recommendations/rebalance"


class Ec2Notices:
    """Notices of a spot instance's interruption, read from its metadata by a thread.

    Without an answer the last notice stands: a machine that is busy ending may not answer.
    """

    def __init__(self, metadata: InstanceMetadata, look_seconds: float = LOOK_SECONDS) -> None:
        self._metadata = metadata
        self._look_seconds = look_seconds
        self._notice: Notice | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        # EC2 recommends to leave this machine. There is no deadline, so nothing that runs here is
        # stopped for it.
        self.is_end_likely = False

    def start(self) -> Ec2Notices:
        """Start the thread that reads the metadata."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def poll(self) -> Notice | None:
        """The notice at the last look, None without one."""
        return self._notice

    def _run(self) -> None:
        while True:
            # Whatever goes wrong with one look, the next may be the one that matters.
            with contextlib.suppress(Exception):
                self._read_metadata()
            if self._stopped.wait(self._look_seconds):
                return

    def _read_metadata(self) -> None:
        action = self._metadata.get(ACTION_PATH)
        if action is None:
            self._notice = None
        elif self._notice is None:
            self._notice = _parse_interruption(action)
        self.is_end_likely = self._metadata.get(ADVICE_PATH) is not None


def _parse_interruption(text: str) -> Notice:
    """The notice in EC2's JSON; one that cannot be read has the shortest deadline there is."""
    action, deadline_ms = "terminate", time.time_ns() // 1_000_000 + INTERRUPTION_MS
    try:
        fields = json.loads(text)
        action = str(fields["action"])
        at = datetime.strptime(fields["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        deadline_ms = int(at.timestamp() * 1000)
    except (ValueError, TypeError, KeyError):
        pass
    return Notice(deadline_ms, f"EC2 is reclaiming this spot instance ({action})")
