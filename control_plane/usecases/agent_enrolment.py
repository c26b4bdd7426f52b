"""Enrolment of agents: check the join token and open a session for the agent."""

from dataclasses import dataclass

from control_plane.access.principals import Principal
from control_plane.access.tokens import issue_agent_token
from control_plane.agents.identity import is_active_instance
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import agent as agents
from control_plane.queries import pool as pools
from control_plane.services import Services


@dataclass(frozen=True)
class EnrolmentRequest:
    """The request of an agent to join a pool."""

    name: str
    resource_pool: str
    slots: tuple[tuple[int, str, str, str], ...]
    """The agent's devices, each as id, type, UUID and name."""
    version: str
    """The agent's release."""
    label: str
    """The label that experiments select agents by, or ""."""
    address: str
    """The address at which other agents of a gang reach this agent."""
    runtime: str
    """How the agent runs trials, for example `process`."""


@dataclass(frozen=True)
class AgentSession:
    """The session of an enrolled agent."""

    epoch: int
    """The number of the session."""
    token: str
    """The token for the agent's own routes."""
    incarnation: str
    """The incarnation of the cluster's state."""


def enrol_agent(services: Services, request: EnrolmentRequest, caller: Principal) -> AgentSession:
    """Open a session of an agent in a pool and store the session's token; return the session.

    An earlier session of the agent ends.

    Args:
        services: the services with the agent service and the state table.
        request: the agent and the pool.
        caller: the holder of the join token, which may be limited to an instance.

    Raises:
        RequestError: forbidden, if the token is for another pool or another instance, or for an
            instance that the cluster no longer needs; invalid, if the pool does not exist;
            conflict, if an agent of another pool has the name and is not lost.
        CommandRefused: "forbidden", if the cluster is terminating the agent's instance;
            "unavailable", if the instance's row changed in every attempt.
    """
    _check_pool(services, request, caller)
    epoch = services.agents.enrol(
        request.name,
        request.resource_pool,
        request.slots,
        request.version,
        request.label,
        request.address,
        request.runtime,
    )
    token = issue_agent_token(services.table, request.name, epoch)
    return AgentSession(epoch, token, services.incarnation)


def _check_pool(services: Services, request: EnrolmentRequest, caller: Principal) -> None:
    """Check that the caller's token lets the agent into the pool.

    Raises:
        RequestError: forbidden, invalid or conflict, as `enrol_agent`.
    """
    pool = request.resource_pool
    if pool != caller.subject:
        raise RequestError(Code.FORBIDDEN, f"this join token is not valid for pool {pool}")
    if caller.agent:
        _check_instance(services, request, caller)
    if pools.find_pool(services, pool) is None:
        raise invalid("resource_pool", f"there is no pool {pool}")
    known = agents.find_agent(services, request.name)
    if known is not None and known.pool != pool and not known.lost:
        text = f"agent {request.name} belongs to pool {known.pool}; choose another name"
        raise RequestError(Code.CONFLICT, text)


def _check_instance(services: Services, request: EnrolmentRequest, caller: Principal) -> None:
    """Check that the agent is the instance that the token is for, and that the instance is active.

    Raises:
        RequestError: forbidden.
    """
    if request.name != caller.agent:
        text = f"this join token is not valid for agent {request.name}"
        raise RequestError(Code.FORBIDDEN, text)
    if not is_active_instance(services.table, request.resource_pool, request.name):
        text = f"the cluster no longer needs instance {request.name}"
        raise RequestError(Code.FORBIDDEN, text)
