"""Tunnels from users' machines to ports of running trials: open, describe, admit and close.

The head of the agent's actor lists the open tunnels, so that the end of an allocation closes its
tunnels in the same commit. The row of a tunnel has the rest. An actor's commit wakes the agent's
waiting sync.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from control_plane.access.ownership import OwnedObject
from control_plane.access.principals import Principal
from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import TunnelClosed, TunnelOpened
from control_plane.errors import Code, RequestError, invalid
from control_plane.rows import agent_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.services import Services
from control_plane.state.table import Delete, Expect, Key, Put, Row
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.row_changes import change_row
from detcloud.shared.tunnel.certificate_text import decode_certificate
from detcloud.shared.tunnel.tickets import Side

KEPT_MS = 24 * 3600 * 1000
"""The time after the last ticket for which a tunnel is kept."""
PORTS_MAX = 32
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

    @property
    def allocation(self) -> str:
        """The name of the allocation, `TRIAL.EPOCH`."""
        return f"{self.trial_id}.{self.epoch}"


@dataclass(frozen=True)
class Admission:
    """The admission of an end to the relay."""

    relay: TunnelRelay
    ticket: str
    tunnel: TunnelRecord


_CODEC = JsonCodec(agent_rows.TUNNEL, TunnelRecord, {"ports": tuple})


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
) -> str:
    """Open a tunnel to ports of a trial's present allocation, and return the tunnel's id.

    A trial on several machines is reached on the machine of rank 0.

    Raises:
        RequestError: not_found for an unknown trial or a cluster without a relay; conflict if the
            trial does not run; invalid for an invalid certificate.
        CommandRefused: conflict if the allocation has just ended or too many tunnels are open.
    """
    require_relay(services)
    check_certificate(certificate)
    agent, epoch = _find_place(services, trial_id)
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
    )
    put = _expiring_put(record, None, now_ms)
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

    Raises:
        RequestError: not_found for an unknown tunnel or a cluster without a relay; forbidden for
            another agent's tunnel; conflict if the tunnel is closed; invalid for an invalid
            certificate.
    """
    check_certificate(certificate)
    record = load_tunnel(services, tunnel)
    if record.agent != agent:
        raise RequestError(Code.FORBIDDEN, f"tunnel {tunnel} does not lead to agent {agent}")
    return _admit(services, replace(record, agent_certificate=certificate), Side.AGENT)


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


def tunnel_entries(services: Services, tunnels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries of open tunnels for the answer to an agent's sync.

    Tunnels without a row, and tunnels whose user's token has ended, are left out: the agent then
    closes them. `is_answered` is False while the user waits for the agent.
    """
    entries = []
    now_ms = services.now_ms()
    for row in services.table.get_many([_key(tunnel) for tunnel in tunnels]):
        if row is None or _is_expired(row, now_ms):
            continue
        record = _CODEC.decode(row.body)
        if services.tokens.find_principal(record.token_digest) is not None:
            entries.append(
                {
                    "tunnel": record.tunnel,
                    "allocation": record.allocation,
                    "user": record.user,
                    "ports": list(record.ports),
                    "is_answered": bool(record.agent_certificate),
                }
            )
    return entries


def require_relay(services: Services) -> TunnelRelay:
    """Return the relay. Raise RequestError not_found if the cluster has no relay."""
    if services.relay is None:
        raise RequestError(Code.NOT_FOUND, "this cluster has no relay, so it opens no tunnels")
    return services.relay


def check_certificate(certificate: str) -> None:
    """Raise RequestError invalid unless the text is a certificate in base64 of a valid length.

    The peer parses the certificate, and refuses what is none.
    """
    try:
        decode_certificate(certificate)
    except ValueError as error:
        raise invalid("certificate", str(error)) from None


def _admit(services: Services, record: TunnelRecord, side: Side) -> Admission:
    """Store the record for another KEPT_MS, and return an admission with a new ticket."""
    relay = require_relay(services)
    _check_open(services, record)
    now_ms = services.now_ms()

    def change(row: Row | None) -> tuple[TunnelRecord, tuple[Put, ...]]:
        if row is None:
            raise RequestError(Code.CONFLICT, f"tunnel {record.tunnel} was closed")
        stored = _CODEC.decode(row.body)
        if side is Side.AGENT:
            stored = replace(stored, agent_certificate=record.agent_certificate)
        return stored, (_expiring_put(stored, row, now_ms),)

    stored = change_row(services.table, _key(record.tunnel), change, f"tunnel {record.tunnel}")
    place = stored.tunnel, stored.user, stored.allocation, stored.ports
    return Admission(relay, relay.issue_ticket(side, *place, now_ms), stored)


def _check_open(services: Services, record: TunnelRecord) -> None:
    """Raise RequestError conflict unless the agent's head lists the tunnel and the token lives."""
    state = services.engine.read_state(addresses.agent(record.agent))
    is_listed = isinstance(state, AgentState) and any(
        opened.tunnel == record.tunnel for opened in state.tunnels
    )
    if not is_listed:
        text = f"tunnel {record.tunnel} is closed: allocation {record.allocation} has ended"
        raise RequestError(Code.CONFLICT, f"{text}, or the tunnel was closed; open another")
    if services.tokens.find_principal(record.token_digest) is None:
        text = f"tunnel {record.tunnel} is closed: the token that opened it has ended"
        raise RequestError(Code.CONFLICT, f"{text}; open another")


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


def _expiring_put(record: TunnelRecord, former: Row | None, now_ms: int) -> Put:
    """Return the write that stores a tunnel for KEPT_MS, in place of the row `former`."""
    body = _CODEC.encode(record) if former is None else _CODEC.encode(record, former.body)
    revision = now_ms if former is None else former.revision + 1
    expected = Expect.ABSENT if former is None else former.revision
    return Put(_key(record.tunnel), revision, body, expected, now_ms + KEPT_MS, expires=True)


def _is_expired(row: Row, now_ms: int) -> bool:
    return row.due_ms is not None and now_ms >= row.due_ms


def _key(tunnel: str) -> Key:
    return Key(agent_rows.TUNNEL.partition, tunnel)
