"""Two ends of a session in memory, over a connection that a test may cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from detcloud.shared.tunnel.frames import SESSION_BYTES
from detcloud.shared.tunnel.multiplexer import StreamOpened
from detcloud.shared.tunnel.session import SessionEvent, TunnelSession

SESSION = b"s" * SESSION_BYTES


@dataclass
class SessionPair:
    """The user's and the agent's end, with the bytes on the way and all events."""

    user: TunnelSession = field(default_factory=lambda: TunnelSession(SESSION))
    agent: TunnelSession = field(default_factory=lambda: TunnelSession(None))
    to_agent: bytearray = field(default_factory=bytearray)
    to_user: bytearray = field(default_factory=bytearray)
    agent_events: list[SessionEvent] = field(default_factory=list)
    user_events: list[SessionEvent] = field(default_factory=list)

    def connect(self) -> None:
        """Begin a new connection; bytes on the way are lost."""
        self.to_agent.clear()
        self.to_user.clear()
        self.user.begin_connection()
        self.agent.begin_connection()

    def step(self, chunk: int = 1 << 20) -> bool:
        """Send from both ends, and deliver at most `chunk` bytes each way. Return whether any."""
        self.to_agent += next_bytes(self.user, chunk)
        self.to_user += next_bytes(self.agent, chunk)
        forth, back = bytes(self.to_agent[:chunk]), bytes(self.to_user[:chunk])
        del self.to_agent[:chunk], self.to_user[:chunk]
        self.agent_events += self.agent.feed(forth)
        self.user_events += self.user.feed(back)
        return bool(forth or back)

    def settle(self, work: Callable[[], bool] = lambda: False) -> None:
        """Step, and do `work`, until neither has an effect."""
        while self.step() | work():
            pass

    def opened_streams(self) -> list[StreamOpened]:
        """Return the streams that the agent's end saw opening."""
        return [event for event in self.agent_events if isinstance(event, StreamOpened)]


def next_bytes(session: TunnelSession, bytes_max: int) -> bytes:
    """Return the bytes of the next frames of a session."""
    return b"".join(session.next_frames(bytes_max))


def connected_pair() -> SessionPair:
    """Return a pair whose first connection is resumed at both ends."""
    pair = SessionPair()
    pair.connect()
    pair.settle()
    return pair


def take(session: TunnelSession, stream: int, count: int | None = None) -> bytes:
    """Consume the received bytes of a stream, at most `count`."""
    found = b""
    while (parts := session.streams.received_parts(stream)) and (
        count is None or len(found) < count
    ):
        part = b"".join(parts) if count is None else b"".join(parts)[: count - len(found)]
        session.streams.consume(stream, len(part))
        found += part
    return found
