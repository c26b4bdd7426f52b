"""Removal of agents: end the session, and revoke all tokens of the machine."""

from contextlib import suppress

from control_plane.access.agent_credentials import revocation_writes
from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentEnableRequested, AgentForgotten
from control_plane.agents.identity import is_active_instance
from control_plane.agents.leases import mark_ended_agent
from control_plane.errors import Code, RequestError
from control_plane.queries import agent as agents
from control_plane.services import Services
from control_plane.state.table import Conflict
from control_plane.usecases.idempotency import ExtraWrites

_TRIES_MAX = 20


def remove_agent(services: Services, agent_id: str, by: str, extra_writes: ExtraWrites) -> str:
    """Remove an agent: revoke the machine's tokens, end the session, and return the agent's id.

    The agent cannot enrol again without a new join token. The state of the agent stays as LOST, is
    enabled, and leaves the list. Each step may be repeated: a removal that failed is continued, and
    removing a removed agent changes nothing.

    Args:
        services: the services with the state table and the engine.
        agent_id: the agent.
        by: the user who removes the agent.
        extra_writes: returns further writes of the last commit, given the id.

    Raises:
        RequestError: not_found, if the agent does not exist. conflict, if the agent runs trials, or
            the provisioner launched the machine. unavailable, if the agent's rows change in every
            attempt.
        TableError: the state table failed.
    """
    state = agents.find_agent(services, agent_id)
    if state is None:
        raise RequestError(Code.NOT_FOUND, f"there is no agent {agent_id}")
    if is_active_instance(services.table, state.pool, agent_id):
        text = f"the provisioner launched {agent_id}; it ends the machine when pool {state.pool} "
        raise RequestError(Code.CONFLICT, f"{text}no longer needs it")
    if state.desired and not state.lost:
        text = f"agent {agent_id} runs {len(state.desired)} trials; wait until "
        raise RequestError(
            Code.CONFLICT, f"{text}`detcloud agent disable {agent_id} --drain` has ended them"
        )
    _revoke(services, agent_id)
    engine = services.engine
    for _ in range(_TRIES_MAX):
        # A conflict means that the agent has just called.
        with suppress(Conflict):
            mark_ended_agent(
                services.table,
                state.pool,
                agent_id,
                services.now_ms(),
                engine.advance_until_idle,
            )
            break
    else:
        raise RequestError(Code.UNAVAILABLE, f"agent {agent_id} changes too fast; try again")
    address = addresses.agent(agent_id)
    engine.execute_command(address, AgentEnableRequested(), by=by)
    forgotten = AgentForgotten(state.epoch)
    engine.execute_command(address, forgotten, by=by, extra_writes=lambda _: extra_writes(agent_id))
    return agent_id


def _revoke(services: Services, agent_id: str) -> None:
    """Revoke the credential of the agent's machine, and the join token that the agent used.

    Raises:
        RequestError: unavailable, if the agent replaces the credential in every attempt.
    """
    for _ in range(_TRIES_MAX):
        writes = revocation_writes(services.table, agent_id)
        if not writes:
            return
        with suppress(Conflict):
            services.table.commit(writes)
            return
    raise RequestError(Code.UNAVAILABLE, f"agent {agent_id} changes too fast; try again")
