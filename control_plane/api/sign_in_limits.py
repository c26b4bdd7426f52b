"""Limits on refused sign-ins: from each network address, and from all addresses together.

Each process counts on its own. Guessing 256 random bits is hopeless in any case, and a row for each
guess would let strangers write to the state table.
"""

import ipaddress
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from control_plane.errors import Code, RequestError

ADDRESS_REFUSALS_MAX = 10
TOTAL_REFUSALS_MAX = 300
WINDOW_SECONDS = 60.0


class SignInLimits:
    """The refused sign-ins of the last WINDOW_SECONDS. Safe to share between threads.

    An attempt counts as refused from the start, until the attempt succeeds. Otherwise many
    concurrent attempts could start before the first refusal.

    Args:
        now_seconds: returns the time in seconds of a clock that never goes back.
    """

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._lock = Lock()
        self._attempts: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def count_attempt(self, address: str) -> Iterator[None]:
        """Count a sign-in from `address` as refused, unless the context ends without an error.

        All IPv6 addresses with the same first 64 bits count as the same address.

        Raises:
            RequestError: rate_limited, before the context starts, if ADDRESS_REFUSALS_MAX sign-ins
                from the address or TOTAL_REFUSALS_MAX in all count as refused.
        """
        attempt = self._begin(_network(address))
        yield
        self._forget(attempt)

    def _begin(self, network: str) -> tuple[float, str]:
        with self._lock:
            now = self._now_seconds()
            while self._attempts and self._attempts[0][0] <= now - WINDOW_SECONDS:
                self._remove(self._attempts.popleft())
            is_full = self._counts[network] >= ADDRESS_REFUSALS_MAX
            if is_full or len(self._attempts) >= TOTAL_REFUSALS_MAX:
                whose = "from your address " if is_full else ""
                text = f"too many sign-ins {whose}were refused; try again in a minute"
                raise RequestError(Code.RATE_LIMITED, text)
            attempt = (now, network)
            self._attempts.append(attempt)
            self._counts[network] += 1
            return attempt

    def _forget(self, attempt: tuple[float, str]) -> None:
        with self._lock:
            if attempt in self._attempts:
                self._attempts.remove(attempt)
                self._remove(attempt)

    def _remove(self, attempt: tuple[float, str]) -> None:
        network = attempt[1]
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]


def _network(address: str) -> str:
    """Return the network of an address, as a person usually owns a whole IPv6 network.

    Return the 64-bit prefix of an IPv6 address, an IPv4 address itself, and other text unchanged.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
