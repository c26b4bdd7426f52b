"""Long polls: an agent's sync waits in the server's event loop until a watched actor changes.

A waiting poll costs no thread. A commit, in any thread, wakes the polls that watch the address of
the changed actor. The registry remembers nothing between two polls of an agent: the agent sends the
last revision it saw, so a change between two polls is noticed.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class LongPoll:
    """A waiting call of an agent."""

    loop: asyncio.AbstractEventLoop
    """The event loop in which the call waits."""
    wake_event: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the poll is woken."""
    watched: set[str] = field(default_factory=set)
    """The addresses of the actors whose changes wake the poll."""
    superseded: bool = False
    """Whether the agent made a later call or the server is ending, so nobody needs the answer."""

    async def wait(self, seconds: float) -> None:
        """Wait until a watched address changes or the poll is ended, for at most `seconds`.

        The cause of the end is not reported. The next call waits for a further change.
        """
        try:
            await asyncio.wait_for(self.wake_event.wait(), seconds)
        except TimeoutError:
            return
        self.wake_event.clear()

    def wake(self) -> None:
        """Wake the poll. May be called from any thread."""
        self.loop.call_soon_threadsafe(self.wake_event.set)


class LongPollRegistry:
    """The long polls of a process, by agent and by watched address. Safe to share between
    threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest_by_agent: dict[str, LongPoll] = {}
        self._polls_by_address: dict[str, set[LongPoll]] = {}
        self._is_ended = False

    def __len__(self) -> int:
        """Return the number of agents with an open poll."""
        with self._lock:
            return len(self._latest_by_agent)

    def watched_addresses(self) -> frozenset[str]:
        """Return the addresses that open polls watch."""
        with self._lock:
            return frozenset(self._polls_by_address)

    def wake_address(self, address: str) -> None:
        """Wake the polls that watch `address`. Do nothing if no poll does. May be called from any
        thread.
        """
        with self._lock:
            for poll in self._polls_by_address.get(address, ()):
                poll.wake()

    def wake_all(self) -> None:
        """Wake all polls, because changes may have been missed. May be called from any thread."""
        with self._lock:
            for poll in set().union(*self._polls_by_address.values()):
                poll.wake()

    def end_all(self) -> None:
        """Mark every agent's latest poll as superseded and wake the poll, so that the process can
        end.

        Polls that open later are superseded from the beginning, and end at once.
        """
        with self._lock:
            self._is_ended = True
            for poll in self._latest_by_agent.values():
                poll.superseded = True
                poll.wake()

    @contextmanager
    def open_poll(self, agent: str) -> Iterator[LongPoll]:
        """Open a poll of `agent` for the duration of the context. Requires a running event loop.

        The agent's previous poll is marked as superseded and woken. At the end of the context, the
        poll is forgotten with its addresses.
        """
        poll = LongPoll(asyncio.get_running_loop())
        with self._lock:
            previous = self._latest_by_agent.get(agent)
            if previous is not None:
                previous.superseded = True
                previous.wake()
            self._latest_by_agent[agent] = poll
            if self._is_ended:
                poll.superseded = True
                poll.wake()
        try:
            yield poll
        finally:
            self._remove_poll(agent, poll)

    def watch_addresses(self, poll: LongPoll, addresses: Iterable[str]) -> bool:
        """Let a poll watch more addresses, in addition to the addresses that the poll watches
        already.

        Return True if the poll did not watch one of the addresses before.
        """
        with self._lock:
            new = set(addresses) - poll.watched
            for address in new:
                self._polls_by_address.setdefault(address, set()).add(poll)
            poll.watched |= new
            return bool(new)

    def _remove_poll(self, agent: str, poll: LongPoll) -> None:
        """Forget a poll and the watched addresses. A later poll of the agent stays the agent's
        latest poll.
        """
        with self._lock:
            for address in poll.watched:
                polls = self._polls_by_address[address]
                polls.discard(poll)
                if not polls:
                    del self._polls_by_address[address]
            if self._latest_by_agent.get(agent) is poll:
                del self._latest_by_agent[agent]
