"""Enrolment of agents: check the join token and open a session for the agent."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.access.agent_credentials import (
    CredentialRequest,
    check_owner,
    credential_writes,
    owns_credential,
)
from control_plane.access.principals import Principal
from control_plane.access.tokens import issue_agent_token, token_digest
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.agents.identity import is_active_instance
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import agent as agents
from control_plane.queries import pool as pools
from control_plane.services import Services
from control_plane.state.table import TableError, Write
from control_plane.usecases.likely_image import LikelyImage, find_likely_image
from control_plane.usecases.user_tokens import use_writes

log = logging.getLogger(__name__)

CONTAINER_RUNTIMES = ("docker", "podman")
"""The runtimes of agents that pull images before a trial."""


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
    """The address at which other agents reach this agent for a trial on several agents."""
    runtime: str
    """How the agent runs trials, for example `process`."""
    installation: str = ""
    """The id of the agent's work directory. "": an older agent."""
    memory_mib: tuple[int, ...] = ()
    """The memory of each device, 0 if unknown. Empty: an older agent."""
    occupancy: tuple[str, bool] | None = None
    """The reason why people use the machine, and whether running trials leave. None: nobody does.
    """
    credential_digest: str = ""
    """The SHA-256 of the agent's next credential. "" keeps the present credential."""
    code: str = ""
    """The SHA-256 of the archive of the agent's code. "" if the agent does not update itself."""
    only_user: str = ""
    """The only user of the machine that the agent can run trials as, as `UID:GID`. "": any user."""


@dataclass(frozen=True)
class AgentSession:
    """The session of an enrolled agent."""

    epoch: int
    """The number of the session."""
    token: str
    """The token for the agent's own routes."""
    incarnation: str
    """The incarnation of the cluster's state."""
    image: str = ""
    """The image that the agent pulls before the first trial, or ""."""
    image_needs_login: bool = False
    """Whether the agent must request a login for the pull, as for the pull of a trial."""
    has_credential: bool = False
    """Whether the credential of the request is valid now, so that no join token is needed again."""


def enrol_agent(
    services: Services, request: EnrolmentRequest, caller: Principal, bearer: str = ""
) -> AgentSession:
    """Enrol an agent in a pool: open and return a new session, and store the session's token.

    The agent's actor commits the session, the lease and a message to the pool. The same commit uses
    up a join token that is good for one agent, and replaces the credential of the machine. Any
    earlier session of the agent ends, and its token is revoked.

    Args:
        services: the services with the agent service and the state table.
        request: the agent and the pool.
        caller: the holder of a join token. The token names a pool, and may name a single instance.
        bearer: the token of the caller.

    Raises:
        RequestError: forbidden, if the token names another pool or another instance, the cluster
            no longer needs the instance, or another agent has used the token. invalid, if the pool
            does not exist. conflict, if an agent of another pool has the name and is not lost, the
            name belongs to another machine, an agent with another work directory has a session
            under the name, or a later enrolment has a token already. unauthenticated, if the token
            was revoked meanwhile. unavailable, if other calls keep changing the same rows.
    """
    _check_pool(services, request, caller)
    message = AgentEnrolled(
        request.name,
        request.resource_pool,
        request.slots,
        request.version,
        request.label,
        request.address,
        request.runtime,
        _installation(services, request, caller),
        request.memory_mib,
        request.occupancy,
        request.code,
        request.only_user,
    )
    epoch = services.agents.begin_session(
        message, _credential_writer(services, request, caller, bearer)
    )
    token = issue_agent_token(services.table, request.name, epoch)
    image = _early_image(services, request, caller)
    return AgentSession(
        epoch,
        token,
        services.incarnation,
        "" if image is None else image.name,
        image is not None and image.needs_login,
        owns_credential(caller),
    )


def _credential_writer(
    services: Services, request: EnrolmentRequest, caller: Principal, bearer: str
) -> Callable[[], tuple[Write, ...]]:
    """Return the function that builds the writes of the enrolment for tokens and credentials.

    The function reads the rows when it is called. It raises as `credential_writes`, and refuses a
    name that belongs to another machine.
    """
    table = services.table

    def build_writes() -> tuple[Write, ...]:
        if not owns_credential(caller):
            check_owner(table, request.name, request.installation)
            return ()
        credential = CredentialRequest(
            request.name,
            request.resource_pool,
            request.installation,
            token_digest(bearer),
            request.credential_digest,
        )
        used = use_writes(table, caller.token_id, request.name) if caller.token_id else ()
        return (*credential_writes(table, credential), *used)

    return build_writes


def _installation(services: Services, request: EnrolmentRequest, caller: Principal) -> str:
    """Return the field `installation` of AgentEnrolled.

    The agent of an instance has proved the instance's identity, so that its work directory does not
    count.
    """
    is_instance = caller.agent and not caller.installation
    if is_instance or not request.installation:
        return ""
    return f"{services.incarnation}/{request.installation}"


def issue_early_login(services: Services, agent_id: str, image: str) -> dict[str, str]:
    """Issue the login with which a launched machine pulls an image before the first trial.

    Only the image that the cluster would name at an enrolment now gets a login, the login of the
    ordinary pull. The fields are those of `registry_auth`.

    Raises:
        RequestError: forbidden, if the cluster did not launch the machine or no longer needs it, or
            if the image is not the likely image of the pool's jobs. not_found, if the image needs
            no login.
        OSError: the cloud does not answer.
        TableError: the state table failed.
        ValueError, KeyError: a stored row cannot be decoded.
    """
    state = agents.find_agent(services, agent_id)
    devices = [] if state is None or state.lost else [kind for _, kind, _, _ in state.slots]
    if (
        state is None
        or not devices
        or state.runtime not in CONTAINER_RUNTIMES
        or not is_active_instance(services.table, state.pool, agent_id)
    ):
        text = f"agent {agent_id} runs on no machine that the cluster launched for containers"
        raise RequestError(Code.FORBIDDEN, text)
    likely = find_likely_image(services, state.pool, state.label, devices[0])
    if likely is None or likely.name != image:
        text = f"{image} is not the image of most of the first jobs of pool {state.pool}"
        raise RequestError(Code.FORBIDDEN, text)
    if not likely.needs_login:
        raise RequestError(Code.NOT_FOUND, f"no registry login is needed for {image}")
    return likely.issue_login(agent_id)


def _early_image(
    services: Services, request: EnrolmentRequest, caller: Principal
) -> LikelyImage | None:
    """Return the image that a launched machine pulls at once.

    Return None for other machines. A failure is logged, since the enrolment succeeds without the
    image.
    """
    devices = [kind for _, kind, _, _ in request.slots]
    is_launched = caller.agent and not caller.installation
    if not is_launched or request.runtime not in CONTAINER_RUNTIMES or not devices:
        return None
    try:
        return find_likely_image(services, request.resource_pool, request.label, devices[0])
    except (TableError, ValueError, KeyError):
        log.exception("agent %s pulls no image before its first trial", request.name)
        return None


def _check_pool(services: Services, request: EnrolmentRequest, caller: Principal) -> None:
    """Check that the caller's token lets the agent into the requested pool; write nothing.

    Raises:
        RequestError: forbidden, if the token names another pool, or `_check_instance` refuses its
            instance. invalid, if the pool does not exist. conflict, if an agent of another pool has
            the name and is not lost.
    """
    pool = request.resource_pool
    if pool != caller.subject:
        raise RequestError(Code.FORBIDDEN, f"this join token is not valid for pool {pool}")
    if caller.agent and not caller.installation:
        _check_instance(services, request, caller)
    if pools.find_pool(services, pool) is None:
        raise invalid("resource_pool", f"there is no pool {pool}")
    known = agents.find_agent(services, request.name)
    if known is not None and known.pool != pool and not known.lost:
        text = f"agent {request.name} belongs to pool {known.pool}; choose another name"
        raise RequestError(Code.CONFLICT, text)


def _check_instance(services: Services, request: EnrolmentRequest, caller: Principal) -> None:
    """Check that the agent is the instance in the token, and that the instance is active.

    Raises:
        RequestError: forbidden, if the token names another instance, or the pool has no row of the
            instance, or the instance is terminating or ended.
    """
    if request.name != caller.agent:
        text = f"this join token is not valid for agent {request.name}"
        raise RequestError(Code.FORBIDDEN, text)
    if not is_active_instance(services.table, request.resource_pool, request.name):
        text = f"the cluster no longer needs instance {request.name}"
        raise RequestError(Code.FORBIDDEN, text)
