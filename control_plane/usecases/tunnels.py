"""Tunnels from users' machines to ports of running trials: open, describe, admit and close.

The head of the agent's actor lists the open tunnels, so that the end of an allocation closes its
tunnels in the same commit. The row of a tunnel has the rest. An actor's commit wakes the agent's
waiting sync.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from control_plane.access.ownership import OwnedObject
from control_plane.access.principals import Principal
from control_plane.access.tunnel_relay import RelaySource, TunnelRelay
from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import TunnelClosed, TunnelOpened
from control_plane.actors.step import CommandRefused
from control_plane.config.environment import PROXY_PORTS_MAX
from control_plane.errors import Code, RequestError, invalid
from control_plane.rows import agent_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.services import Services
from control_plane.state.table import Delete, Expect, Key, Put, Row
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.row_changes import change_row
from detcloud.shared.tunnel.certificate_text import decode_certificate
from detcloud.shared.tunnel.services import SERVICES
from detcloud.shared.tunnel.tickets import Side

log = logging.getLogger(__name__)

KEPT_MS = 24 * 3600 * 1000
"""The time after the user's last ticket for which a tunnel is kept."""
AWAITED_MS = 120_000
"""The time after the opening for which the agent is asked to answer at once."""
PORTS_MAX = PROXY_PORTS_MAX
_ID_BYTES = 12


@dataclass(frozen=True)
class TunnelRecord:
    """The stored row of a tunnel."""

    tunnel: str
    """The id of the tunnel."""
    user: str
    """The user who opened the tunnel."""
    token_digest: str
    """The SHA-256 of the user's token. The tunnel ends when the token does."""
    trial_id: int
    epoch: int
    """The epoch of the allocation."""
    agent: str
    """The agent that runs the allocation."""
    ports: tuple[int, ...]
    """The ports of the trial to which the tunnel leads."""
    user_certificate: str
    """The certificate of the user's end in base64."""
    opened_ms: int
    agent_certificate: str = ""
    """The certificate of the agent's end in base64. "" until the agent has answered."""
    services: tuple[str, ...] = ()
    """The services of the allocation to which the tunnel leads, of SERVICES."""

    @property
    def allocation(self) -> str:
        """The name of the allocation, `TRIAL.EPOCH`."""
        return f"{self.trial_id}.{self.epoch}"


@dataclass(frozen=True)
class Admission:
    """The admission of an end to the relay."""

    relay: TunnelRelay | None
    """The relay. None while the relay starts, so that the end must ask again."""
    ticket: str
    """The ticket for the relay. "" while the relay starts."""
    tunnel: TunnelRecord


_CODEC = JsonCodec(agent_rows.TUNNEL, TunnelRecord, {"ports": tuple, "services": tuple})


def decode_tunnel(body: bytes) -> TunnelRecord:
    """Decode the body of a tunnel's row. Ignore fields of newer versions."""
    return _CODEC.decode(body)


def open_tunnel(
    services: Services,
    caller: Principal,
    token_digest: str,
    trial_id: int,
    ports: Sequence[int],
    certificate: str,
    extra_writes: ExtraWrites,
    *,
    service_names: Sequence[str] = (),
) -> str:
    """Open a tunnel to ports and services of a trial's present allocation. Return the tunnel's id.

    A trial on several machines is reached on the machine of rank 0. A relay that does not run is
    started.

    Raises:
        RequestError: not_found for an unknown trial or a cluster without a relay; conflict if the
            trial does not run; invalid for an invalid certificate, an unknown service, or a tunnel
            to nothing; conflict or unavailable if the relay cannot start.
        CommandRefused: conflict if the allocation has just ended or too many tunnels are open.
    """
    check_certificate(certificate)
    _check_targets(ports, service_names)
    agent, epoch = _find_place(services, trial_id)
    _require_relay(services).find_relay()
    tunnel = secrets.token_urlsafe(_ID_BYTES)
    now_ms = services.now_ms()
    record = TunnelRecord(
        tunnel,
        caller.user,
        token_digest,
        trial_id,
        epoch,
        agent,
        tuple(sorted(set(ports))),
        certificate,
        now_ms,
        services=tuple(sorted(set(service_names))),
    )
    put = _put(record, None, now_ms + KEPT_MS)
    services.engine.execute_command(
        addresses.agent(agent),
        TunnelOpened(tunnel, trial_id, epoch),
        by=caller.user,
        extra_writes=lambda reply: (put, *extra_writes(reply)),
    )
    return tunnel


def load_tunnel(services: Services, tunnel: str) -> TunnelRecord:
    """Return a tunnel. Raise RequestError not_found for an unknown or expired tunnel."""
    row = services.table.get(_key(tunnel))
    if row is None or _is_expired(row, services.now_ms()):
        raise RequestError(Code.NOT_FOUND, f"there is no tunnel {tunnel}; it may have expired")
    return _CODEC.decode(row.body)


def find_owned_tunnel(services: Services, tunnel: str) -> tuple[OwnedObject, ...]:
    """Return the ownership of a tunnel, which belongs to the user who opened the tunnel.

    Raise RequestError not_found for an unknown tunnel.
    """
    record = load_tunnel(services, tunnel)
    return (OwnedObject(f"tunnel {tunnel}", (record.user,), "open your own"),)


def admit_user(services: Services, tunnel: str) -> Admission:
    """Return an admission for the user's end, and keep the tunnel for another KEPT_MS.

    Raises:
        RequestError: not_found for an unknown tunnel or a cluster without a relay; conflict if the
            tunnel is closed.
    """
    record = load_tunnel(services, tunnel)
    return _admit(services, record, Side.USER)


def admit_agent(services: Services, agent: str, tunnel: str, certificate: str) -> Admission:
    """Store the certificate of the agent's end, and return an admission.

    The end of the row stays, because an agent dials again while the user's machine is gone.

    Raises:
        RequestError: not_found for an unknown tunnel or a cluster without a relay; forbidden for
            another agent's tunnel; conflict if the tunnel is closed; invalid for an invalid
            certificate.
    """
    check_certificate(certificate)
    record = _load_tunnel_of(services, agent, tunnel)
    return _admit(services, replace(record, agent_certificate=certificate), Side.AGENT)


def abandon_tunnel(services: Services, agent: str, tunnel: str) -> TunnelRecord:
    """Close a tunnel that the user's end has left. Return the tunnel's last record.

    Raises:
        RequestError: not_found for an unknown tunnel; forbidden for another agent's tunnel.
    """
    _load_tunnel_of(services, agent, tunnel)
    return close_tunnel(services, tunnel, "", lambda reply: ())


def close_tunnel(
    services: Services, tunnel: str, by: str, extra_writes: ExtraWrites
) -> TunnelRecord:
    """Close a tunnel, and return the tunnel's last record.

    The agent ends the tunnel's connections after the agent's next sync.

    Raises:
        RequestError: not_found for an unknown tunnel.
    """
    record = load_tunnel(services, tunnel)
    delete = Delete(_key(tunnel), Expect.ANYTHING)
    services.engine.execute_command(
        addresses.agent(record.agent),
        TunnelClosed(tunnel),
        by=by,
        extra_writes=lambda reply: (delete, *extra_writes(reply)),
    )
    return record


@dataclass(frozen=True)
class TunnelList:
    """The open tunnels to an agent's allocations."""

    entries: tuple[dict[str, Any], ...] = ()
    """The entries for the answer to the agent's sync. `is_answered` is False until the agent has
    requested a ticket.
    """
    is_awaited: bool = False
    """Whether a user has opened a tunnel within AWAITED_MS, and waits for the agent."""


NO_TUNNELS = TunnelList()


def list_tunnels(services: Services, agent: str, tunnels: Sequence[str]) -> TunnelList:
    """Return the open tunnels of the agent's head, and close tunnels that cannot be used again.

    A tunnel without a row, or whose user's token has ended, leaves the agent's head. The agent then
    closes the tunnel, and another tunnel can take its place.
    """
    entries = []
    is_awaited = False
    now_ms = services.now_ms()
    rows = services.table.get_many([_key(tunnel) for tunnel in tunnels])
    for tunnel, row in zip(tunnels, rows, strict=True):
        record = None if row is None or _is_expired(row, now_ms) else _CODEC.decode(row.body)
        if record is None or services.tokens.find_principal(record.token_digest) is None:
            _close_dead_tunnel(services, agent, tunnel)
            continue
        entries.append(_entry(record))
        is_recent = now_ms - record.opened_ms < AWAITED_MS
        is_awaited = is_awaited or (is_recent and not record.agent_certificate)
    return TunnelList(tuple(entries), is_awaited)


def _require_relay(services: Services) -> RelaySource:
    """Return the source of the relay. Raise RequestError not_found on a cluster without a relay."""
    if services.relay is None:
        text = "this cluster has no relay, so it opens no tunnels"
        raise RequestError(Code.NOT_FOUND, "; ".join(filter(None, (text, services.relay_remedy))))
    return services.relay


def check_certificate(certificate: str) -> None:
    """Raise RequestError invalid unless the text is a certificate in base64 of a valid length.

    The peer parses the certificate, and refuses what is none.
    """
    try:
        decode_certificate(certificate)
    except ValueError as error:
        raise invalid("certificate", str(error)) from None


def _entry(record: TunnelRecord) -> dict[str, Any]:
    return {
        "tunnel": record.tunnel,
        "allocation": record.allocation,
        "user": record.user,
        "ports": list(record.ports),
        "services": list(record.services),
        "is_answered": bool(record.agent_certificate),
    }


def _close_dead_tunnel(services: Services, agent: str, tunnel: str) -> None:
    """Remove a tunnel that cannot be used again from the agent's head.

    The row stays until its expiry, so that the user is told the reason. A refusal is only logged:
    the agent's next sync tries again.
    """
    try:
        services.engine.execute_command(addresses.agent(agent), TunnelClosed(tunnel))
    except CommandRefused as refused:
        log.warning("tunnel %s of agent %s stays listed: %s", tunnel, agent, refused)


def _load_tunnel_of(services: Services, agent: str, tunnel: str) -> TunnelRecord:
    """Return a tunnel to the agent. Raise RequestError not_found or forbidden."""
    record = load_tunnel(services, tunnel)
    if record.agent != agent:
        raise RequestError(Code.FORBIDDEN, f"tunnel {tunnel} does not lead to agent {agent}")
    return record


def _admit(services: Services, record: TunnelRecord, side: Side) -> Admission:
    """Return an admission with a new ticket. Keep the row of a user's end for another KEPT_MS.

    The certificate of an agent's end is stored, also while the relay starts.
    """
    source = _require_relay(services)
    _check_open(services, record)
    now_ms = services.now_ms()

    def change(row: Row | None) -> tuple[TunnelRecord, tuple[Put, ...]]:
        if row is None:
            raise RequestError(Code.CONFLICT, f"tunnel {record.tunnel} was closed")
        stored = _CODEC.decode(row.body)
        if side is Side.USER:
            return stored, (_put(stored, row, now_ms + KEPT_MS),)
        if stored.agent_certificate == record.agent_certificate:
            return stored, ()
        stored = replace(stored, agent_certificate=record.agent_certificate)
        return stored, (_put(stored, row, row.due_ms),)

    stored = change_row(services.table, _key(record.tunnel), change, f"tunnel {record.tunnel}")
    relay = source.find_relay()
    if relay is None:
        return Admission(None, "", stored)
    place = stored.tunnel, stored.user, stored.allocation, stored.ports
    ticket = relay.issue_ticket(side, *place, now_ms, services=stored.services)
    return Admission(relay, ticket, stored)


def _check_open(services: Services, record: TunnelRecord) -> None:
    """Raise RequestError conflict unless the agent's head lists the tunnel and the token lives."""
    if services.tokens.find_principal(record.token_digest) is None:
        text = f"tunnel {record.tunnel} is closed: the token that opened it has ended"
        raise RequestError(Code.CONFLICT, f"{text}; open another")
    state = services.engine.read_state(addresses.agent(record.agent))
    is_listed = isinstance(state, AgentState) and any(
        opened.tunnel == record.tunnel for opened in state.tunnels
    )
    if not is_listed:
        text = f"tunnel {record.tunnel} is closed: allocation {record.allocation} has ended"
        raise RequestError(Code.CONFLICT, f"{text}, or the tunnel was closed; open another")


def _check_targets(ports: Sequence[int], service_names: Sequence[str]) -> None:
    """Raise RequestError invalid for an unknown service, or without a port and a service."""
    for name in service_names:
        if name not in SERVICES:
            raise invalid("services", f"{name!r} is no service; expected {' or '.join(SERVICES)}")
    if not ports and not service_names:
        raise invalid("ports", "expected a port, or a service in `services`")


def _find_place(services: Services, trial_id: int) -> tuple[str, int]:
    """Return the agent and the epoch of a trial's present allocation.

    Raise RequestError not_found for an unknown trial, and conflict for a trial that does not run.
    """
    trial = services.experiments.read_trial(trial_id)
    if trial is None:
        raise RequestError(Code.NOT_FOUND, f"there is no trial {trial_id}")
    places = () if trial.allocation is None else trial.allocation.places
    if not places:
        raise RequestError(
            Code.CONFLICT, f"trial {trial_id} does not run now; a tunnel leads to a running trial"
        )
    return places[0].agent, trial.epoch


def _put(record: TunnelRecord, former: Row | None, expires_ms: int | None) -> Put:
    """Return the write that stores a tunnel until `expires_ms`, in place of the row `former`."""
    body = _CODEC.encode(record) if former is None else _CODEC.encode(record, former.body)
    revision = record.opened_ms if former is None else former.revision + 1
    expected = Expect.ABSENT if former is None else former.revision
    return Put(_key(record.tunnel), revision, body, expected, expires_ms, expires=True)


def _is_expired(row: Row, now_ms: int) -> bool:
    return row.due_ms is not None and now_ms >= row.due_ms


def _key(tunnel: str) -> Key:
    return Key(agent_rows.TUNNEL.partition, tunnel)
