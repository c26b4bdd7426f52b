"""Which of an agent's slots users have opened for work."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Availability:
    """Which slots of an agent take new work, as users have set it.

    Not `enabled`: none of them. `draining`: what runs there may finish, else it is asked to leave.
    `disabled`: ids of slots that take no work whatever the agent does, and whose work has to leave.
    """

    enabled: bool = True
    draining: bool = False
    disabled: tuple[int, ...] = ()

    def is_slot_open(self, slot: int) -> bool:
        """Whether the slot may be given to an allocation."""
        return self.enabled and slot not in self.disabled


OPEN = Availability()
