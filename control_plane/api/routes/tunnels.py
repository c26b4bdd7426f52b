"""Routes of tunnels, which connect users' machines with ports of running trials."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Request, Response
from pydantic import Field

from control_plane.access.ownership import Action, FindOwned
from control_plane.access.principals import USER_ROLES, Role
from control_plane.access.tokens import token_digest
from control_plane.api.authentication import request_token
from control_plane.api.dependencies import IdempotencyParameter, ServicesParameter
from control_plane.api.prefix import request_prefix
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.api.routes.agents import AgentId, check_own
from control_plane.queries.answer import Answer
from control_plane.queries.experiment_owners import find_owned_trial
from control_plane.services import Services
from control_plane.text_forms import text_form
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.tunnels import (
    PORTS_MAX,
    Admission,
    TunnelRecord,
    abandon_tunnel,
    admit_agent,
    admit_user,
    close_tunnel,
    find_owned_tunnel,
    load_tunnel,
    open_tunnel,
)
from detcloud.shared.tunnel.frames import SERVICE_BYTES_MAX
from detcloud.shared.tunnel.services import SERVICES

CERTIFICATE_CHARACTERS_MAX = 1_368
"""The length of 1,024 bytes in base64."""

router = guarded_router("tunnels")

TunnelId = Annotated[
    str,
    Path(pattern=text_form(r"^[A-Za-z0-9_-]{8,64}$", "8 to 64 letters, digits, - and _")),
]
Certificate = Annotated[str, Field(min_length=1, max_length=CERTIFICATE_CHARACTERS_MAX)]
Port = Annotated[int, Field(ge=1, le=65_535)]
ServiceName = Annotated[str, Field(min_length=1, max_length=SERVICE_BYTES_MAX)]


class OpenBody(RequestBody):
    """The body of `POST /tunnels`."""

    trial_id: Annotated[int, Field(ge=1, le=10**12 - 1)]
    ports: Annotated[list[Port], Field(max_length=PORTS_MAX)] = []
    services: Annotated[list[ServiceName], Field(max_length=len(SERVICES))] = []
    certificate: Certificate


class TicketBody(RequestBody):
    """The body of an agent's request for a ticket."""

    certificate: Certificate


class Tunnel(Answer):
    """A tunnel. `agent_certificate` is "" until the agent has answered."""

    id: str
    trial_id: int
    allocation: str
    agent_id: str
    user: str
    ports: list[int]
    services: list[str]
    opened_ms: int
    agent_certificate: str


class TunnelTicket(Answer):
    """A tunnel with a ticket, which admits an end to the relay once within 60 s.

    `relay_state` is `ready`, or `starting` while the relay's address and the ticket are still "".
    The end then asks for another ticket each second. `relay_pin` is the SHA-256 of the relay's
    certificate in hexadecimal, or "" for a relay on the same machine or with a certificate of a
    public authority. `peer_certificate` is the certificate of the peer, or "" until the agent has
    answered.
    """

    tunnel: Tunnel
    relay_state: Literal["ready", "starting"]
    relay_url: str
    relay_pin: str
    ticket: str
    peer_certificate: str


def _trial_in_body(body: OpenBody, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_trial, services, body.trial_id)


def _tunnel_in_path(tunnel_id: TunnelId, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_tunnel, services, tunnel_id)


def _caller_digest(request: Request, services: ServicesParameter) -> str:
    """Return the digest of the request's valid token."""
    return token_digest(request_token(request, services.cluster_id))


def _called_address(request: Request) -> str:
    """Return the address of the API as the caller reached the API, for example through `ssh -L`."""
    return str(request.base_url).rstrip("/") + request_prefix(request)


CalledAddress = Annotated[str, Depends(_called_address)]


@router.post("/tunnels", response_model=TunnelTicket, status_code=201)
@require_role(*USER_ROLES, changes=_trial_in_body, action=Action.CONNECT)
def open_route(
    body: OpenBody,
    caller: Caller,
    digest: Annotated[str, Depends(_caller_digest)],
    address: CalledAddress,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Open a tunnel to a trial's present allocation, and return the tunnel with a ticket.

    The tunnel leads to the ports and services of the body. It ends with the allocation and with the
    token of the request. Errors: `forbidden` for another user's trial. `not_found` for an unknown
    trial, and on a cluster without a relay. `conflict` if the trial does not run, or if the agent
    has too many tunnels. `conflict` or `unavailable` if the relay cannot start.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        return open_tunnel(
            services,
            caller,
            digest,
            body.trial_id,
            body.ports,
            body.certificate,
            extra_writes,
            service_names=body.services,
        )

    issue = partial(_user_ticket, services, address)
    answer = request.execute(services, effect, issue, 201, is_secret=True)
    return answer_response(answer)


@router.get("/tunnels/{tunnel_id}")
@require_role(*USER_ROLES)
def describe(tunnel_id: TunnelId, services: ServicesParameter) -> Tunnel:
    """Describe a tunnel. Errors: `not_found` for an unknown or closed tunnel."""
    return _tunnel_answer(load_tunnel(services, tunnel_id))


@router.post("/tunnels/{tunnel_id}/tickets")
@require_role(*USER_ROLES, changes=_tunnel_in_path, action=Action.CONNECT)
def issue_ticket(
    tunnel_id: TunnelId, address: CalledAddress, services: ServicesParameter
) -> TunnelTicket:
    """Issue a ticket for the user's end of a tunnel.

    Errors: `forbidden` for another user's tunnel. `not_found` for an unknown or closed tunnel.
    `conflict` if the allocation or the token of the tunnel has ended. `conflict` or `unavailable`
    if the relay cannot start.
    """
    return _user_ticket(services, address, tunnel_id)


@router.delete("/tunnels/{tunnel_id}", response_model=Tunnel)
@require_role(*USER_ROLES, changes=_tunnel_in_path)
def close(
    tunnel_id: TunnelId, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Close a tunnel, and return the closed tunnel.

    Errors: `forbidden` for another user's tunnel. `not_found` for an unknown or closed tunnel.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        record = load_tunnel(services, tunnel_id)
        reply = _tunnel_answer(record).model_dump()
        close_tunnel(services, tunnel_id, caller.user, lambda _: extra_writes(reply))
        return reply

    return answer_response(request.execute(services, effect, _tunnel_from_reply))


@router.post("/agents/{agent_id}/tunnels/{tunnel_id}/tickets")
@require_role(Role.AGENT)
def issue_agent_ticket(
    agent_id: AgentId,
    tunnel_id: TunnelId,
    body: TicketBody,
    caller: Caller,
    address: CalledAddress,
    services: ServicesParameter,
) -> TunnelTicket:
    """Store the certificate of the agent's end, and issue a ticket for this end.

    Errors: `forbidden` for another agent. `not_found` for an unknown or closed tunnel. `conflict`
    if the allocation or the token of the tunnel has ended. `conflict` or `unavailable` if the relay
    cannot start.
    """
    check_own(agent_id, caller)
    admission = admit_agent(services, agent_id, tunnel_id, body.certificate)
    return _ticket_answer(admission, admission.tunnel.user_certificate, address)


@router.delete("/agents/{agent_id}/tunnels/{tunnel_id}")
@require_role(Role.AGENT)
def abandon(
    agent_id: AgentId, tunnel_id: TunnelId, caller: Caller, services: ServicesParameter
) -> Tunnel:
    """Close a tunnel that the user's end has left, and return the closed tunnel.

    Errors: `forbidden` for another agent. `not_found` for an unknown or closed tunnel.
    """
    check_own(agent_id, caller)
    return _tunnel_answer(abandon_tunnel(services, agent_id, tunnel_id))


def _user_ticket(services: Services, address: str, tunnel_id: str) -> TunnelTicket:
    admission = admit_user(services, tunnel_id)
    return _ticket_answer(admission, admission.tunnel.agent_certificate, address)


def _ticket_answer(admission: Admission, peer_certificate: str, address: str) -> TunnelTicket:
    """Return a ticket. `address` is the API's address, at which a relay without an address is."""
    relay = admission.relay
    return TunnelTicket(
        tunnel=_tunnel_answer(admission.tunnel),
        relay_state="starting" if relay is None else "ready",
        relay_url="" if relay is None else relay.url or address,
        relay_pin="" if relay is None else relay.pin,
        ticket=admission.ticket,
        peer_certificate=peer_certificate,
    )


def _tunnel_answer(record: TunnelRecord) -> Tunnel:
    return Tunnel(
        id=record.tunnel,
        trial_id=record.trial_id,
        allocation=record.allocation,
        agent_id=record.agent,
        user=record.user,
        ports=list(record.ports),
        services=list(record.services),
        opened_ms=record.opened_ms,
        agent_certificate=record.agent_certificate,
    )


def _tunnel_from_reply(reply: dict[str, Any]) -> Tunnel:
    return Tunnel(**reply)
