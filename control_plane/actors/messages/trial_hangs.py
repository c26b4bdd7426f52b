"""The messages to a trial about a hanging run."""

from dataclasses import dataclass

PLACE_CHARACTERS_MAX = 160
PLACES_MAX = 128
"""The most processes in a report of stacks."""


@dataclass(frozen=True, slots=True)
class HangReported:
    """A node's run has neither reported nor printed anything for too long, or works again."""

    epoch: int
    """The epoch of the allocation."""
    silent_ms: int
    """The time in ms since the last output. 0: the run works again."""
    timeout_ms: int = 0
    """The time in ms after which the silence counts as a hang."""


@dataclass(frozen=True, slots=True)
class StacksReported:
    """A node has printed the stacks of a hanging run's processes to the log."""

    epoch: int
    """The epoch of the allocation."""
    places: tuple[tuple[int, str], ...]
    """The rank of each process, and the place in the code of the process's main thread."""


@dataclass(frozen=True, slots=True)
class HangTimeOver:
    """Timer: all nodes had time to print the stacks of a hanging run."""

    epoch: int
    """The epoch of the allocation."""
    number: int
    """The number of the hang in the allocation."""
