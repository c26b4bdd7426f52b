"""Held calls: an agent's call waits in its host's event loop until something of its changes.

It costs no thread. Commits come from any thread, by the address they changed. What an agent was
answered last is remembered, so that a change between two calls is noticed by the second one.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answered:
    """What an agent was answered last: a digest, and the addresses that it was made of."""

    digest: bytes = b""
    addresses: frozenset[str] = frozenset()


@dataclass(eq=False)
class Call:
    """One call of an agent. `superseded`: a later one came, so nobody reads our answer."""

    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    superseded: bool = False

    async def wait(self, seconds: float) -> None:
        """Until something changes, at most so long."""
        try:
            await asyncio.wait_for(self.changed.wait(), seconds)
        except TimeoutError:
            return
        self.changed.clear()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self.changed.set)


class WaitingRoom:
    """The held calls of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, Call] = {}
        self._answered: dict[str, Answered] = {}
        self._waiting: dict[str, set[Call]] = {}

    def changed(self, address: str) -> None:
        """Wakes the calls that wait for `address`. May be called from any thread."""
        with self._lock:
            for call in self._waiting.get(address, ()):
                call.wake()

    def close(self) -> None:
        """Ends every held call, so that the process can end."""
        with self._lock:
            for call in self._latest.values():
                call.superseded = True
                call.wake()

    @contextmanager
    def call(self, agent: str, address: str) -> Iterator[tuple[Call, Answered]]:
        """A call of `agent`, woken by `address` and by what it was answered from last."""
        call = Call(asyncio.get_running_loop())
        with self._lock:
            before = self._latest.get(agent)
            if before is not None:
                before.superseded = True
                before.wake()
            self._latest[agent] = call
            last = self._answered.get(agent, Answered())
            addresses = {address, *last.addresses}
            for one in addresses:
                self._waiting.setdefault(one, set()).add(call)
        try:
            yield call, last
        finally:
            self._leave(agent, call, addresses)

    def answered(self, agent: str, call: Call, answered: Answered) -> None:
        """Remembers what a call is answered, unless a later one came."""
        with self._lock:
            if not call.superseded:
                self._answered[agent] = answered

    def _leave(self, agent: str, call: Call, addresses: Iterable[str]) -> None:
        with self._lock:
            for address in addresses:
                calls = self._waiting[address]
                calls.discard(call)
                if not calls:
                    del self._waiting[address]
            if self._latest.get(agent) is call:
                del self._latest[agent]
