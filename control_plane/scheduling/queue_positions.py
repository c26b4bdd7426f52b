"""Positions in the queue of a pool: moving jobs ahead of and behind others, and their priorities.

A position is a decimal number of microseconds. A job begins at the time of its submission; one that
is moved gets the middle between its new neighbours, so that no other job has to change. The lower a
priority's number the more important it is, and positions only count among equal priorities.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from math import isfinite
from types import MappingProxyType

PRIORITIES = range(1, 100)
# The position before the first job; behind the last it is the time of the move.
FIRST_POSITION = Decimal(1)
UNIT = Decimal(1)
# Each move between two neighbours may need one more digit.
_DIGITS_MAX = 300
_EXACT = Context(prec=_DIGITS_MAX + 60, rounding=ROUND_HALF_EVEN)
_SMALLEST_STEP = Decimal((0, (1,), -_DIGITS_MAX))

# The changes of a job's place in the queue that each scheduler takes notice of.
SUPPORTED_OPERATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "priority": ("priority", "ahead-of", "behind-of"),
        "fair_share": ("weight",),
        "round_robin": (),
    }
)


class PositionError(ValueError):
    """A change of the queue that cannot be made. The message is for the user."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job's place in its pool's queue."""

    group: int
    submitted_ms: int
    priority: int
    position: Decimal

    @property
    def rank(self) -> tuple[int, Decimal, int, int]:
        """The sort key of the queue."""
        return (self.priority, self.position, self.submitted_ms, self.group)


def initial_position(submitted_ms: int) -> Decimal:
    """The position of a job that nobody moved."""
    return Decimal(submitted_ms * 1000)


def queue_order(standings: Iterable[QueueEntry]) -> list[QueueEntry]:
    """The entries in the order in which jobs are served."""
    return sorted(standings, key=lambda one: one.rank)


def jobs_ahead(standings: Iterable[QueueEntry]) -> dict[int, int]:
    """The number of jobs before each, running ones included."""
    return {one.group: place for place, one in enumerate(queue_order(standings))}


def moved_entry(
    standings: Iterable[QueueEntry], group: int, anchor: int, *, ahead: bool, now_ms: int
) -> QueueEntry:
    """The job's entry once it was moved directly `ahead` of the anchor, or behind it; unchanged if
    it is there already. It takes the anchor's priority.

    PositionError: one of them is not in the queue, or there is no number left between neighbours.
    """
    queue = queue_order(standings)
    places = {one.group: place for place, one in enumerate(queue)}
    for wanted in (group, anchor):
        if wanted not in places:
            raise PositionError(f"job {wanted} not found")
    job, beside = queue[places[group]], queue[places[anchor]]
    place = places[anchor] + (-1 if ahead else 1)
    neighbour = queue[place] if 0 <= place < len(queue) else None
    if group == anchor or neighbour == job:
        return job
    limit = FIRST_POSITION if ahead else initial_position(now_ms)
    other = limit if neighbour is None else neighbour.position
    if job.priority != beside.priority:
        job = replace(job, priority=beside.priority, position=initial_position(job.submitted_ms))
    position = _position_between(job.position, beside.position, other)
    if position is None:
        raise PositionError(
            "unable to compute a new job position: no position is left between "
            f"{beside.position:f} of"
            f" job {anchor} and {other:f}; move job {group} elsewhere, or change a priority"
        )
    return replace(job, position=_position_on_side(position, beside.position, ahead))


def reprioritised_entry(
    standing: QueueEntry, priority: int, *, keep_position: bool = False
) -> QueueEntry:
    """The entry with another priority. The position is that of the submission again, unless
    `keep_position`, as within a batch of changes; the same priority changes nothing.
    """
    check_priority(priority)
    if priority == standing.priority:
        return standing
    kept = standing.position if keep_position else initial_position(standing.submitted_ms)
    return replace(standing, priority=priority, position=kept)


def check_priority(priority: int) -> None:
    """Raise PositionError unless a job may have this priority."""
    if priority not in PRIORITIES:
        raise PositionError(f"priority must be between 1 and 99, not {priority}")


def check_weight(weight: float) -> None:
    """Raise PositionError unless a job may have this weight."""
    if not (weight > 0 and isfinite(weight)):
        raise PositionError(f"weight must be greater than 0, not {weight:g}")


def check_operation_supported(operation: str, scheduler: str) -> None:
    """Raise PositionError if the scheduler ignores the operation; see SUPPORTED_OPERATIONS."""
    if operation not in SUPPORTED_OPERATIONS[scheduler]:
        heeding = next(kind for kind, heeded in SUPPORTED_OPERATIONS.items() if operation in heeded)
        raise PositionError(
            f"unable to perform operation on resource pool with {scheduler}: {operation} needs a"
            f" pool with the {heeding} scheduler"
        )


def _position_between(position: Decimal, anchor: Decimal, other: Decimal) -> Decimal | None:
    """The position if it lies between the two, else their middle; None if there is none."""
    if min(anchor, other) < position < max(anchor, other):
        return position
    middle = _EXACT.divide(_EXACT.add(anchor, other), Decimal(2))
    rounded = _EXACT.quantize(middle, _SMALLEST_STEP)
    middle = middle if middle == rounded else rounded
    return None if middle in (anchor, other) else middle


def _position_on_side(position: Decimal, anchor: Decimal, ahead: bool) -> Decimal:
    """The position, moved by a unit past a neighbour of another priority, which may be anywhere."""
    if ahead:
        return position if position < anchor else _EXACT.subtract(anchor, UNIT)
    return position if position > anchor else _EXACT.add(anchor, UNIT)
