"""The jobs of a pool and their requests that wait.

Two ordered maps in parts. `requests` holds what waits, by group and ticket; `groups` holds of each
job its settings as its row has them, and the sums that a scheduler needs: a decision reads
requests only of those that may start, and writes the leaf of one job.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from control_plane.actors.jobs import JobRow, job_sort, jobs_of, read_job
from control_plane.actors.ordered import Entries, Ordered
from control_plane.actors.step import Turn
from control_plane.scheduling.model import Holding, Job, Request

# So many as a write unit of 1 KB holds.
REQUESTS_PER_PART = 12
GROUPS_PER_PART = 12
_SUBMITTED_DIGITS = 14
_DEFAULTS = asdict(JobRow())


@dataclass(frozen=True, slots=True)
class Group:
    """A job: its settings, how many of its requests wait by their slots, and what it holds.

    `listed`: it has a row. `running` counts allocations; `held` their slots, of which `leaving` are
    slots of those that were asked to go.
    """

    row: JobRow = field(default_factory=JobRow)
    listed: bool = False
    pending: Mapping[int, int] = field(default_factory=dict)
    running: int = 0
    held: int = 0
    leaving: int = 0

    @property
    def idle(self) -> bool:
        """Whether it neither asks for anything nor holds anything."""
        return not (self.pending or self.running or self.held)


@dataclass(frozen=True, slots=True)
class Pending:
    """The requests of a group, read as they are asked for."""

    waiting: "Waiting"
    group: int

    def __iter__(self) -> Iterator[Request]:
        return self.waiting.requests(self.group)


@dataclass(frozen=True, slots=True)
class Held:
    """What a group holds, read when it is asked for."""

    holdings: Callable[[int], Iterator[Holding]]
    group: int

    def __iter__(self) -> Iterator[Holding]:
        return self.holdings(self.group)


class Waiting:
    """Who waits in the pool whose turn it is."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._requests = Ordered(turn, "requests", REQUESTS_PER_PART)
        self._groups = Ordered(turn, "groups", GROUPS_PER_PART)

    def add(self, request: Request) -> bool:
        """Lets a request wait; False if it does already."""
        key = _request_key(request.group, request.ticket)
        if self._requests.get(key) is not None:
            return False
        self._requests.put(key, (request.allocation, request.slots))
        known = self._known(request)
        self._put(request.group, _counting(known, request.slots, 1))
        return True

    def remove(self, request: Request) -> bool:
        """Takes a request out, found by its allocation, ticket and group; whether it waited."""
        key = _request_key(request.group, request.ticket)
        found = self._requests.get(key)
        if not isinstance(found, list | tuple) or found[0] != request.allocation:
            return False
        self._requests.remove(key)
        self._put(request.group, _counting(self.group(request.group), found[1], -1))
        return True

    def start(self, request: Request) -> None:
        """The request waits no more: it has its slots."""
        self._requests.remove(_request_key(request.group, request.ticket))
        group = _counting(self.group(request.group), request.slots, -1)
        held = group.held + request.slots
        self._put(request.group, replace(group, running=group.running + 1, held=held))

    def leave(self, group: int, slots: int) -> None:
        """An allocation of the group was asked to give up that many slots."""
        known = self.group(group)
        self._put(group, replace(known, leaving=known.leaving + slots))

    def free(self, group: int, slots: int, *, ended: bool, leaving: bool) -> None:
        """The group has given slots back, as the last ones of an allocation if that has `ended`."""
        known = self.group(group)
        freed = replace(
            known,
            running=known.running - ended,
            held=known.held - slots,
            leaving=known.leaving - (slots if leaving else 0),
        )
        self._put(group, freed)

    def read(self, group: int) -> bool:
        """Reads the group's settings again; whether they have changed. One whose row is gone keeps
        those it had while it has anything else.
        """
        known, row = self._read(group), self._row(group)
        after = replace(known or Group(), listed=row is not None)
        if row is not None:
            after = replace(after, row=row)
        if known is None and row is None:
            return False
        self._put(group, after)
        return after != known

    def group(self, group: int) -> Group:
        """What is known of a group."""
        return self._read(group) or Group()

    def groups(self) -> Iterator[tuple[int, Group]]:
        """All groups, by number."""
        for leaf in self._groups.leaves():
            yield from leaf.derived(_parsed_groups, None)

    def jobs(self, priority: int, holdings: Callable[[int], Iterator[Holding]]) -> Iterator[Job]:
        """The groups that ask for something or hold it, as a scheduler sees them. `priority` is
        that of a job without one.
        """
        for number, group in self.groups():
            if group.idle:
                continue
            row = group.row
            yield Job(
                group=number,
                submitted_ms=row.submitted_ms,
                weight=row.weight,
                priority=priority if row.priority is None else row.priority,
                position=row.at(),
                max_slots=row.max_slots,
                label=row.label,
                single_agent=row.single_agent,
                pending=Pending(self, number) if group.pending else (),
                holdings=Held(holdings, number) if group.running else (),
                pending_slots=group.pending,
                held_slots=group.held,
                leaving_slots=group.leaving,
            )

    def requests(self, group: int) -> Iterator[Request]:
        """The requests of a group, by ticket."""
        row = self.group(group).row
        for key, value in self._requests.items(_request_key(group, "")):
            number, ticket = _place(key)
            if number != group:
                return
            assert isinstance(value, list | tuple)
            yield Request(value[0], value[1], ticket, group, row.label, row.single_agent)

    def items(self) -> Iterator[Request]:
        """Every request that waits, by group and ticket."""
        for key, value in self._requests.items():
            assert isinstance(value, list | tuple)
            group, ticket = _place(key)
            yield Request(value[0], value[1], ticket, group)

    def _known(self, request: Request) -> Group:
        """The group of a request, which may be the first word of it."""
        known = self._read(request.group)
        if known is not None:
            return known
        row = self._row(request.group)
        if row is not None:
            return Group(row, listed=True)
        submitted = request.ticket[:_SUBMITTED_DIGITS]
        return Group(JobRow(int(submitted) if submitted.isdigit() else 0))

    def _row(self, group: int) -> JobRow | None:
        pool = self._turn.address.partition("#")[2]
        seen = self._turn.row(jobs_of(pool), job_sort(group))
        return read_job(seen.body) if seen.revision else None

    def _read(self, group: int) -> Group | None:
        found = self._groups.get(_group_key(group))
        return None if found is None else _parsed(found)

    def _put(self, group: int, after: Group) -> None:
        """Writes a group, or forgets one that has nothing and no row."""
        if after.idle and not after.listed:
            self._groups.remove(_group_key(group))
        else:
            self._groups.put(_group_key(group), _written(after))


def _counting(group: Group, slots: int, more: int) -> Group:
    """With more requests of so many slots."""
    count = group.pending.get(slots, 0) + more
    others = {size: kept for size, kept in group.pending.items() if size != slots}
    return replace(group, pending={**others, slots: count} if count else others)


def _group_key(group: int) -> str:
    return f"{group:012d}"


def _request_key(group: int, ticket: str) -> str:
    return f"{group:012d}.{ticket}"


def _place(key: str) -> tuple[int, str]:
    group, _, ticket = key.partition(".")
    return int(group), ticket


def _parsed_groups(entries: Entries, _: None) -> tuple[tuple[int, Group], ...]:
    return tuple((int(key), _parsed(value)) for key, value in entries)


# Compact, since a part holds several groups: numbers, then settings that are no defaults.
def _written(group: Group) -> list[object]:
    pending = {str(slots): count for slots, count in group.pending.items()}
    numbers = [int(group.listed), group.running, group.held, group.leaving]
    given = ((name, getattr(group.row, name)) for name in _DEFAULTS)
    settings = {name: value for name, value in given if value != _DEFAULTS[name]}
    return [numbers, pending, settings]


def _parsed(value: object) -> Group:
    assert isinstance(value, list | tuple)
    (listed, running, held, leaving), pending, settings = value
    counts = {int(slots): count for slots, count in pending.items()}
    return Group(JobRow(**settings), bool(listed), counts, running, held, leaving)
