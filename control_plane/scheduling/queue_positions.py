"""Positions in the queue of a pool, and changes of positions, priorities and weights.

A position is a decimal number of microseconds. A job's first position is the time of its
submission. A moved job gets the middle between its new neighbours, so that no other job changes.
Positions only matter among jobs of equal priority. A lower number is a more important priority.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from math import isfinite
from types import MappingProxyType

PRIORITIES = range(1, 100)
FIRST_POSITION = Decimal(1)
"""The limit before the first job. The limit behind the last job is the time of the move."""
UNIT = Decimal(1)
# Each move between two neighbours may need another digit.
_DIGITS_MAX = 300
"""The maximum number of decimal places of a position."""
_EXACT = Context(prec=_DIGITS_MAX + 60, rounding=ROUND_HALF_EVEN)
_SMALLEST_STEP = Decimal((0, (1,), -_DIGITS_MAX))

SUPPORTED_OPERATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "priority": ("priority", "ahead-of", "behind-of", "place"),
        "fair_share": ("weight",),
        "round_robin": (),
    }
)
"""The changes to a job's place in the queue that each scheduler supports."""


class PositionError(ValueError):
    """A change of the queue that is not possible. The message is for the user."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job's place in the queue of a pool."""

    group: int
    """The experiment id of the job."""
    submitted_ms: int
    """The time of the submission, in epoch ms."""
    priority: int
    """The priority, 1 to 99. Smaller numbers are more important."""
    position: Decimal
    """The position among the jobs of this priority. Smaller numbers come first."""

    @property
    def rank(self) -> tuple[int, Decimal, int, int]:
        """The sort key of the queue."""
        return (self.priority, self.position, self.submitted_ms, self.group)


def initial_position(submitted_ms: int) -> Decimal:
    """Return the position of a job that was never moved: the time of submission in microseconds."""
    return Decimal(submitted_ms * 1000)


def queue_order(entries: Iterable[QueueEntry]) -> list[QueueEntry]:
    """Return the entries in the order in which the jobs are served: by priority, position,
    submission and id.
    """
    return sorted(entries, key=lambda entry: entry.rank)


def jobs_ahead(entries: Iterable[QueueEntry]) -> dict[int, int]:
    """Return the number of jobs ahead of each job, including running jobs, by experiment id."""
    return {entry.group: place for place, entry in enumerate(queue_order(entries))}


def moved_entry(
    entries: Iterable[QueueEntry], group: int, anchor: int, *, ahead: bool, now_ms: int
) -> QueueEntry:
    """Return the job's entry after a move directly ahead of the anchor or directly behind the
    anchor.

    The position is between the anchor and its neighbour on this side. The job also gets the
    anchor's priority. Return the entry unchanged if the job is already there, whatever its
    priority, and if the job is the anchor itself. No entry of another job changes.

    Args:
        entries: all jobs of the queue, in any order.
        group: the job to move.
        anchor: the other job.
        ahead: whether to move the job ahead of the anchor instead of behind it.
        now_ms: the present time in epoch ms, the limit behind the last job.

    Raises:
        PositionError: one of the jobs is not in the queue, or no number between the new neighbours
            is left.
    """
    queue = queue_order(entries)
    places = {entry.group: place for place, entry in enumerate(queue)}
    for required in (group, anchor):
        if required not in places:
            raise PositionError(f"job {required} not found")
    job, anchor_entry = queue[places[group]], queue[places[anchor]]
    place = places[anchor] + (-1 if ahead else 1)
    neighbour = queue[place] if 0 <= place < len(queue) else None
    if group == anchor or neighbour == job:
        return job
    limit = FIRST_POSITION if ahead else initial_position(now_ms)
    other = limit if neighbour is None else neighbour.position
    if job.priority != anchor_entry.priority:
        initial = initial_position(job.submitted_ms)
        job = replace(job, priority=anchor_entry.priority, position=initial)
    position = _position_between(job.position, anchor_entry.position, other)
    if position is None:
        raise PositionError(
            "unable to compute a new job position: no position is left between "
            f"{anchor_entry.position:f} of"
            f" job {anchor} and {other:f}; move job {group} elsewhere, or change a priority"
        )
    return replace(job, position=_position_on_side(position, anchor_entry.position, ahead))


def reprioritised_entry(
    entry: QueueEntry, priority: int, *, keep_position: bool = False
) -> QueueEntry:
    """Return a copy of the entry with another priority, and with the position of a job that was
    never moved (`initial_position`).

    With `keep_position`, as within a batch of changes, keep the position. Return the entry
    unchanged if the priority does not change. Raises PositionError for a priority outside 1 to 99.
    """
    check_priority(priority)
    if priority == entry.priority:
        return entry
    position = entry.position if keep_position else initial_position(entry.submitted_ms)
    return replace(entry, priority=priority, position=position)


def check_priority(priority: int) -> None:
    """Raise PositionError unless the priority is between 1 and 99. Otherwise do nothing."""
    if priority not in PRIORITIES:
        raise PositionError(f"priority must be between 1 and 99, not {priority}")


def check_weight(weight: float) -> None:
    """Raise PositionError unless the weight is positive and finite. Otherwise do nothing."""
    if not (weight > 0 and isfinite(weight)):
        raise PositionError(f"weight must be greater than 0, not {weight:g}")


def check_operation_supported(operation: str, scheduler: str) -> None:
    """Raise PositionError unless `SUPPORTED_OPERATIONS` has the operation for the scheduler.

    Args:
        operation: an operation of at least one scheduler, such as "ahead-of".
        scheduler: the kind of the scheduler. Raises KeyError for an unknown kind.
    """
    if operation not in SUPPORTED_OPERATIONS[scheduler]:
        supporting = next(
            kind for kind, supported in SUPPORTED_OPERATIONS.items() if operation in supported
        )
        raise PositionError(
            f"unable to perform operation on resource pool with {scheduler}: {operation} needs a"
            f" pool with the {supporting} scheduler"
        )


def _position_between(position: Decimal, anchor: Decimal, other: Decimal) -> Decimal | None:
    """Return `position` if strictly between `anchor` and `other`. Otherwise return the middle.

    Return None if the middle, with at most 300 decimal places, equals one of the two.
    """
    if min(anchor, other) < position < max(anchor, other):
        return position
    middle = _EXACT.divide(_EXACT.add(anchor, other), Decimal(2))
    rounded = _EXACT.quantize(middle, _SMALLEST_STEP)
    middle = middle if middle == rounded else rounded
    return None if middle in (anchor, other) else middle


def _position_on_side(position: Decimal, anchor: Decimal, ahead: bool) -> Decimal:
    """Return the position if ahead of (smaller than) or behind the anchor, as `ahead` demands.

    Otherwise, also for an equal position, return the anchor's position minus 1 (ahead) or plus 1
    (behind). A position between two neighbours may be on the wrong side of the anchor, because a
    neighbour of another priority may have any position.
    """
    if ahead:
        return position if position < anchor else _EXACT.subtract(anchor, UNIT)
    return position if position > anchor else _EXACT.add(anchor, UNIT)
