"""Limits on the requests of an API: the concurrent requests of callers, and the time of a body.

Each caller has a limit, and all callers except agents together have another. A request counts
until the whole answer is sent. Running downloads and waiting long polls therefore count. Agents do
not count against the common limit, so that other callers never block an agent.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from control_plane.access.principals import Principal, Role
from control_plane.api.request_limits import BODY_SECONDS_MAX
from control_plane.errors import Code, RequestError
from control_plane.objects.store import ObjectKey

CALLER_REQUESTS_MAX = 100
"""The most concurrent requests of a caller, more than an honest client sends."""

OTHERS_REQUESTS_MAX = 256
"""The most concurrent requests of all callers except agents. If each request has a connection and a
file, the requests use half of the file descriptors that a process has by default.
"""

_AGENT_ROLES = frozenset({Role.AGENT, Role.JOIN})


@dataclass
class RequestBounds:
    """The numbers and limits of requests. All calls must come from the same event loop."""

    caller_max: int = CALLER_REQUESTS_MAX
    """The most concurrent requests of a caller."""
    others_max: int = OTHERS_REQUESTS_MAX
    """The most concurrent requests of all callers except agents."""
    body_seconds_max: float = BODY_SECONDS_MAX
    """The time that a body may take, without the time for the received bytes."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of requests in progress of each caller that has any."""
    others: int = 0
    """The number of requests in progress of all callers except agents."""

    @contextmanager
    def count_principal(self, principal: Principal) -> Iterator[None]:
        """Count a request of `principal` for the duration of the context.

        The common limit does not apply to an agent or to the holder of a join token.

        Raises:
            RequestError: rate_limited, if a limit is reached.
        """
        name = f"{principal.role} {principal.subject or principal.user}"
        with self._count(name, principal.role in _AGENT_ROLES):
            yield

    @contextmanager
    def count_signed(self, key: ObjectKey) -> Iterator[None]:
        """Count a request with a signature for `key`, for the duration of the context.

        A signature names no caller. Requests for keys with the same first two parts count together
        as the requests of a caller. The common limit applies, too.

        Raises:
            RequestError: rate_limited, if a limit is reached.
        """
        with self._count("/".join(key.parts[:2]), is_agent=False):
            yield

    @contextmanager
    def _count(self, name: str, is_agent: bool) -> Iterator[None]:
        if self.counts[name] >= self.caller_max:
            text = (
                f"{self.caller_max} of your requests are in progress; wait until one has finished"
            )
            raise RequestError(Code.RATE_LIMITED, text)
        if not is_agent and self.others >= self.others_max:
            text = f"{self.others_max} requests are in progress; try again in a moment"
            raise RequestError(Code.RATE_LIMITED, text)
        self.counts[name] += 1
        self.others += not is_agent
        try:
            yield
        finally:
            self.others -= not is_agent
            self.counts[name] -= 1
            if not self.counts[name]:
                del self.counts[name]
