"""Long polls: an agent's sync waits in the server's event loop until one of its actors changes.

A waiting poll costs no thread. Commits wake it from any thread, by the address that they changed. A
change between two polls is noticed by the revision that the agent sends, so nothing is remembered
here between polls.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class LongPoll:
    """One waiting call of an agent. `superseded`: the agent has made a later call, or the server
    ends, so nobody needs the answer.
    """

    loop: asyncio.AbstractEventLoop
    wake_event: asyncio.Event = field(default_factory=asyncio.Event)
    watched: set[str] = field(default_factory=set)
    superseded: bool = False

    async def wait(self, seconds: float) -> None:
        """Wait until an address that is watched changes, at most so long."""
        try:
            await asyncio.wait_for(self.wake_event.wait(), seconds)
        except TimeoutError:
            return
        self.wake_event.clear()

    def wake(self) -> None:
        """Wake the poll; may be called from any thread."""
        self.loop.call_soon_threadsafe(self.wake_event.set)


class LongPollRegistry:
    """The long polls of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest_by_agent: dict[str, LongPoll] = {}
        self._polls_by_address: dict[str, set[LongPoll]] = {}

    def wake_address(self, address: str) -> None:
        """Wake the polls that watch `address`; may be called from any thread."""
        with self._lock:
            for poll in self._polls_by_address.get(address, ()):
                poll.wake()

    def end_all(self) -> None:
        """End every poll, so that the process can end."""
        with self._lock:
            for poll in self._latest_by_agent.values():
                poll.superseded = True
                poll.wake()

    @contextmanager
    def open_poll(self, agent: str) -> Iterator[LongPoll]:
        """Open a poll of `agent`, which ends the agent's previous one."""
        poll = LongPoll(asyncio.get_running_loop())
        with self._lock:
            before = self._latest_by_agent.get(agent)
            if before is not None:
                before.superseded = True
                before.wake()
            self._latest_by_agent[agent] = poll
        try:
            yield poll
        finally:
            self._remove_poll(agent, poll)

    def watch_addresses(self, poll: LongPoll, addresses: Iterable[str]) -> bool:
        """Add addresses that a poll watches; True if any of them is new."""
        with self._lock:
            new = set(addresses) - poll.watched
            for address in new:
                self._polls_by_address.setdefault(address, set()).add(poll)
            poll.watched |= new
            return bool(new)

    def _remove_poll(self, agent: str, poll: LongPoll) -> None:
        with self._lock:
            for address in poll.watched:
                polls = self._polls_by_address[address]
                polls.discard(poll)
                if not polls:
                    del self._polls_by_address[address]
            if self._latest_by_agent.get(agent) is poll:
                del self._latest_by_agent[agent]
