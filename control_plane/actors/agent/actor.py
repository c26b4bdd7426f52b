"""The step of the agent actor: its session's epoch and the allocations that belong on it."""

import json
from dataclasses import dataclass, replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.agent.token_rows import TOKEN_HOLDERS, TOKENS
from control_plane.actors.messages.agent import (
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
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.records import OPEN, Availability
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve

AGENTS = "agents"
SESSIONS = "sessions"


def leases_partition(pool: str) -> str:
    """The partition of a pool's leases, one row for each agent."""
    return f"leases#{pool}"


@dataclass(frozen=True, slots=True)
class DesiredAllocation:
    """An allocation that belongs on the agent, as node `node_rank` of `nodes`."""

    trial_id: int
    epoch: int
    slots: tuple[int, ...]
    node_rank: int = 0
    nodes: int = 1


@dataclass(frozen=True)
class AgentState:
    """The head of an agent. `revision` grows with every change of `desired`; `slots`, `address` and
    `runtime` as in AgentEnrolled.

    `availability` is as users set it last: it outlives sessions and losses, as does `ends_ms`, when
    the machine is taken away, where the cluster was told of that.
    """

    agent: str
    pool: str
    epoch: int
    slots: tuple[tuple[int, str, str, str], ...]
    enrolled_ms: int
    version: str = ""
    lost: bool = False
    revision: int = 1
    desired: tuple[DesiredAllocation, ...] = ()
    availability: Availability = OPEN
    label: str = ""
    address: str = LOOPBACK
    ends_ms: int | None = None
    runtime: str = ""


def step(
    state: AgentState | None, message: AgentMessage, context: StepContext
) -> AgentState | None:
    """Apply one message."""
    if isinstance(message, AgentEnrolled):
        return _enroll(state, message, context)
    if state is None:
        return None
    match message:
        case AllocationPlaced(trial_id, epoch, slots, node_rank, nodes):
            placed = DesiredAllocation(trial_id, epoch, slots, node_rank, nodes)
            return _set_desired(state, (*_without_allocation(state, trial_id, epoch), placed))
        case AllocationRemoved(trial_id, epoch):
            return _set_desired(state, _without_allocation(state, trial_id, epoch))
        case AgentDeclaredLost(epoch):
            if epoch != state.epoch:
                return state
            return _set_desired(evolve(state, lost=True), ())
        case AgentForgotten(epoch):
            _forget_session(state, epoch, context)
            return state
        case AgentEnableRequested() | AgentDisableRequested():
            return _apply_command(state, message, context)
        case _:
            assert_never(message)


def fallback(state: AgentState | None, message: object, context: StepContext) -> AgentState | None:
    """Drop a message that the agent cannot process; the pool's audit finds what is missing."""
    context.add_reason(f"{message_name(message)} could not be processed")
    return state


def _enroll(state: AgentState | None, message: AgentEnrolled, context: StepContext) -> AgentState:
    """Begin a new session. Allocations of the session before still belong on the agent, unless it
    was given up.
    """
    epoch = 1 if state is None else state.epoch + 1
    availability = OPEN if state is None else state.availability
    context.reply = epoch
    slots = tuple(slot[0] for slot in message.slots)
    joined = AgentJoined(message.agent, epoch, slots, availability, message.label)
    context.send(addresses.pool(message.pool), joined)
    context.write_row(AGENTS, message.agent, message.pool.encode())
    _fence(SESSIONS, message.agent, {"epoch": epoch, "call": 0}, context)
    lease = {"epoch": epoch, "renewed_ms": context.now_ms, "lost": False}
    _fence(leases_partition(message.pool), message.agent, lease, context)
    return AgentState(
        agent=message.agent,
        pool=message.pool,
        epoch=epoch,
        slots=message.slots,
        enrolled_ms=context.now_ms,
        version=message.version,
        revision=1 if state is None else state.revision + 1,
        desired=() if state is None else state.desired,
        availability=availability,
        label=message.label,
        address=message.address,
        ends_ms=None if state is None else state.ends_ms,
        runtime=message.runtime,
    )


def _forget_session(state: AgentState, epoch: int, context: StepContext) -> None:
    """Remove the rows by which others find the agent and its session. The head stays, for an agent
    that enrolls again.
    """
    context.reply = state.lost or state.epoch != epoch
    if not state.lost or state.epoch != epoch:
        return
    for partition in (AGENTS, SESSIONS):
        context.write_row(partition, state.agent, None)
    row = context.row(TOKEN_HOLDERS, state.agent)
    holder = json.loads(row.body or b"{}")
    if holder.get("epoch") == epoch:
        context.write_row(TOKEN_HOLDERS, state.agent, None, expected=row)
        context.write_row(TOKENS, holder["digest"], None)


def _fence(partition: str, agent: str, fields: dict[str, int], context: StepContext) -> None:
    """Write the new epoch into a row of the agent, so that a conditional write of an older session
    fails.
    """
    row = context.row(partition, agent)
    before = json.loads(row.body or b"{}")
    context.write_row(partition, agent, json.dumps({**before, **fields}).encode(), expected=row)


def _apply_command(
    state: AgentState, message: AgentEnableRequested | AgentDisableRequested, context: StepContext
) -> AgentState:
    """Enable or disable the agent, or one of its slots; the reply is the agent's name."""
    context.reply = state.agent
    known = [slot[0] for slot in state.slots]
    if message.slot is not None and message.slot not in known:
        listed = ", ".join(map(str, known))
        text = f"agent {state.agent} has no slot {message.slot}; it has {listed}"
        raise CommandRefused("not_found", text)
    after = _changed_availability(state.availability, message)
    state = evolve(state, ends_ms=_changed_end(state, message))
    if after == state.availability:
        return state
    if state.lost and isinstance(message, AgentDisableRequested):
        text = f"agent {state.agent} is lost: wait until it reconnects, then disable it"
        raise CommandRefused("conflict", text)
    context.add_reason(_render_availability(after))
    if not state.lost:
        changed = AgentAvailabilityChanged(state.agent, state.epoch, after)
        context.send(addresses.pool(state.pool), changed)
    return evolve(state, availability=after)


def _changed_end(
    state: AgentState, message: AgentEnableRequested | AgentDisableRequested
) -> int | None:
    """The time at which the machine is taken away; enabling the whole agent clears it."""
    if isinstance(message, AgentEnableRequested):
        return state.ends_ms if message.slot is not None else None
    return state.ends_ms if message.ends_ms is None else message.ends_ms


def _changed_availability(
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


def _render_availability(availability: Availability) -> str:
    words = "enabled" if availability.enabled else "disabled"
    if availability.draining:
        words = "draining"
    closed = ", ".join(map(str, availability.disabled))
    return f"the agent is {words}" + (f", without slot {closed}" if closed else "")


def _set_desired(state: AgentState, desired: tuple[DesiredAllocation, ...]) -> AgentState:
    if desired == state.desired:
        return state
    return evolve(state, desired=desired, revision=state.revision + 1)


def _without_allocation(
    state: AgentState, trial_id: int, epoch: int
) -> tuple[DesiredAllocation, ...]:
    return tuple(
        desired
        for desired in state.desired
        if (desired.trial_id, desired.epoch) != (trial_id, epoch)
    )
