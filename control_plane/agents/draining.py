"""Draining of agents: a draining agent gets no new allocations and finishes the current ones.

If the cloud takes the agent's machine away, the agent also gets the time at which the machine ends.
"""

import logging

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import AgentDisableRequested
from control_plane.actors.step import CommandRefused
from control_plane.engine.engine import Engine

log = logging.getLogger(__name__)


def drain_agent(engine: Engine, agent: str, by: str, ends_ms: int | None = None) -> None:
    """Drain an agent: the agent gets no new allocations and finishes the current ones.

    The command is committed at once, and the pool is notified. A refusal, for example because the
    agent is lost or unknown, is only logged. If the agent is already disabled with the deadline
    `ends_ms`, do nothing.

    Args:
        engine: the engine of the cluster.
        agent: the agent's id.
        by: the user or component that drains the agent, for the journal.
        ends_ms: when the cloud takes the agent's machine away (epoch ms). The answer to the agent's
            next call contains this time. None if the machine stays.

    Raises:
        TableError: the state table failed.
    """
    address = addresses.agent(agent)
    if ends_ms is not None and _has_same_deadline(engine.read_state(address), ends_ms):
        return
    message = AgentDisableRequested(drain=True, ends_ms=ends_ms)
    try:
        engine.execute_command(address, message, by=by)
    except CommandRefused as refused:
        # The agent is marked as lost, and the pool places nothing on a lost agent.
        log.info("cannot drain agent %s: %s", agent, refused)


def _has_same_deadline(state: object, ends_ms: int) -> bool:
    """Return whether the agent is already disabled with this deadline. False for an unknown agent.

    The provisioner repeats the drain in each pass; a repeat without a change should cost no commit.
    """
    return (
        isinstance(state, AgentState)
        and state.ends_ms == ends_ms
        and not state.availability.enabled
    )
