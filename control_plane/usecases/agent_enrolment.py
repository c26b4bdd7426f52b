"""Enrolling an agent: which agents a join token lets in, and the session that one gets."""

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
    """An agent that asks to join a pool. `slots` are (id, type, UUID, name) of its devices."""

    name: str
    resource_pool: str
    slots: tuple[tuple[int, str, str, str], ...]
    version: str
    label: str
    address: str
    runtime: str


@dataclass(frozen=True)
class AgentSession:
    """The session of an enrolled agent: its number, the token for the agent's own routes, and the
    incarnation of the cluster's state.
    """

    epoch: int
    token: str
    incarnation: str


def enrol_agent(services: Services, request: EnrolmentRequest, caller: Principal) -> AgentSession:
    """Enrol an agent with the join token of the caller.

    Raises:
        RequestError: forbidden, for an agent or a pool that the token is not for; invalid, for a
            pool that does not exist; conflict, for an agent of another pool.
        CommandRefused: as AgentService.enrol.
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
    """Check that an instance enrols itself, while the cluster wants it."""
    if request.name != caller.agent:
        text = f"this join token is not valid for agent {request.name}"
        raise RequestError(Code.FORBIDDEN, text)
    if not is_active_instance(services.table, request.resource_pool, request.name):
        text = f"the cluster no longer needs instance {request.name}"
        raise RequestError(Code.FORBIDDEN, text)
