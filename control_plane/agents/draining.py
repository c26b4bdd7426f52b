"""Draining of agents: their allocations may finish, and they get no new ones; where their machine
is taken away, they tell their trials until when.
"""

import logging

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import AgentDisableRequested
from control_plane.actors.step import CommandRefused
from control_plane.engine.engine import Engine

log = logging.getLogger(__name__)


def drain_agent(engine: Engine, agent: str, by: str, ends_ms: int | None = None) -> None:
    """Drain an agent: it finishes its allocations and gets no new ones. Harmless when repeated.

    `ends_ms`: its machine is taken away then (epoch ms), which the answer to its next call says.
    """
    address = addresses.agent(agent)
    if ends_ms is not None and _has_same_deadline(engine.read_state(address), ends_ms):
        return
    message = AgentDisableRequested(drain=True, ends_ms=ends_ms)
    try:
        engine.execute_command(address, message, by=by)
    except CommandRefused as refused:
        # The agent was lost meanwhile, so nothing new is placed on it either.
        log.info("cannot drain agent %s: %s", agent, refused)


def _has_same_deadline(state: object, ends_ms: int) -> bool:
    """Whether a command would change nothing: each pass of the provisioner repeats it."""
    return (
        isinstance(state, AgentState)
        and state.ends_ms == ends_ms
        and not state.availability.enabled
    )
