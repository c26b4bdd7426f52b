"""The limits of a relay."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RelayBounds:
    """The numbers and times that limit the connections of a relay."""

    connections_max: int = 1_000
    """The most connections, admitted or not."""
    strangers_max: int = 200
    """The most connections without an accepted ticket. The oldest is closed for a new one."""
    head_bytes_max: int = 16_384
    """The most bytes of a request."""
    head_seconds_max: float = 10.0
    """The time in which a request must be complete."""
    waiting_seconds_max: float = 30.0
    """The time that an admitted end waits for the peer."""
    idle_seconds_max: float = 90.0
    """The time after which a pair without a byte is closed. Ends ping more often."""
    buffer_bytes: int = 262_144
    """The unsent bytes of a connection above which the peer is not read."""
    tickets_max: int = 100_000
    """The most used tickets that are remembered. More are refused."""


DEFAULT_BOUNDS = RelayBounds()
