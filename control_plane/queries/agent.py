"""Queries of agents: states, answers, and the sizes and devices of a pool's agents."""

from collections import Counter
from collections.abc import Container
from itertools import chain, repeat
from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AGENTS, AgentState
from control_plane.actors.agent.occupancy import Occupancy
from control_plane.agents.agent_code import agent_code
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.scheduling.agent_needs import NO_NEEDS, AgentNeeds, agent_kind, meets_needs
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from detcloud.shared.plurals import count_text
from detcloud.shared.version import __version__

KINDS_MAX = 5
"""The most kinds of machines in a message."""
PROCESS_RUNTIME = "process"
"""The runtime of agents that run trials as processes, without containers."""


class SlotView(Answer):
    """A slot of an agent.

    `allocation` is the id of the allocation that holds the slot, or null. `allocations` has the ids
    of all allocations on the slot, several on a shared slot. An `enabled` slot accepts work only
    while its agent is enabled too.
    """

    id: int
    type: str
    uuid: str
    name: str
    allocation: str | None
    allocations: list[str]
    enabled: bool
    memory_mib: int | None
    """The memory of the device. Null: unknown."""


class FaultView(Answer):
    """A fault of an agent's machine. `slot` is null for a fault of the whole machine."""

    slot: int | None
    reason: str
    since_ms: int


class ExclusionView(Answer):
    """An exclusion of an agent's machine from the pool, with the times of the begin and the end."""

    reason: str
    since_ms: int
    until_ms: int


class OccupancyView(Answer):
    """The use of an agent's machine by people: the reason, the begin, and the rule for trials."""

    reason: str
    since_ms: int
    running: Literal["finish", "checkpoint"]


class Agent(Answer):
    """An agent and the agent's slots; docs/api.md describes the fields."""

    id: str
    name: str
    resource_pool: str
    label: str
    state: Literal["ALIVE", "LOST"]
    slots: list[SlotView]
    version: str
    enrolled_ms: int
    enabled: bool
    draining: bool
    faults: list[FaultView]
    exclusions: list[ExclusionView]
    occupancy: OccupancyView | None
    behind: bool
    updatable: bool


def find_agent(services: Services, agent_id: str) -> AgentState | None:
    """Load the agent's state, also of a lost agent. Return None if the agent does not exist."""
    state = services.engine.read_state(addresses.agent(agent_id))
    assert state is None or isinstance(state, AgentState)
    return state


def describe_agent(services: Services, agent_id: str) -> Agent:
    """Return an agent and the agent's slots. A lost agent is returned with the state LOST.

    Raises:
        RequestError: not_found, if the agent does not exist.
    """
    state = find_agent(services, agent_id)
    if state is None:
        raise RequestError(Code.NOT_FOUND, f"there is no agent {agent_id}")
    return _agent_answer(state)


def list_agents(services: Services, page: PageRequest) -> Page[Agent]:
    """Return a page of all agents, lost agents included, sorted by name.

    An agent that is lost for long has no row in the list and is left out.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    rows, cursor = read_row_page(services.table, AGENTS, page)
    states = services.engine.read_states([addresses.agent(row.key.sort) for row in rows])
    items = [_agent_answer(state) for state in states if isinstance(state, AgentState)]
    return Page(items=items, next_cursor=cursor)


def agent_sizes_in_pool(
    services: Services,
    pool: str,
    without: Container[str] = (),
    needs: AgentNeeds = NO_NEEDS,
) -> dict[str, Counter[int]]:
    """Count the pool's agents by label and number of slots.

    Lost agents, the agents in `without` and agents that do not meet the needs are not counted;
    disabled agents are. The rows of all agents of the cluster are read.

    Returns:
        For each label, the number of agents with each number of slots. Empty for a pool without
        agents.
    """
    rows = read_rows(services.table, AGENTS)
    inside = [row.key.sort for row in rows if row.body.decode() == pool]
    names = [name for name in inside if name not in without]
    sizes: dict[str, Counter[int]] = {}
    for state in services.engine.read_states([addresses.agent(name) for name in names]):
        if isinstance(state, AgentState) and not state.lost and _meets(state, needs):
            sizes.setdefault(state.label, Counter())[len(state.slots)] += 1
    return sizes


def _meets(state: AgentState, needs: AgentNeeds) -> bool:
    """Return whether an agent meets the needs of a job."""
    return meets_needs(agent_kind(state.slots, state.memory_mib, state.only_user), needs)


def machines_text(services: Services, pool: str, label: str) -> str:
    """Return the machines of a pool with a label, to append to a message.

    For example "; the pool has 2 agents with 8 NVIDIA H100, 1 agent with 1 NVIDIA RTX 4090". Lost
    agents are left out. Return "" without agents. The rows of all agents of the cluster are read.
    """
    rows = read_rows(services.table, AGENTS)
    names = [row.key.sort for row in rows if row.body.decode() == pool]
    kinds = Counter(
        _devices_text(state)
        for state in services.engine.read_states([addresses.agent(name) for name in names])
        if isinstance(state, AgentState) and not state.lost and state.label == label
    )
    shown = [f"{count_text(n, 'agent')} with {kind}" for kind, n in kinds.most_common(KINDS_MAX)]
    others = ["others"] if len(kinds) > KINDS_MAX else []
    return f"; the pool has {', '.join(shown + others)}" if shown else ""


def _devices_text(state: AgentState) -> str:
    """Return the names of an agent's devices with counts, for example `8 NVIDIA H100`."""
    names = Counter(name or kind for _, kind, _, name in state.slots)
    return " and ".join(f"{count} {name}" for name, count in names.items()) or "no slots"


def process_devices_in_pool(services: Services, pool: str, label: str) -> set[str]:
    """Return the slot types of the pool's agents with a label, if all run trials as processes.

    Lost agents are ignored. Empty if no agent has the label, or if any of the agents runs trials in
    containers or does not report how. `{"cpu"}` if the agents have no slots.
    """
    rows = read_rows(services.table, AGENTS)
    names = [row.key.sort for row in rows if row.body.decode() == pool]
    states = [
        state
        for state in services.engine.read_states([addresses.agent(name) for name in names])
        if isinstance(state, AgentState) and not state.lost and state.label == label
    ]
    if any(state.runtime != PROCESS_RUNTIME for state in states):
        return set()
    devices = {device for state in states for _, device, _, _ in state.slots}
    return devices or ({"cpu"} if states else set())


def _agent_answer(state: AgentState) -> Agent:
    """Return the answer for an agent. A slot shows the allocation that is to run there, if any."""
    allocations: dict[int, list[str]] = {}
    for desired in state.desired:
        for slot in desired.slots:
            allocations.setdefault(slot, []).append(f"{desired.trial_id}.{desired.epoch}")
    availability = state.availability
    slots = [
        SlotView(
            id=number,
            type=slot_type,
            uuid=uuid,
            name=name,
            allocation=next(iter(allocations.get(number, ())), None),
            allocations=allocations.get(number, []),
            enabled=number not in availability.disabled,
            memory_mib=memory or None,
        )
        for (number, slot_type, uuid, name), memory in zip(
            state.slots, chain(state.memory_mib, repeat(0)), strict=False
        )
    ]
    return Agent(
        id=state.agent,
        name=state.agent,
        resource_pool=state.pool,
        label=state.label,
        state="LOST" if state.lost else "ALIVE",
        slots=slots,
        version=state.version,
        enrolled_ms=state.enrolled_ms,
        enabled=availability.enabled,
        draining=availability.draining,
        faults=[
            FaultView(slot=fault.slot, reason=fault.reason, since_ms=fault.since_ms)
            for fault in state.faults
        ],
        exclusions=[
            ExclusionView(reason=known.reason, since_ms=known.since_ms, until_ms=known.until_ms)
            for known in state.exclusions
        ],
        occupancy=_occupancy_answer(state.occupancy),
        behind=_is_behind(state),
        updatable=bool(state.code),
    )


def _occupancy_answer(occupancy: Occupancy | None) -> OccupancyView | None:
    if occupancy is None:
        return None
    return OccupancyView(
        reason=occupancy.reason,
        since_ms=occupancy.since_ms,
        running="checkpoint" if occupancy.checkpoints else "finish",
    )


def _is_behind(state: AgentState) -> bool:
    """Return whether the agent runs other code than this cluster has.

    Agents that do not update themselves report no digest, so that their release is compared.
    """
    if state.code:
        return state.code != agent_code().sha256
    return state.version not in ("", __version__)
