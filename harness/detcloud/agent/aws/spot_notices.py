"""Notices of a spot instance's interruption, which EC2 publishes in the instance's metadata."""

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

# AWS recommends polling every five seconds. A shorter interval leaves the trials more of the two
# minutes between notice and interruption.
LOOK_SECONDS = 2.0
INTERRUPTION_MS = 120_000
ACTION_PATH = "latest/meta-data/spot/instance-action"
ADVICE_PATH = "latest/meta-data/events/recommendations/rebalance"


class Ec2Notices:
    """The source of notices of a spot instance's interruption. A thread polls the metadata.

    If the metadata service does not answer, the last notice stays valid, because an ending machine
    may be too busy to answer. `look_seconds` is the pause between two reads.
    """

    def __init__(self, metadata: InstanceMetadata, look_seconds: float = LOOK_SECONDS) -> None:
        self._metadata = metadata
        self._look_seconds = look_seconds
        self._notice: Notice | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        # Whether EC2 recommends a replacement of this machine. The recommendation has no deadline,
        # so running trials continue.
        self.is_end_likely = False

    def start(self) -> Ec2Notices:
        """Start the thread that reads the metadata, and return this object. Call it once."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the thread to end, and wait for the end."""
        self._stopped.set()
        self._thread.join()

    def poll(self) -> Notice | None:
        """Return the notice that the thread has read last, without a request.

        Return None if no end is announced, and before the first successful read.
        """
        return self._notice

    def _run(self) -> None:
        while True:
            # No error may end the thread, since a later read may bring a notice.
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
    """Return the notice in EC2's JSON, with the deadline in the field `time`.

    If the text is malformed, the deadline is two minutes from now, EC2's shortest warning.
    """
    action, deadline_ms = "terminate", time.time_ns() // 1_000_000 + INTERRUPTION_MS
    try:
        fields = json.loads(text)
        action = str(fields["action"])
        at = datetime.strptime(fields["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        deadline_ms = int(at.timestamp() * 1000)
    except (ValueError, TypeError, KeyError):
        pass
    return Notice(deadline_ms, f"EC2 is reclaiming this spot instance ({action})")
