"""The probe of a deployed cluster's API, which checks that agents can reach the API.

The probe uses the same way as an agent's call: the public address, the sync route with its own
throttle, and the application. The application refuses a call without a token before it reads the
state table.
"""

import logging
from collections.abc import Callable

from detcloud.shared.http import ApiError, Transport, Unreachable

log = logging.getLogger(__name__)

PATH = "/api/v1/agents/probe/sync"
REFUSED = 401
# A cold start of the API's function takes three seconds.
SECONDS_MAX = 10.0
# A tick asks once for each pool, and a repeated tick asks again. All of them share a result.
KNOWN_MS = 20_000


class ApiProbe:
    """A probe of the API at `url`, which keeps each result for KNOWN_MS.

    Args:
        clock: returns the time in epoch ms.
    """

    def __init__(self, url: str, clock: Callable[[], int]) -> None:
        self._url = url
        self._clock = clock
        self._probed_ms: int | None = None
        self._is_down = False

    def is_down(self) -> bool:
        """Return whether the API fails to refuse a call without a token with status 401.

        Send a probe, unless the last result is at most KNOWN_MS old. Log an error if a probe finds
        the API down. A probe is not retried; each wait for the API ends after SECONDS_MAX.
        """
        now_ms = self._clock()
        if self._probed_ms is None or abs(now_ms - self._probed_ms) > KNOWN_MS:
            self._is_down = bool(trouble := self._find_trouble())
            self._probed_ms = self._clock()
            if trouble:
                # Logged as an error, which triggers the alarm on errors.
                log.error("the API does not respond, so no agent is marked as lost: %s", trouble)
        return self._is_down

    def _find_trouble(self) -> str:
        """Probe the API once, and return a description of the fault. Return "" without a fault.

        An unreachable API, any status except 401, and an accepted call are faults.
        """
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
