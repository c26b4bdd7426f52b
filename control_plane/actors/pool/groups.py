"""A job in a pool's queue, and the compact form in which a part of the pool stores several jobs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from control_plane.actors.job_row import JobRow
from control_plane.actors.ordered_map import Entries

_DEFAULTS = asdict(JobRow())


@dataclass(frozen=True, slots=True)
class Group:
    """A job in the pool's queue: the settings, the counts of queued requests, and the totals of
    running allocations.
    """

    row: JobRow = field(default_factory=JobRow)
    """The job's settings as in the job row, or the defaults without a row."""
    has_row: bool = False
    """Whether the job's row exists."""
    pending: Mapping[int, int] = field(default_factory=dict)
    """The number of queued requests, by the number of slots of a request."""
    running: int = 0
    """The number of running allocations."""
    held: int = 0
    """The number of slots that the running allocations hold."""
    leaving: int = 0
    """The number of held slots whose allocations were asked to release them."""
    waits_since_ms: int | None = None
    """The time since which the job has waited for slots without holding any, in epoch ms. None: the
    job does not wait, or the pool reserves no slots.
    """
    stays_since_ms: int | None = None
    """The time since which nothing of the job has run although requests are queued, in epoch ms.
    Only set for a job with several preferred pools.
    """
    released: bool = False
    """Whether the pool has told the job's experiment that the job may leave."""
    excluding: int = 0
    """The number of queued requests that exclude agents."""

    @property
    def pending_slots(self) -> Mapping[int, int]:
        """Return the number of queued requests by size, as the scheduler sees the requests.

        Requests that will share a slot count together as one request, as if no request excluded
        agents.
        """
        return self.scheduled_requests(self.pending)

    def scheduled_requests(self, counts: Mapping[int, int]) -> Mapping[int, int]:
        """Return `counts`, numbers of the job's requests by size, with sharers counted together."""
        sharers = self.row.slot_sharers
        if sharers == 1:
            return counts
        return {size: -(-count // sharers) for size, count in counts.items()}

    @property
    def waits_for_slots(self) -> bool:
        """Return whether the job holds no slots and has queued requests for slots. Zero-slot
        requests do not count.
        """
        return not self.held and any(self.pending)

    def priority_or(self, default: int) -> int:
        """Return the job's priority, or `default` for a job without a priority."""
        return default if self.row.priority is None else self.row.priority

    @property
    def is_idle(self) -> bool:
        """Return whether the job has neither queued requests nor allocations."""
        return not (self.pending or self.running or self.held)


def decode_groups(entries: Entries, _: None) -> tuple[tuple[int, Group], ...]:
    """Return the number and the group of each entry of a leaf."""
    return tuple((int(key), decode_group(value)) for key, value in entries)


def encode_group(group: Group) -> list[object]:
    """Encode a group as a list of the totals and times, the counts in `pending`, and the settings
    that are not defaults.

    The form is compact, since a stored part of the ordered map contains several groups. The
    settings have the names of JobRow's fields.
    """
    pending = {str(slots): count for slots, count in group.pending.items()}
    numbers = [int(group.has_row), group.running, group.held, group.leaving]
    fields = ((name, getattr(group.row, name)) for name in _DEFAULTS)
    settings = {name: value for name, value in fields if value != _DEFAULTS[name]}
    times = [group.waits_since_ms, group.stays_since_ms, int(group.released) or None]
    more = [*times, group.excluding or None]
    while more and more[-1] is None:
        more.pop()
    return [[*numbers, *more], pending, settings]


def decode_group(value: object) -> Group:
    """Decode a group from the list of `encode_group`, with the defaults for missing values.

    Values and settings that a newer version added are ignored.
    """
    assert isinstance(value, list | tuple)
    (has_row, running, held, leaving, *more), pending, settings = value
    counts = {int(slots): count for slots, count in pending.items()}
    waits_since_ms, stays_since_ms, released, excluding = (*more, None, None, None, None)[:4]
    row = JobRow(**{name: value for name, value in settings.items() if name in _DEFAULTS})
    numbers = (running, held, leaving, waits_since_ms, stays_since_ms, bool(released))
    return Group(row, bool(has_row), counts, *numbers, excluding or 0)
