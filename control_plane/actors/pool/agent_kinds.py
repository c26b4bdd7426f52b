"""The kinds of a pool's agents: devices and users, stored once for all agents of a kind.

An agent in the pool's rows has only the number of its kind. Most pools have equal machines, so that
number 0, which an agent's row leaves out, is the first kind of a pool.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from control_plane.actors.step import StepContext
from control_plane.scheduling.agent_needs import NO_NEEDS, AgentKind, AgentNeeds, meets_needs
from control_plane.scheduling.model import ANY_KIND

AGENT_KINDS = "agent_kinds"
"""The name of the part with the kinds."""
KINDS_MAX = 64
"""The most kinds of a pool. The part is a single row of the table."""


@dataclass(frozen=True, slots=True)
class AgentKinds:
    """The kinds of a pool's agents. The index of a kind is its number."""

    kinds: tuple[AgentKind | None, ...] = ()
    """None is the kind of agents of older releases, which reported no kind."""


def number_of_kind(
    kind: AgentKind | None, find_used: Callable[[], Container[int]], context: StepContext
) -> int:
    """Return the number of a kind, and store a new kind. A kind without agents loses its number to
    a new kind.

    In a pool with KINDS_MAX kinds, the agents of all further kinds count as agents of older
    releases, whose kind is unknown.

    Args:
        find_used: returns the numbers of the kinds of all other agents. Only called for a new kind.
    """
    part = context.part(AGENT_KINDS, AgentKinds)
    # Agents that joined before the part existed have the number 0.
    known = part.kinds if part is not None else (None,)
    for number, other in enumerate(known):
        if other == kind and (part is not None or kind is None):
            return number
    used = find_used()
    free_numbers = (number for number in range(len(known)) if number not in used)
    number = next(free_numbers, len(known))
    if number >= KINDS_MAX - 1 and kind is not None:
        # The last number is left for agents of unknown kinds.
        return number_of_kind(None, find_used, context)
    kinds = (*known[:number], kind, *known[number + 1 :])
    context.write_part(AGENT_KINDS, AgentKinds(kinds))
    return number


class RefusedKinds:
    """The kinds of a pool's agents that do not meet needs. The part is read on first use."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._refused: dict[AgentNeeds, frozenset[int]] = {NO_NEEDS: ANY_KIND}

    def __call__(self, needs: AgentNeeds) -> frozenset[int]:
        """Return the numbers of the kinds that do not meet the needs. The result is cached."""
        if needs not in self._refused:
            part = self._context.part(AGENT_KINDS, AgentKinds)
            kinds = part.kinds if part is not None else (None,)
            self._refused[needs] = frozenset(
                number for number, kind in enumerate(kinds) if not meets_needs(kind, needs)
            )
        return self._refused[needs]
