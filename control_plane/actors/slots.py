"""The slots of one agent and who holds them, as the pool keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from control_plane.actors.ordered import Ordered

AGENTS_PER_PART = 16


@dataclass(frozen=True, slots=True)
class AgentSlots:
    """Slot ids of the agent's session `epoch`, and the ids that each running allocation holds."""

    epoch: int
    slots: tuple[int, ...]
    running: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def free(self) -> tuple[int, ...]:
        """Ids that nobody holds, in order."""
        held = {slot for slots in self.running.values() for slot in slots}
        return tuple(slot for slot in self.slots if slot not in held)

    def placing(self, allocation: str, count: int) -> "AgentSlots":
        """With `count` free slots given to the allocation."""
        return replace(self, running={**self.running, allocation: self.free[:count]})

    def releasing(self, allocation: str) -> "AgentSlots":
        """Without the allocation."""
        kept = {name: slots for name, slots in self.running.items() if name != allocation}
        return replace(self, running=kept)


class Agents:
    """The pool's agents by name, an ordered map in parts."""

    def __init__(self, ordered: Ordered) -> None:
        self._ordered = ordered

    def get(self, name: str) -> AgentSlots | None:
        """The slots of an agent, or None."""
        found = self._ordered.get(name)
        return None if found is None else _parsed(found)

    def items(self) -> list[tuple[str, AgentSlots]]:
        """All agents, by name."""
        return [(name, _parsed(value)) for name, value in self._ordered.items()]

    def put(self, name: str, slots: AgentSlots) -> None:
        """Writes the slots of an agent."""
        self._ordered.put(name, [slots.epoch, slots.slots, slots.running])

    def remove(self, name: str) -> None:
        """Forgets an agent."""
        self._ordered.remove(name)


def _parsed(value: object) -> AgentSlots:
    assert isinstance(value, list | tuple)
    epoch, slots, running = value
    return AgentSlots(epoch, tuple(slots), {name: tuple(held) for name, held in running.items()})
