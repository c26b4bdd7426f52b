"""Agents as the API shows them."""

from collections import Counter
from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.agent import AGENTS, AgentState
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code
from control_plane.api.pages import Page, PageAsked
from control_plane.api.services import Services
from control_plane.api.views.rows import all_rows, scanned


class SlotView(Body):
    """`allocation` is who holds the slot, null for a free one. A slot that is enabled takes work
    where its agent does.
    """

    id: int
    type: str
    uuid: str
    name: str
    allocation: str | None
    enabled: bool


class Agent(Body):
    """See docs/api.md."""

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


def found(services: Services, agent_id: str) -> AgentState | None:
    """The agent's head, or None."""
    state = services.engine.state(addresses.agent(agent_id))
    assert state is None or isinstance(state, AgentState)
    return state


def agent(services: Services, agent_id: str) -> Agent:
    """One agent; ApiError not_found."""
    state = found(services, agent_id)
    if state is None:
        raise ApiError(Code.NOT_FOUND, f"there is no agent {agent_id}")
    return _shown(state)


def agents(services: Services, asked: PageAsked) -> Page[Agent]:
    """All agents by name."""
    rows, cursor = scanned(services.table, AGENTS, asked)
    states = [found(services, row.key.sort) for row in rows]
    items = [_shown(state) for state in states if state is not None]
    return Page(items=items, next_cursor=cursor)


def sizes_in_pool(services: Services, pool: str) -> dict[str, Counter[int]]:
    """Of each label how many living agents of the pool have how many slots, those that are disabled
    for now too.
    """
    rows = all_rows(services.table, AGENTS, " ", "\x7f")
    names = [row.key.sort for row in rows if row.body.decode() == pool]
    sizes: dict[str, Counter[int]] = {}
    for state in services.engine.states([addresses.agent(name) for name in names]):
        if isinstance(state, AgentState) and not state.lost:
            sizes.setdefault(state.label, Counter())[len(state.slots)] += 1
    return sizes


def _shown(state: AgentState) -> Agent:
    held = {
        slot: f"{desired.trial_id}.{desired.epoch}"
        for desired in state.desired
        for slot in desired.slots
    }
    given = state.availability
    slots = [
        SlotView(
            id=number,
            type=kind,
            uuid=uuid,
            name=name,
            allocation=held.get(number),
            enabled=number not in given.disabled,
        )
        for number, kind, uuid, name in state.slots
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
        enabled=given.enabled,
        draining=given.draining,
    )
