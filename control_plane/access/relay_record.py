"""The stored row of a relay that runs as a task, which the API starts on demand.

The API and the task write the row in turns. The API begins an attempt and names the task. The task
then writes its address, and renews the row until the task ends.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.rows import cluster_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Key

BEAT_MS = 30_000
"""The time between two renewals of the row by a running task."""
SILENT_MS = BEAT_MS + 10_000
"""The age of the last renewal from which the API asks the cloud whether the task still runs."""
DEAD_MS = 2 * BEAT_MS + 20_000
"""The age of the last renewal from which the API replaces the task."""
START_MS_MAX = 110_000
"""The time in which a task must write its address. The ends of tunnels wait two minutes."""
ATTEMPT_STEP = 1_000_000
"""The least distance of the revisions of two attempts.

A task that was replaced therefore never expects a revision of its successor.
"""

KEY = Key(*cluster_rows.RELAY.only_key)


@dataclass(frozen=True)
class RelayRecord:
    """An attempt to run the relay."""

    attempt: str
    """A random name, with which a repeated request to the cloud starts no second task."""
    secret: str = field(repr=False)
    """The secret by which this relay's tickets are signed, in base64."""
    started_ms: int
    """The time of the request for the task, in epoch ms."""
    task: str = ""
    """The cloud's name of the task. "" until the cloud has accepted the request."""
    url: str = ""
    """The address, `https://HOST`. "" until the task listens."""
    pin: str = ""
    """The SHA-256 of the task's certificate in hexadecimal."""
    seen_ms: int = 0
    """The time of the task's last renewal, in epoch ms."""
    has_ended: bool = False
    """Whether the task has written that it ends."""
    failure: str = ""
    """The reason why the attempt failed, as a sentence for users. "" if it did not fail."""
    is_passing: bool = False
    """Whether a later attempt may succeed without a change by an operator."""
    failed_ms: int = 0
    """The time of the failure, in epoch ms."""

    @property
    def is_running(self) -> bool:
        """Whether the task has written an address, and neither an end nor a failure follows."""
        return bool(self.url) and not self.has_ended and not self.failure

    def relay(self) -> TunnelRelay:
        """Return the relay of a running task."""
        return TunnelRelay(self.url, self.pin, base64.b64decode(self.secret))


_CODEC = JsonCodec(cluster_rows.RELAY, RelayRecord)


def decode_relay(body: bytes) -> RelayRecord:
    """Decode the body of the relay's row. Ignore fields of newer versions."""
    return _CODEC.decode(body)


def encode_relay(record: RelayRecord) -> bytes:
    """Encode the body of the relay's row."""
    return _CODEC.encode(record)
