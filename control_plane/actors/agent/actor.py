"""The step of the agent actor, which owns the session epoch and the desired allocations of an
agent.
"""

import json
from dataclasses import dataclass
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.agent.availability import (
    changed_availability,
    changed_end,
    render_availability,
)
from control_plane.actors.agent.exclusions import (
    REASON_CHARACTERS_MAX,
    Exclusion,
    add_exclusion,
    present_exclusions,
)
from control_plane.actors.agent.machine_faults import MachineFault, restrict, update_faults
from control_plane.actors.agent.occupancy import Occupancy, next_occupancy
from control_plane.actors.messages.agent import (
    LOOPBACK,
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    AgentExcluded,
    AgentForgotten,
    AgentMessage,
    AgentUpgradeRequested,
    AllocationPlaced,
    AllocationRemoved,
    ExclusionEnded,
    FaultsReported,
    TunnelClosed,
    TunnelOpened,
)
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.records import OPEN, Availability
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.rows import agent_rows, user_rows
from control_plane.scheduling.agent_needs import agent_kind

AGENTS = agent_rows.AGENT.partition
"""The partition with the pool of each agent, by the agent's id."""
SESSIONS = agent_rows.SESSION.partition
"""The partition with the session of each agent, by the agent's id."""
TUNNELS_MAX = 64
"""The most open tunnels to an agent."""


def leases_partition(pool: str) -> str:
    """Return the partition with the leases of a pool's agents."""
    return agent_rows.LEASE.partition_of(pool)


@dataclass(frozen=True, slots=True)
class DesiredAllocation:
    """An allocation that the pool placed on the agent, and that the agent should run."""

    trial_id: int
    epoch: int
    """The epoch of the allocation."""
    slots: tuple[int, ...]
    """The ids of the agent's slots that the allocation holds."""
    node_rank: int = 0
    """The number of this agent among the allocation's nodes."""
    nodes: int = 1
    """The number of the allocation's nodes."""


@dataclass(frozen=True, slots=True)
class OpenTunnel:
    """A user's tunnel to ports of an allocation on the agent."""

    tunnel: str
    """The id of the tunnel."""
    trial_id: int
    epoch: int
    """The epoch of the allocation."""


@dataclass(frozen=True)
class AgentState:
    """The head of an agent."""

    agent: str
    """The id of the agent."""
    pool: str
    epoch: int
    """The number of the agent's session."""
    slots: tuple[tuple[int, str, str, str], ...]
    """The id, type, UUID and name of each slot."""
    enrolled_ms: int
    """The start of the session, in epoch ms."""
    version: str = ""
    """The version of the agent's software."""
    lost: bool = False
    """Whether the agent's session was declared lost."""
    revision: int = 1
    """A number that grows with every change of `desired`."""
    desired: tuple[DesiredAllocation, ...] = ()
    """The allocations that should run on the agent."""
    availability: Availability = OPEN
    """The availability that users set last. New sessions and losses do not change it."""
    label: str = ""
    """The label of the agent. Only jobs with this label run here."""
    address: str = LOOPBACK
    """The address at which trials on other agents reach trials on this agent."""
    ends_ms: int | None = None
    """The time at which the cloud takes the machine away, in epoch ms. None: no announcement. New
    sessions do not change it.
    """
    runtime: str = ""
    """The way in which the agent runs trials: `process` or `docker`. "": an older agent that does
    not report it.
    """
    tunnels: tuple[OpenTunnel, ...] = ()
    """The open tunnels to allocations of `desired`, in the order of their opening."""
    faults: tuple[MachineFault, ...] = ()
    """The present faults of the machine, as the agent reported them. A new session of the same
    version keeps the faults until its first report.
    """
    exclusions: tuple[Exclusion, ...] = ()
    """The exclusions of the machine from the pool. New sessions and losses do not change them."""
    installation: str = ""
    """The field `installation` of the last AgentEnrolled."""
    memory_mib: tuple[int, ...] = ()
    """The memory of each slot, in the order of `slots`. 0: unknown. Empty: all unknown."""
    only_user: str = ""
    """The field `only_user` of the last AgentEnrolled."""
    occupancy: Occupancy | None = None
    """The last report of the machine's use by people. None: nobody uses the machine."""
    code: str = ""
    """The digest of the agent's code. "": an agent that does not update itself."""
    upgrade: str = ""
    """The digest of the code that an admin requested for this agent last, or ""."""

    @property
    def effective_availability(self) -> Availability:
        """Return the availability for the scheduler: users' settings without faulty slots.

        An excluded machine and a machine that people use take no work.
        """
        return restrict(self.availability, self.faults, self.exclusions, self.occupancy)


def step(
    state: AgentState | None, message: AgentMessage, context: StepContext
) -> AgentState | None:
    """Apply a message to the state of an agent, and return the next state.

    An agent that never enrolled has no state. Return None for every message to such an agent except
    an enrollment.

    Raises:
        CommandRefused: not_found or conflict; see `_apply_setting`, `_open_tunnel` and
            `_refuse_other_installation`.
    """
    if isinstance(message, AgentEnrolled):
        _refuse_other_installation(state, message)
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
        case (
            AgentEnableRequested()
            | AgentDisableRequested()
            | FaultsReported()
            | AgentExcluded()
            | ExclusionEnded()
            | AgentUpgradeRequested()
        ):
            return _apply_command(state, message, context)
        case TunnelOpened() | TunnelClosed():
            return _apply_tunnel(state, message, context)
        case _:
            assert_never(message)


def fallback(state: AgentState | None, message: object, context: StepContext) -> AgentState | None:
    """Drop a message that the agent cannot process, and record the drop in the journal.

    Return `state` unchanged. The pool's audit repairs the consequences.
    """
    context.add_reason(f"{message_name(message)} could not be processed")
    return state


def _refuse_other_installation(state: AgentState | None, message: AgentEnrolled) -> None:
    """Refuse a second agent under the name of an agent with a session.

    The agents would otherwise end each other's sessions without end. An agent that restarts has the
    id of its work directory. A lost agent has no session. After a restore of the cluster's state,
    the incarnations differ.

    Raises:
        CommandRefused: conflict, if another installation has a session under this name.
    """
    if state is None or state.lost or not state.installation or not message.installation:
        return
    known, new = state.installation.split("/"), message.installation.split("/")
    if known[0] == new[0] and known != new:
        text = (
            f"another agent is connected as {message.agent}: choose another --name, or end the "
            "other agent and wait until the cluster counts it as lost"
        )
        raise CommandRefused("conflict", text)


def _enroll(state: AgentState | None, message: AgentEnrolled, context: StepContext) -> AgentState:
    """Begin a new session, and send the pool an AgentJoined. The reply is the session's epoch.

    The rows of the agent's pool, the session and the lease are written. Conditional writes of an
    earlier session then fail. The desired allocations and the availability of the previous session
    stay, but a lost session has no desired allocations.
    """
    epoch = 1 if state is None else state.epoch + 1
    availability = OPEN if state is None else state.availability
    # An older version of the agent reports no faults, and would never end a fault.
    is_same_version = state is not None and state.version == message.version
    faults = state.faults if state is not None and is_same_version else ()
    context.reply = epoch
    exclusions = () if state is None else present_exclusions(state.exclusions, context.now_ms)
    slots = tuple(slot[0] for slot in message.slots)
    occupied = None if state is None else state.occupancy
    occupancy = next_occupancy(occupied, message.occupancy, context.now_ms)
    open_slots = restrict(availability, faults, exclusions, occupancy)
    kind = agent_kind(message.slots, message.memory_mib, message.only_user)
    joined = AgentJoined(message.agent, epoch, slots, open_slots, message.label, kind)
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
        tunnels=() if state is None else state.tunnels,
        availability=availability,
        label=message.label,
        address=message.address,
        ends_ms=None if state is None else state.ends_ms,
        runtime=message.runtime,
        faults=faults,
        exclusions=exclusions,
        installation=message.installation,
        memory_mib=message.memory_mib,
        only_user=message.only_user,
        occupancy=occupancy,
        code=message.code,
        upgrade="" if state is None else state.upgrade,
    )


def _forget_session(state: AgentState, epoch: int, context: StepContext) -> None:
    """Remove the rows of a lost session: the agent's pool, the session, and the agent's token.

    Nothing is removed unless the session of this epoch was declared lost. The token is removed only
    if it belongs to this epoch. The reply is whether the session of this epoch is over. The head
    and the lease stay, so that the agent can enroll again.
    """
    context.reply = state.lost or state.epoch != epoch
    if not state.lost or state.epoch != epoch:
        return
    for partition in (AGENTS, SESSIONS):
        context.write_row(partition, state.agent, None)
    row = context.row(agent_rows.TOKEN_HOLDER.partition, state.agent)
    holder = json.loads(row.body or b"{}")
    if holder.get("epoch") == epoch:
        context.write_row(agent_rows.TOKEN_HOLDER.partition, state.agent, None, expected=row)
        context.write_row(user_rows.TOKEN.partition, holder["digest"], None)


def _fence(partition: str, agent: str, fields: dict[str, int], context: StepContext) -> None:
    """Replace `fields` in an agent's row, and keep all other fields. Create the row if needed.

    The partition contains a row for each agent: the sessions or a pool's leases. Conditional writes
    of an older session of the agent then fail. The commit fails if the row changes meanwhile.
    """
    row = context.row(partition, agent)
    before = json.loads(row.body or b"{}")
    context.write_row(partition, agent, json.dumps({**before, **fields}).encode(), expected=row)


def _apply_command(
    state: AgentState,
    message: AgentEnableRequested
    | AgentDisableRequested
    | FaultsReported
    | AgentExcluded
    | ExclusionEnded
    | AgentUpgradeRequested,
    context: StepContext,
) -> AgentState:
    """Apply an admin's command, a report of faults, or an exclusion. Raises as `_apply_setting`."""
    if isinstance(message, FaultsReported):
        return _apply_faults(state, message, context)
    if isinstance(message, AgentExcluded | ExclusionEnded):
        return _apply_exclusion(state, message, context)
    if isinstance(message, AgentUpgradeRequested):
        context.reply = state.agent
        return evolve(state, upgrade=message.code)
    return _apply_setting(state, message, context)


def _apply_setting(
    state: AgentState, message: AgentEnableRequested | AgentDisableRequested, context: StepContext
) -> AgentState:
    """Enable or disable the agent, or a single slot. The reply is the agent's id.

    If the availability changes, the pool gets an AgentAvailabilityChanged, unless the agent is
    lost. `ends_ms` is updated in any case. Enabling the whole agent ends all exclusions.

    Raises:
        CommandRefused: not_found, if the agent does not have the slot.
        CommandRefused: conflict, if a command would change the availability of a lost agent by
            disabling it.
    """
    context.reply = state.agent
    known = [slot[0] for slot in state.slots]
    if message.slot is not None and message.slot not in known:
        listed = ", ".join(map(str, known))
        text = f"agent {state.agent} has no slot {message.slot}; it has {listed}"
        raise CommandRefused("not_found", text)
    after = changed_availability(state.availability, message)
    state = evolve(state, ends_ms=changed_end(state.ends_ms, message))
    if isinstance(message, AgentEnableRequested) and message.slot is None and state.exclusions:
        context.add_reason("the exclusions of the machine are over")
        return _change_availability(
            state, evolve(state, availability=after, exclusions=()), context
        )
    if after == state.availability:
        return state
    if state.lost and isinstance(message, AgentDisableRequested):
        text = f"agent {state.agent} is lost: wait until it reconnects, then disable it"
        raise CommandRefused("conflict", text)
    context.add_reason(render_availability(after))
    return _change_availability(state, evolve(state, availability=after), context)


def _apply_faults(state: AgentState, message: FaultsReported, context: StepContext) -> AgentState:
    """Replace the faults and the occupancy of the machine. The reply is the agent's id.

    If the availability for the scheduler changes, the pool gets an AgentAvailabilityChanged. A
    report of an earlier session changes nothing, nor does a repeated report.
    """
    context.reply = state.agent
    if message.epoch != state.epoch or state.lost:
        return state
    faults = update_faults(state.faults, message.faults, context.now_ms)
    occupancy = next_occupancy(state.occupancy, message.occupancy, context.now_ms)
    if (faults, occupancy) == (state.faults, state.occupancy):
        return state
    if occupancy != state.occupancy:
        text = "nobody uses the machine any more" if occupancy is None else occupancy.reason
        context.add_reason(text)
    ended = [fault for fault in state.faults if fault not in faults]
    begun = [fault for fault in faults if fault not in state.faults]
    for word, changed in (("closed", begun), ("open again, no longer", ended)):
        for fault in changed:
            place = "the machine" if fault.slot is None else f"slot {fault.slot}"
            context.add_reason(f"{place} is {word}: {fault.reason}")
    return _change_availability(state, evolve(state, faults=faults, occupancy=occupancy), context)


def _apply_exclusion(
    state: AgentState, message: AgentExcluded | ExclusionEnded, context: StepContext
) -> AgentState:
    """Add an exclusion and set the timer of the end, or remove the exclusions that have ended.

    If the availability for the scheduler changes, the pool gets an AgentAvailabilityChanged. An
    exclusion whose end has passed is not added.
    """
    exclusions = present_exclusions(state.exclusions, context.now_ms)
    if isinstance(message, AgentExcluded) and message.until_ms > context.now_ms:
        reason = message.reason[:REASON_CHARACTERS_MAX]
        added = Exclusion(reason, context.now_ms, message.until_ms)
        exclusions = add_exclusion(exclusions, added)
        context.set_timer(message.until_ms, ExclusionEnded())
        context.add_reason(f"the machine takes no work: {reason}")
    if exclusions == state.exclusions:
        return state
    if state.exclusions and not exclusions:
        context.add_reason("the machine is no longer excluded")
    return _change_availability(state, evolve(state, exclusions=exclusions), context)


def _change_availability(before: AgentState, after: AgentState, context: StepContext) -> AgentState:
    """Return `after`, and send the pool a changed availability of a connected agent."""
    availability = after.effective_availability
    if not after.lost and availability != before.effective_availability:
        changed = AgentAvailabilityChanged(after.agent, after.epoch, availability)
        context.send(addresses.pool(after.pool), changed)
    return after


def _set_desired(state: AgentState, desired: tuple[DesiredAllocation, ...]) -> AgentState:
    """Replace the desired allocations, and increase the revision.

    Equal allocations change nothing. Tunnels to other allocations are closed.
    """
    if desired == state.desired:
        return state
    running = {(allocation.trial_id, allocation.epoch) for allocation in desired}
    kept = tuple(x for x in state.tunnels if (x.trial_id, x.epoch) in running)
    return evolve(state, desired=desired, tunnels=kept, revision=state.revision + 1)


def _apply_tunnel(
    state: AgentState, message: TunnelOpened | TunnelClosed, context: StepContext
) -> AgentState:
    """Open or close a tunnel. The reply is the tunnel's id. Raises as `_open_tunnel`."""
    context.reply = message.tunnel
    if isinstance(message, TunnelOpened):
        return _open_tunnel(state, message)
    return _set_tunnels(state, tuple(x for x in state.tunnels if x.tunnel != message.tunnel))


def _open_tunnel(state: AgentState, message: TunnelOpened) -> AgentState:
    """Add a tunnel to an allocation of the agent. A repeated message changes nothing.

    Raises:
        CommandRefused: conflict, if the allocation does not run here or the agent is lost, and if
            TUNNELS_MAX tunnels are open.
    """
    opened = OpenTunnel(message.tunnel, message.trial_id, message.epoch)
    if opened in state.tunnels:
        return state
    running = {(allocation.trial_id, allocation.epoch) for allocation in state.desired}
    if state.lost or (message.trial_id, message.epoch) not in running:
        text = f"allocation {message.trial_id}.{message.epoch} does not run on {state.agent}"
        raise CommandRefused("conflict", f"{text}; wait until the trial runs again, then try again")
    if len(state.tunnels) >= TUNNELS_MAX:
        text = f"{TUNNELS_MAX} tunnels to agent {state.agent} are open; close one of them first"
        raise CommandRefused("conflict", text)
    return _set_tunnels(state, (*state.tunnels, opened))


def _set_tunnels(state: AgentState, tunnels: tuple[OpenTunnel, ...]) -> AgentState:
    """Replace the open tunnels. Equal tunnels change nothing."""
    return state if tunnels == state.tunnels else evolve(state, tunnels=tunnels)


def _without_allocation(
    state: AgentState, trial_id: int, epoch: int
) -> tuple[DesiredAllocation, ...]:
    """Return the desired allocations without the allocation of this trial and epoch, if listed."""
    return tuple(
        desired
        for desired in state.desired
        if (desired.trial_id, desired.epoch) != (trial_id, epoch)
    )
