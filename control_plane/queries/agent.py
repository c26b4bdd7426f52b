"""Agents: their states, and the answers that describe them."""

from collections import Counter
from collections.abc import Container
from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AGENTS, AgentState
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest
from control_plane.queries.row_pages import read_row_page, read_rows
from control_plane.services import Services

PROCESS_RUNTIME = "process"
"""The runtime of agents that have no containers."""


class SlotView(Answer):
    """A slot. `allocation` is the one that holds it, null for a free slot. A slot that is enabled
    takes work where its agent does.
    """

    id: int
    type: str
    uuid: str
    name: str
    allocation: str | None
    enabled: bool


class Agent(Answer):
    """An agent with its slots; docs/api.md has the fields."""

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


def find_agent(services: Services, agent_id: str) -> AgentState | None:
    """Load the agent's state, or None."""
    state = services.engine.read_state(addresses.agent(agent_id))
    assert state is None or isinstance(state, AgentState)
    return state


def describe_agent(services: Services, agent_id: str) -> Agent:
    """Describe one agent; RequestError not_found."""
    state = find_agent(services, agent_id)
    if state is None:
        raise RequestError(Code.NOT_FOUND, f"there is no agent {agent_id}")
    return _agent_answer(state)


def list_agents(services: Services, page: PageRequest) -> Page[Agent]:
    """List all agents by name."""
    rows, cursor = read_row_page(services.table, AGENTS, page)
    states = services.engine.read_states([addresses.agent(row.key.sort) for row in rows])
    items = [_agent_answer(state) for state in states if isinstance(state, AgentState)]
    return Page(items=items, next_cursor=cursor)


def agent_sizes_in_pool(
    services: Services, pool: str, without: Container[str] = ()
) -> dict[str, Counter[int]]:
    """The sizes of the pool's living agents, disabled ones too, by label: how many have how many
    slots. The agents `without` do not count.
    """
    rows = read_rows(services.table, AGENTS, " ", "\x7f")
    inside = [row.key.sort for row in rows if row.body.decode() == pool]
    names = [name for name in inside if name not in without]
    sizes: dict[str, Counter[int]] = {}
    for state in services.engine.read_states([addresses.agent(name) for name in names]):
        if isinstance(state, AgentState) and not state.lost:
            sizes.setdefault(state.label, Counter())[len(state.slots)] += 1
    return sizes


def process_devices_in_pool(services: Services, pool: str, label: str) -> set[str]:
    """The types of the slots of the pool's living agents with that label, `cpu` also where there
    are none, if all of these agents run trials as processes; empty otherwise, and without any.
    """
    rows = read_rows(services.table, AGENTS, " ", "\x7f")
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
    held = {
        slot: f"{desired.trial_id}.{desired.epoch}"
        for desired in state.desired
        for slot in desired.slots
    }
    availability = state.availability
    slots = [
        SlotView(
            id=number,
            type=slot_type,
            uuid=uuid,
            name=name,
            allocation=held.get(number),
            enabled=number not in availability.disabled,
        )
        for number, slot_type, uuid, name in state.slots
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
    )
