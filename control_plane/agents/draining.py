"""Draining of agents: their allocations may finish, and they get no more."""

import logging

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentDisableRequested
from control_plane.actors.step import CommandRefused
from control_plane.engine.engine import Engine

log = logging.getLogger(__name__)


def drain_agent(engine: Engine, agent: str, by: str) -> None:
    """Drain an agent: it finishes its allocations and gets no more. Harmless when repeated."""
    try:
        engine.execute_command(addresses.agent(agent), AgentDisableRequested(drain=True), by=by)
    except CommandRefused as refused:
        # The agent was lost meanwhile, so nothing new is placed on it either.
        log.info("agent %s cannot be drained: %s", agent, refused)
