"""The probe of a deployed cluster's API: does it answer where agents call it?

It goes the way of an agent: the public address, the route of sync with its own throttle, and the
application behind it, which refuses a call without a token before it reads anything.
"""

import logging
from collections.abc import Callable

from detcloud.shared.http import ApiError, Transport, Unreachable

log = logging.getLogger(__name__)

PATH = "/api/v1/agents/probe/sync"
REFUSED = 401
# A function that starts for it takes three.
SECONDS_MAX = 10.0
# All pools of a tick, and those of one that was repeated, have one answer.
KNOWN_MS = 20_000


class ApiProbe:
    """Probes the API at `url`, and knows the answer for KNOWN_MS."""

    def __init__(self, url: str, clock: Callable[[], int]) -> None:
        self._url = url
        self._clock = clock
        self._probed_ms: int | None = None
        self._is_down = False

    def is_down(self) -> bool:
        """Return whether the API does not answer a call as it should."""
        now_ms = self._clock()
        if self._probed_ms is None or abs(now_ms - self._probed_ms) > KNOWN_MS:
            self._is_down = bool(trouble := self._find_trouble())
            self._probed_ms = self._clock()
            if trouble:
                # An error, so that the alarm on errors tells it.
                log.error("the API does not respond, so no agent is marked as lost: %s", trouble)
        return self._is_down

    def _find_trouble(self) -> str:
        """Return what keeps the API from answering, "" if nothing does."""
        client = Transport(self._url, None, timeout_seconds=SECONDS_MAX)
        try:
            client.request("POST", PATH, {}, retry=False)
        except ApiError as error:
            if error.status == REFUSED:
                return ""
            return f"{self._url}{PATH} answered {error.status}, not {REFUSED}"
        except (Unreachable, OSError) as error:
            return str(error)
        finally:
            client.close()
        return f"{self._url}{PATH} accepted a call without a token"
