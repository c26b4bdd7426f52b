"""Agents: listed, enabled and disabled, enrolled, and their one call."""

import random
import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path, Response
from fastapi.concurrency import run_in_threadpool

from control_plane.actors import addresses
from control_plane.actors.agent_messages import AgentDisableRequested, AgentEnableRequested
from control_plane.agents.identity import is_active
from control_plane.agents.leases import LEASE_MS
from control_plane.agents.service import SyncRequest
from control_plane.agents.storage_access import access_of
from control_plane.api.agent_answers import answered, taken
from control_plane.api.agent_calls import AGENT_NAME, Allocation, Enrolment, Sync
from control_plane.api.auth import Principal, Role
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.idempotency import AskedOnce, Once
from control_plane.api.pages import Page, PageParameters
from control_plane.api.services import Given, Services
from control_plane.api.token_table import issue_agent_token
from control_plane.api.views import agent as agents
from control_plane.api.views import pool as pools
from control_plane.api.waiting import WaitingRoom

SYNC_BYTES_MAX = 1024 * 1024
HOLD_MS_MAX = 20_000
PATIENT_MS = LEASE_MS // 2

router = guarded_router("agents")

AgentId = Annotated[str, Path(pattern=AGENT_NAME)]
SlotId = Annotated[int, Path(ge=0, le=1_000_000)]


class Disabling(RequestBody):
    """The body of a disable, which may be left out."""

    drain: bool = False


class Enrolled(Body):
    """See docs/agent-protocol.md."""

    agent_id: str
    token: str
    epoch: int
    lease_ms: int


class CredentialsAsked(RequestBody):
    """Whose storage the keys are for."""

    allocation: Allocation


class CredentialsGiven(Body):
    """Keys for it, and until when (epoch ms) they are good."""

    key_id: str
    secret: str
    session_token: str
    expires_ms: int


@router.get("/agents")
@needs(*PEOPLE)
def list_agents(services: Given, asked: PageParameters) -> Page[agents.Agent]:
    return agents.agents(services, asked)


@router.post("/agents/{agent_id}/enable", response_model=agents.Agent)
@needs(Role.ADMIN)
def enable(agent_id: AgentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, agent_id, AgentEnableRequested(), once)


@router.post("/agents/{agent_id}/disable", response_model=agents.Agent)
@needs(Role.ADMIN)
def disable(
    agent_id: AgentId, once: AskedOnce, services: Given, asked: Disabling | None = None
) -> Response:
    drain = asked is not None and asked.drain
    return _told(services, agent_id, AgentDisableRequested(drain=drain), once)


@router.post("/agents/{agent_id}/slots/{slot_id}/enable", response_model=agents.Agent)
@needs(Role.ADMIN)
def enable_slot(agent_id: AgentId, slot_id: SlotId, once: AskedOnce, services: Given) -> Response:
    return _told(services, agent_id, AgentEnableRequested(slot_id), once)


@router.post("/agents/{agent_id}/slots/{slot_id}/disable", response_model=agents.Agent)
@needs(Role.ADMIN)
def disable_slot(agent_id: AgentId, slot_id: SlotId, once: AskedOnce, services: Given) -> Response:
    return _told(services, agent_id, AgentDisableRequested(slot_id), once)


@router.post("/agents")
@needs(Role.JOIN)
def enrol(asked: Enrolment, caller: Caller, services: Given) -> Enrolled:
    _check_pool(asked, caller, services)
    slots = tuple((slot.id, slot.type, slot.uuid, slot.name) for slot in asked.slots)
    told = asked.version, asked.label, asked.address
    epoch = services.agents.enrol(asked.name, asked.resource_pool, slots, *told)
    token = issue_agent_token(services.table, asked.name, epoch)
    return Enrolled(agent_id=asked.name, token=token, epoch=epoch, lease_ms=LEASE_MS)


@router.post("/agents/{agent_id}/storage-credentials")
@needs(Role.AGENT)
def storage_credentials(
    agent_id: AgentId, asked: CredentialsAsked, caller: Caller, services: Given
) -> CredentialsGiven:
    _check_own(agent_id, caller)
    if services.vendor is None:
        raise ApiError(Code.NOT_FOUND, "this cluster gives out no keys for storage")
    service = services.agents
    access = access_of(services.engine, service, agent_id, asked.allocation, services.checkpoints)
    try:
        given = services.vendor.vend(f"trial-{asked.allocation}", access)
    except OSError as error:
        raise ApiError(Code.UNAVAILABLE, str(error)) from None
    return CredentialsGiven(**asdict(given))


@router.post("/agents/{agent_id}/sync", response_model=dict[str, Any])
@needs(Role.AGENT, body_bytes_max=SYNC_BYTES_MAX)
async def sync(agent_id: AgentId, asked: Sync, caller: Caller, services: Given) -> Response:
    _check_own(agent_id, caller)
    room = services.waiting
    if room is None:
        answer = await run_in_threadpool(taken, services, agent_id, asked)
        # Each call is paid for: what can wait comes with one that is made anyway.
        next_sync_ms = 1000 if answer.is_news else _steady_ms()
        return _response(answer.with_next_sync(next_sync_ms, PATIENT_MS))
    return _response(await _held(services, room, agent_id, asked))


def _check_own(agent_id: str, caller: Principal) -> None:
    if caller.subject != agent_id:
        raise ApiError(Code.FORBIDDEN, "an agent's token is good for its own routes only")


async def _held(services: Services, room: WaitingRoom, agent_id: str, asked: Sync) -> bytes:
    """The answer, at once where the agent brings something or there is something new for it."""
    brings = bool(asked.reports or asked.logs or asked.more)
    hold_ms = 0 if brings else min(asked.wait_ms, HOLD_MS_MAX)
    until = time.monotonic() + hold_ms / 1000
    again = SyncRequest(asked.epoch, tuple(asked.known), call=asked.call)
    with room.call(agent_id) as call:
        room.watch(call, (addresses.agent(agent_id),))
        answer = await run_in_threadpool(taken, services, agent_id, asked)
        while answer.revision == asked.seen and not call.superseded:
            left = until - time.monotonic()
            if left <= 0:
                break
            # What changed before it was watched is seen by looking once more.
            if not room.watch(call, answer.addresses):
                await call.wait(left)
            answer = await run_in_threadpool(answered, services, agent_id, again)
    return answer.with_next_sync(0)


def _told(
    services: Services,
    agent_id: str,
    message: AgentEnableRequested | AgentDisableRequested,
    once: Once,
) -> Response:
    """The agent after a command."""
    address = addresses.agent(agent_id)
    return once.carried_out(
        services,
        lambda beside: services.engine.command(address, message, by=once.by, beside=beside),
        lambda reply: agents.agent(services, reply),
    )


def _check_pool(asked: Enrolment, caller: Principal, services: Services) -> None:
    pool = asked.resource_pool
    if pool != caller.subject:
        raise ApiError(Code.FORBIDDEN, f"this join token is not for pool {pool}")
    if caller.agent:
        _check_instance(asked, caller, services)
    if pools.found(services, pool) is None:
        raise invalid("resource_pool", f"there is no pool {pool}")
    known = agents.found(services, asked.name)
    if known is not None and known.pool != pool and not known.lost:
        text = f"agent {asked.name} belongs to pool {known.pool}; choose another name"
        raise ApiError(Code.CONFLICT, text)


def _check_instance(asked: Enrolment, caller: Principal, services: Services) -> None:
    """An instance's token is its own, and ends with it."""
    if asked.name != caller.agent:
        raise ApiError(Code.FORBIDDEN, f"this join token is not for agent {asked.name}")
    if not is_active(services.table, asked.resource_pool, asked.name):
        raise ApiError(Code.FORBIDDEN, f"the cluster does not want instance {asked.name} any more")


def _steady_ms() -> int:
    return random.randint(LEASE_MS // 3, LEASE_MS // 2)


def _response(content: bytes) -> Response:
    return Response(content, media_type="application/json")
