"""Routes of agents: list, enable, disable, enrol and sync."""

import logging
import random
import time
from typing import Annotated, Any

from fastapi import Body, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from control_plane.access.principals import USER_ROLES, Principal, Role
from control_plane.actors import addresses
from control_plane.actors.messages.agent import (
    AgentDisableRequested,
    AgentEnableRequested,
    AgentUpgradeRequested,
)
from control_plane.actors.step import CommandRefused
from control_plane.agents.agent_code import agent_code
from control_plane.agents.leases import LEASE_MS
from control_plane.agents.long_polls import LongPollRegistry
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.api.agent_requests import (
    AGENT_NAME,
    Enrolment,
    MachineNotice,
    SyncBody,
    fault_report,
    slot_memories,
    slot_tuples,
    sync_requests,
)
from control_plane.api.authentication import request_token
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response, json_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import Code, RequestError
from control_plane.fleet.notices import InstanceNotice
from control_plane.queries import agent as agents
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page
from control_plane.services import Services
from control_plane.usecases.agent_enrolment import EnrolmentRequest, enrol_agent
from control_plane.usecases.agent_removal import remove_agent
from control_plane.usecases.agent_sync import AgentAnswer, answer_sync, sync_agent
from control_plane.usecases.idempotency import IdempotentRequest
from detcloud.shared.dead_tick import DEAD_TICK

log = logging.getLogger(__name__)

SYNC_BYTES_MAX = 1024 * 1024
HOLD_MS_MAX = 20_000
# On a host that charges for each call, training metrics and logs come with about every third of the
# regular calls, because writing metrics and logs costs more than the rest of a call.
PATIENT_MS = 36_000
DEAD_TICK_REASON = "the idle machine ends itself, because the tick has not run for an hour"

router = guarded_router("agents")

AgentId = Annotated[str, Path(pattern=AGENT_NAME)]
SlotId = Annotated[int, Path(ge=0, le=1_000_000)]


class DisableBody(RequestBody):
    """The body of a request that disables an agent. The body may be omitted.

    With `drain`, allocations that run on the agent may finish. Otherwise they are stopped.
    """

    drain: bool = False


class EnrolmentAnswer(Answer):
    """The session of an enrolled agent; docs/agent-protocol.md describes the fields."""

    agent_id: str
    token: str
    epoch: int
    lease_ms: int
    incarnation: str
    image: str
    image_needs_login: bool
    credential: bool


@router.get("/agents")
@require_role(*USER_ROLES)
def list_agents(services: ServicesParameter, page: PageParameters) -> Page[agents.Agent]:
    return agents.list_agents(services, page)


@router.post("/agents/{agent_id}/enable", response_model=agents.Agent)
@require_role(Role.ADMIN)
def enable(
    agent_id: AgentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _execute(services, agent_id, AgentEnableRequested(), request)


@router.post("/agents/{agent_id}/disable", response_model=agents.Agent)
@require_role(Role.ADMIN)
def disable(
    agent_id: AgentId,
    request: IdempotencyParameter,
    services: ServicesParameter,
    # The title keeps the OpenAPI document unchanged.
    body: Annotated[DisableBody | None, Body(title="Asked")] = None,
) -> Response:
    drain = body is not None and body.drain
    return _execute(services, agent_id, AgentDisableRequested(drain=drain), request)


@router.post("/agents/{agent_id}/upgrade", response_model=agents.Agent)
@require_role(Role.ADMIN)
def upgrade(
    agent_id: AgentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Request that an agent starts the code of this cluster now, without a stop of trials.

    A lost agent does so when it comes back. Errors: `not_found` for an unknown agent. `conflict`
    for an agent that `detcloud agent add` did not install.
    """
    state = agents.find_agent(services, agent_id)
    if state is not None and not state.code:
        text = f"agent {agent_id} was not installed by `detcloud agent add`; upgrade its package"
        raise RequestError(Code.CONFLICT, f"{text} on the machine, or replace the instance")
    return _execute(services, agent_id, AgentUpgradeRequested(agent_code().sha256), request)


@router.delete("/agents/{agent_id}", response_model=agents.Agent)
@require_role(Role.ADMIN)
def remove(
    agent_id: AgentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Remove an agent without trials, and revoke the tokens of the machine.

    Removing a removed agent changes nothing. Errors: `not_found` for an unknown agent. `conflict`
    if the agent runs trials, or the provisioner launched the machine. `unavailable` if the agent's
    rows change in every attempt.
    """
    answer = request.execute(
        services,
        lambda extra_writes: remove_agent(services, agent_id, request.by, extra_writes),
        lambda reply: agents.describe_agent(services, reply),
    )
    return answer_response(answer)


@router.post("/agents/{agent_id}/slots/{slot_id}/enable", response_model=agents.Agent)
@require_role(Role.ADMIN)
def enable_slot(
    agent_id: AgentId, slot_id: SlotId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _execute(services, agent_id, AgentEnableRequested(slot_id), request)


@router.post("/agents/{agent_id}/slots/{slot_id}/disable", response_model=agents.Agent)
@require_role(Role.ADMIN)
def disable_slot(
    agent_id: AgentId, slot_id: SlotId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _execute(services, agent_id, AgentDisableRequested(slot_id), request)


@router.post("/agents")
@require_role(Role.JOIN)
def enrol(
    body: Enrolment, caller: Caller, services: ServicesParameter, http_request: Request
) -> EnrolmentAnswer:
    enrolment = EnrolmentRequest(
        name=body.name,
        resource_pool=body.resource_pool,
        slots=slot_tuples(body),
        version=body.version,
        label=body.label,
        address=body.address,
        runtime=body.runtime,
        installation=body.installation,
        memory_mib=slot_memories(body),
        occupancy=None if body.occupancy is None else body.occupancy.report,
        credential_digest=body.credential_sha256,
        code=body.code,
        only_user=body.only_user,
    )
    bearer = request_token(http_request, services.cluster_id)
    session = enrol_agent(services, enrolment, caller, bearer)
    return EnrolmentAnswer(
        agent_id=body.name,
        token=session.token,
        epoch=session.epoch,
        lease_ms=LEASE_MS,
        incarnation=session.incarnation,
        image=session.image,
        image_needs_login=session.image_needs_login,
        credential=session.has_credential,
    )


@router.post("/agents/{agent_id}/sync", response_model=dict[str, Any])
@require_role(Role.AGENT, body_bytes_max=SYNC_BYTES_MAX, has_lines=True)
async def sync(
    agent_id: AgentId, body: SyncBody, caller: Caller, services: ServicesParameter
) -> Response:
    check_own(agent_id, caller)
    polls = services.long_polls
    if polls is None:
        answer = await run_in_threadpool(_take_call, services, agent_id, body)
        # The host charges for each call, so that the agent calls rarely while nothing is new.
        next_sync_ms = 1000 if answer.is_news else _steady_ms()
        return json_response(answer.with_next_sync(next_sync_ms, PATIENT_MS))
    return json_response(await _hold_call(services, polls, agent_id, body))


def check_own(agent_id: str, caller: Principal) -> None:
    """Raise RequestError forbidden unless the caller is the agent `agent_id`."""
    if caller.subject != agent_id:
        raise RequestError(
            Code.FORBIDDEN, "an agent's token works only for that agent's own routes"
        )


def _take_call(services: Services, agent_id: str, body: SyncBody) -> AgentAnswer:
    requests = sync_requests(body)
    notice = None
    if body.notice is not None:
        notice = _instance_notice(agent_id, body.notice)
    try:
        return sync_agent(
            services,
            agent_id,
            requests,
            notice,
            body.incarnation,
            body.cached,
            fault_report(body),
        )
    except (CommandRefused, RequestError):
        raise
    except Exception:
        services.agents.record_failed_sync()
        raise


def _instance_notice(agent_id: str, notice: MachineNotice) -> InstanceNotice:
    """Return the notice to store. A machine that ends itself gets a reason; also log the reason."""
    reason = ""
    if notice.cause == DEAD_TICK:
        reason = DEAD_TICK_REASON
        log.warning("machine %s: %s", agent_id, reason)
    return InstanceNotice(agent_id, notice.deadline_ms, reason=reason)


async def _hold_call(
    services: Services, polls: LongPollRegistry, agent_id: str, body: SyncBody
) -> bytes:
    """Accept a sync call, and return the encoded answer, at once or after a wait.

    Answer at once if the call has reports, logs or cached experiments, or announces more reports.
    Otherwise wait until the revision of the answer differs from `body.seen`. The wait lasts at most
    `body.wait_ms` and HOLD_MS_MAX, and ends when the agent calls again. A previous waiting call of
    the agent ends at once. Raises as `sync_agent`.
    """
    brings_something = bool(body.reports or body.logs or body.more or body.cached)
    hold_ms = 0 if brings_something else min(body.wait_ms, HOLD_MS_MAX)
    deadline = time.monotonic() + hold_ms / 1000
    repeat = SyncRequest(body.epoch, tuple(body.known), call=body.call)
    with polls.open_poll(agent_id) as call:
        polls.watch_addresses(call, (addresses.agent(agent_id),))
        answer = await run_in_threadpool(_take_call, services, agent_id, body)
        while answer.revision == body.seen and not call.superseded:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            # An actor that was not watched before may have changed meanwhile: ask again at once.
            if not polls.watch_addresses(call, answer.addresses):
                await call.wait(left)
            answer = await run_in_threadpool(answer_sync, services, agent_id, repeat)
    return answer.with_next_sync(0)


def _execute(
    services: Services,
    agent_id: str,
    message: AgentEnableRequested | AgentDisableRequested | AgentUpgradeRequested,
    request: IdempotentRequest,
) -> Response:
    """Execute a command of the agent once per idempotency key; answer with the changed agent.

    `message` is the command. The agent's refusals pass on.
    """
    address = addresses.agent(agent_id)
    answer = request.execute(
        services,
        lambda extra_writes: services.engine.execute_command(
            address, message, by=request.by, extra_writes=extra_writes
        ),
        lambda reply: agents.describe_agent(services, reply),
    )
    return answer_response(answer)


def _steady_ms() -> int:
    return random.randint(LEASE_MS // 3, LEASE_MS // 2)
