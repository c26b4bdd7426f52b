"""The sentences about streams that the agent's end of a tunnel refuses."""

from __future__ import annotations

from detcloud.shared.tunnel.multiplexer import ResetReason


def refusal_text(reason: int) -> str:
    """Return a sentence about a refused stream. "" for an ordinary end and an unknown reason."""
    return _REFUSALS.get(reason, "")


_REFUSALS: dict[int, str] = {
    ResetReason.REFUSED: "a connection was refused: no program listens on the trial's port",
    ResetReason.FOREIGN: "a connection was refused: the port belongs to another trial or program",
    ResetReason.NOT_ALLOWED: "a connection was refused: the tunnel is not for this port or service",
    ResetReason.TOO_MANY: "a connection was refused: the tunnel has too many connections",
    ResetReason.NO_ROOM: "a connection was refused: the trial's machine has too many connections",
    ResetReason.UNKNOWN_SERVICE: "a connection was refused: the machine's agent is older than this "
    "command and does not know the service; update the agent, or start the trial again",
    ResetReason.NOT_READY: "a connection was refused: the trial does not offer the service, or not "
    "yet; try again when its program has started",
}
