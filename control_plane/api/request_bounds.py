"""Bounds on concurrent requests: of each caller, and of all callers other than agents together.

A request counts until its whole answer was sent, so that a download counts while it is read, and a
call that is held while it waits. A client with too many is refused; agents always have room.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from control_plane.access.principals import Principal, Role
from control_plane.errors import Code, RequestError
from control_plane.objects.store import ObjectKey

CALLER_REQUESTS_MAX = 100
"""The requests of one caller: more than any honest client makes at once."""

OTHERS_REQUESTS_MAX = 256
"""The requests of all who are no agents. With a file for each, they take half of the descriptors
that a process has by default.
"""

_AGENT_ROLES = frozenset({Role.AGENT, Role.JOIN})


@dataclass
class RequestBounds:
    """The requests that are being answered, counted by caller; used from one event loop."""

    caller_max: int = CALLER_REQUESTS_MAX
    others_max: int = OTHERS_REQUESTS_MAX
    counts: Counter[str] = field(default_factory=Counter)
    others: int = 0

    @contextmanager
    def count_principal(self, principal: Principal) -> Iterator[None]:
        """Count a request of `principal` in the block. Raises RequestError: rate_limited."""
        name = f"{principal.role} {principal.subject or principal.user}"
        with self._count(name, principal.role in _AGENT_ROLES):
            yield

    @contextmanager
    def count_signed(self, key: ObjectKey) -> Iterator[None]:
        """Count a request by a signature, which names no caller: those on one folder are one's.
        Raises RequestError: rate_limited.
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
