"""Held calls: an agent's call waits in its host's event loop until something of its changes.

It costs no thread. Commits come from any thread, by the address they changed. Whether a change
between two calls is new to the agent is told by the revision it names, so nothing is kept here.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class Call:
    """One call of an agent. `superseded`: a later one came, so nobody reads our answer."""

    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watched: set[str] = field(default_factory=set)
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
    def call(self, agent: str) -> Iterator[Call]:
        """A call of `agent`, which ends the one before it."""
        call = Call(asyncio.get_running_loop())
        with self._lock:
            before = self._latest.get(agent)
            if before is not None:
                before.superseded = True
                before.wake()
            self._latest[agent] = call
        try:
            yield call
        finally:
            self._leave(agent, call)

    def watch(self, call: Call, addresses: Iterable[str]) -> bool:
        """Lets these wake the call too; whether any of them did not before."""
        with self._lock:
            new = set(addresses) - call.watched
            for address in new:
                self._waiting.setdefault(address, set()).add(call)
            call.watched |= new
            return bool(new)

    def _leave(self, agent: str, call: Call) -> None:
        with self._lock:
            for address in call.watched:
                calls = self._waiting[address]
                calls.discard(call)
                if not calls:
                    del self._waiting[address]
            if self._latest.get(agent) is call:
                del self._latest[agent]
