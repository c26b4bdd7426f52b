"""The agent as the cluster sees it: its session's epoch and the allocations that belong on it."""

import json
from dataclasses import dataclass, replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.agent_messages import (
    LOOPBACK,
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    AgentForgotten,
    AgentMessage,
    AllocationPlaced,
    AllocationRemoved,
)
from control_plane.actors.pool_messages import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.slots import OPEN, Availability
from control_plane.actors.step import Refused, Turn
from control_plane.evolve import evolve

AGENTS = "agents"
SESSIONS = "sessions"
# Tokens by digest; and by their names the agents that hold one, each with its digest and epoch.
TOKENS = "tokens"
HOLDERS = "token-holders"


def leases_of(pool: str) -> str:
    """The partition of a pool's leases, one row per agent."""
    return f"leases#{pool}"


@dataclass(frozen=True, slots=True)
class Desired:
    """An allocation that belongs on the agent, as its node of that rank among `nodes`."""

    trial_id: int
    epoch: int
    slots: tuple[int, ...]
    node_rank: int = 0
    nodes: int = 1


@dataclass(frozen=True)
class AgentState:
    """The head. `revision` grows with every change of `desired`; `slots` and `address` as in
    AgentEnrolled.

    `availability` is what people said last: it outlives sessions and losses.
    """

    agent: str
    pool: str
    epoch: int
    slots: tuple[tuple[int, str, str, str], ...]
    enrolled_ms: int
    version: str = ""
    lost: bool = False
    revision: int = 1
    desired: tuple[Desired, ...] = ()
    availability: Availability = OPEN
    label: str = ""
    address: str = LOOPBACK


def step(state: AgentState | None, message: AgentMessage, turn: Turn) -> AgentState | None:
    """Folds one message."""
    if isinstance(message, AgentEnrolled):
        return _enrolled(state, message, turn)
    if state is None:
        return None
    match message:
        case AllocationPlaced(trial_id, epoch, slots, node_rank, nodes):
            placed = Desired(trial_id, epoch, slots, node_rank, nodes)
            return _desiring(state, (*_without(state, trial_id, epoch), placed))
        case AllocationRemoved(trial_id, epoch):
            return _desiring(state, _without(state, trial_id, epoch))
        case AgentDeclaredLost(epoch):
            if epoch != state.epoch:
                return state
            return _desiring(evolve(state, lost=True), ())
        case AgentForgotten(epoch):
            _forgotten(state, epoch, turn)
            return state
        case AgentEnableRequested() | AgentDisableRequested():
            return _commanded(state, message, turn)
        case _:
            assert_never(message)


def fallback(state: AgentState | None, message: object, turn: Turn) -> AgentState | None:
    """An agent forgets what it cannot take; the pool's audit finds what is missing."""
    turn.because(f"{type(message).__name__} could not be processed")
    return state


def _enrolled(state: AgentState | None, message: AgentEnrolled, turn: Turn) -> AgentState:
    """A new session. What ran in the session before is still wanted, unless the agent was given
    up.
    """
    epoch = 1 if state is None else state.epoch + 1
    availability = OPEN if state is None else state.availability
    turn.reply = epoch
    slots = tuple(slot[0] for slot in message.slots)
    joined = AgentJoined(message.agent, epoch, slots, availability, message.label)
    turn.send(addresses.pool(message.pool), joined)
    turn.write_row(AGENTS, message.agent, message.pool.encode())
    _fence(SESSIONS, message.agent, {"epoch": epoch, "call": 0}, turn)
    lease = {"epoch": epoch, "renewed_ms": turn.now_ms, "lost": False}
    _fence(leases_of(message.pool), message.agent, lease, turn)
    return AgentState(
        agent=message.agent,
        pool=message.pool,
        epoch=epoch,
        slots=message.slots,
        enrolled_ms=turn.now_ms,
        version=message.version,
        revision=1 if state is None else state.revision + 1,
        desired=() if state is None else state.desired,
        availability=availability,
        label=message.label,
        address=message.address,
    )


def _forgotten(state: AgentState, epoch: int, turn: Turn) -> None:
    """Removes what others find the agent by, and what they know of its session. Its head stays, for
    an agent that enrols again.
    """
    turn.reply = state.lost or state.epoch != epoch
    if not state.lost or state.epoch != epoch:
        return
    for partition in (AGENTS, SESSIONS):
        turn.write_row(partition, state.agent, None)
    seen = turn.row(HOLDERS, state.agent)
    holder = json.loads(seen.body or b"{}")
    if holder.get("epoch") == epoch:
        turn.write_row(HOLDERS, state.agent, None, seen=seen)
        turn.write_row(TOKENS, holder["digest"], None)


def _fence(partition: str, agent: str, fields: dict[str, int], turn: Turn) -> None:
    """Raises the epoch in a row of the agent's, so that a write of an older session finds it
    changed.
    """
    seen = turn.row(partition, agent)
    known = json.loads(seen.body or b"{}")
    turn.write_row(partition, agent, json.dumps({**known, **fields}).encode(), seen=seen)


def _commanded(
    state: AgentState, message: AgentEnableRequested | AgentDisableRequested, turn: Turn
) -> AgentState:
    """People's word on the agent or one of its slots; the reply is the agent's name."""
    turn.reply = state.agent
    known = [slot[0] for slot in state.slots]
    if message.slot is not None and message.slot not in known:
        listed = ", ".join(map(str, known))
        text = f"agent {state.agent} has no slot {message.slot}; it has {listed}"
        raise Refused("not_found", text)
    after = _availability(state.availability, message)
    if after == state.availability:
        return state
    if state.lost and isinstance(message, AgentDisableRequested):
        text = f"agent {state.agent} is lost: wait until it has come back, then disable it"
        raise Refused("conflict", text)
    turn.because(_described(after))
    if not state.lost:
        changed = AgentAvailabilityChanged(state.agent, state.epoch, after)
        turn.send(addresses.pool(state.pool), changed)
    return evolve(state, availability=after)


def _availability(
    before: Availability, message: AgentEnableRequested | AgentDisableRequested
) -> Availability:
    slot = message.slot
    match message:
        case AgentEnableRequested() if slot is None:
            return replace(before, enabled=True, draining=False)
        case AgentDisableRequested(drain=drain) if slot is None:
            return replace(before, enabled=False, draining=drain)
        case AgentEnableRequested():
            return replace(before, disabled=tuple(n for n in before.disabled if n != slot))
        case AgentDisableRequested():
            assert slot is not None
            return replace(before, disabled=tuple(sorted({*before.disabled, slot})))


def _described(availability: Availability) -> str:
    words = "enabled" if availability.enabled else "disabled"
    if availability.draining:
        words = "draining"
    closed = ", ".join(map(str, availability.disabled))
    return f"the agent is {words}" + (f", without slot {closed}" if closed else "")


def _desiring(state: AgentState, desired: tuple[Desired, ...]) -> AgentState:
    if desired == state.desired:
        return state
    return evolve(state, desired=desired, revision=state.revision + 1)


def _without(state: AgentState, trial_id: int, epoch: int) -> tuple[Desired, ...]:
    return tuple(
        desired
        for desired in state.desired
        if (desired.trial_id, desired.epoch) != (trial_id, epoch)
    )
