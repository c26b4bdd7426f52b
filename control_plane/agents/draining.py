"""Agents that are to be left: what they have may finish, and nothing more comes."""

import logging

from control_plane.actors import addresses
from control_plane.actors.agent_messages import AgentDisableRequested
from control_plane.actors.step import Refused
from control_plane.dispatch.engine import Engine

log = logging.getLogger(__name__)


def drain(engine: Engine, agent: str, by: str) -> None:
    """Lets an agent finish what it has and take nothing more. Harmless when repeated."""
    try:
        engine.command(addresses.agent(agent), AgentDisableRequested(drain=True), by=by)
    except Refused as refused:
        # It was lost meanwhile: nothing new is placed on it either.
        log.info("agent %s cannot be drained: %s", agent, refused)
