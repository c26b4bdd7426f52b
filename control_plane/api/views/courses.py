"""Courses: one group of a trial's metrics as numbers to draw, kept in memory while it is looked at.

A course is what counts of all the group's reports: a row is read once, and later only what is new.
Up to EXACT_MAX reports it holds all numbers; a longer one holds summaries, which large rows carry
ready-made, so that even a million reports are read without unpacking them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple

from control_plane.agents.segments import (
    Segment,
    Stream,
    first_segment,
    of_epoch,
    of_group,
    segments,
)
from control_plane.metrics.columns import Columns, joined
from control_plane.metrics.segment import summary_of
from control_plane.metrics.summary import (
    NameSummary,
    Summary,
    combined,
    summarised,
    summary_of_numbers,
)
from control_plane.objects.store import ObjectStore
from control_plane.state.table import StateTable

# Reports of which every number is kept, and from which a tail of small rows is summed up.
EXACT_MAX = 16_384
TAIL_MAX = 2_048
# Names beyond these are not drawn: a trial may make up a new one for each report.
NAMES_MAX = 500
# Numbers kept in memory over all courses, of 16 bytes each, and charts of one course.
NUMBERS_MAX = 3_000_000
COURSE_NUMBERS = 200
CHARTS_MAX = 200


@dataclass(eq=False)
class Course:
    """The numbers of one group. `version` counts its changes; all access is under `lock`."""

    lock: Lock = field(default_factory=Lock)
    version: int = 0
    ends: dict[int, float] = field(default_factory=dict)
    parts: dict[Stream, "_Part"] = field(default_factory=dict)
    charts: dict[object, tuple[int, bytes]] = field(default_factory=dict)
    names: dict[str, NameSummary] = field(default_factory=dict)
    named_at: int = -1

    def summaries(self) -> dict[str, NameSummary]:
        """What is known of each name, all reports together."""
        if self.named_at != self.version:
            self.names, self.named_at = self._summaries(), self.version
        return self.names

    def drawn(self, what: object, draw: Callable[[], bytes]) -> bytes:
        """A chart of the present state, drawn unless it was."""
        known = self.charts.get(what)
        if known is None or known[0] != self.version:
            if len(self.charts) >= CHARTS_MAX:
                self.charts.clear()
            known = self.charts[what] = self.version, draw()
        return known[1]

    def numbers(self) -> int:
        """How many it keeps, about."""
        return sum(part.numbers() for part in self.parts.values())

    def _summaries(self) -> dict[str, NameSummary]:
        found: dict[str, list[NameSummary]] = {}
        for part in self.parts.values():
            for names in part.names():
                for name, summary in names.items():
                    if name in found or len(found) < NAMES_MAX:
                        found.setdefault(name, []).append(summary)
        return {name: combined(parts) for name, parts in found.items()}


@dataclass(eq=False)
class _Part:
    """One stream of a course: summed up first, then whole reports. `read`: up to that offset, in
    rows up to the key `sort`.
    """

    read: int = 0
    sort: str = ""
    is_exact: bool = True
    known: set[str] = field(default_factory=set)
    summed: list[Summary] = field(default_factory=list)
    tail: list[Columns] = field(default_factory=list)
    in_tail: int = 0

    def take(self, segment: Segment, end: float, objects: ObjectStore) -> bool:
        """Takes over what a row has that was not read; whether that was anything."""
        self.sort = max(self.sort, segment.row.key.sort)
        summary = None if self.is_exact else summary_of(segment.row.body)
        if summary is not None and summary.first_offset > self.read and summary.steps_max < end:
            self._sum_up()
            self.summed.append(summary)
            self.read = summary.last_offset
            return True
        columns = segment.columns(objects).behind(self.read)
        if not len(columns):
            return False
        self.read = columns.offsets[-1]
        if max(columns.steps) >= end:
            columns = columns.picked([n for n, steps in enumerate(columns.steps) if steps < end])
        if len(columns):
            self.tail.append(self._drawable(columns))
            self.in_tail += len(columns)
        if self.in_tail > (EXACT_MAX if self.is_exact else TAIL_MAX):
            self.is_exact = False
            self._sum_up()
        return True

    def _drawable(self, columns: Columns) -> Columns:
        """The reports without the names beyond NAMES_MAX, which would fill the memory."""
        fresh = [name for name in columns.names if name not in self.known]
        room = NAMES_MAX - len(self.known)
        self.known.update(fresh[:room])
        if len(fresh) <= room:
            return columns
        names = {name: kept for name, kept in columns.names.items() if name in self.known}
        return replace(columns, names=names)

    def names(self) -> Iterator[dict[str, NameSummary]]:
        """The numbers by name, in order."""
        for summary in self.summed:
            yield dict(summary.names)
        if len(self.tail) > 1:
            self.tail = [joined(self.tail)]
        for columns in self.tail:
            numbers = {name: columns.numbers(name) for name in columns.names}
            yield {
                name: summary_of_numbers(steps, values, thinned=False)
                for name, (steps, values) in numbers.items()
                if values
            }

    def numbers(self) -> int:
        summed = sum(len(name.steps) for part in self.summed for name in part.names.values())
        return summed + sum(
            len(columns) + sum(len(column.values) for column in columns.names.values())
            for columns in self.tail
        )

    def _sum_up(self) -> None:
        if self.tail:
            self.summed.append(summarised(joined(self.tail)))
            self.tail, self.in_tail = [], 0


class _Kept(NamedTuple):
    """Where the rows of a trial's group are."""

    table: StateTable
    objects: ObjectStore
    trial_id: int
    group: str


class Courses:
    """The courses looked at last, of one cluster. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[int, str], tuple[Course, int]] = OrderedDict()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._kept)

    def look(
        self,
        table: StateTable,
        objects: ObjectStore,
        trial_id: int,
        group: str,
        draw: Callable[[Course], bytes],
    ) -> bytes:
        """What `draw` makes of the course as of now. Raises TableError, OSError."""
        key = trial_id, group
        with self._lock:
            course = self._kept[key][0] if key in self._kept else Course()
            self._kept.setdefault(key, (course, 0))
        with course.lock:
            _refresh(_Kept(table, objects, trial_id, group), course)
            drawn = draw(course)
            numbers = course.numbers() + COURSE_NUMBERS
        self._weigh(key, course, numbers)
        return drawn

    def _weigh(self, key: tuple[int, str], course: Course, numbers: int) -> None:
        with self._lock:
            known, before = self._kept.pop(key, (course, 0))
            self._kept[key] = (known, numbers)
            self._numbers += numbers - before
            while self._numbers > NUMBERS_MAX and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._numbers -= dropped


def _refresh(kept: _Kept, course: Course) -> None:
    """Reads what is new of the course, or all of it when a new allocation has begun."""
    latest = max(course.ends, default=0)
    behind = of_epoch(kept.group, latest + 1)[0], of_group(kept.group)[1]
    if first_segment(kept.table, kept.trial_id, *behind) is not None:
        course.parts.clear()
        course.version += 1
        course.ends = _ends(kept)
    if course.ends:
        _read_on(kept, course)


def _ends(kept: _Kept) -> dict[int, float]:
    """The step before which each allocation's reports count."""
    began: dict[int, float] = {}
    first, last = of_group(kept.group)
    while found := first_segment(kept.table, kept.trial_id, first, last):
        epoch = found.stream.epoch
        began[epoch] = found.began(kept.objects)
        first = of_epoch(kept.group, epoch)[1]
    return {
        epoch: min((began[other] for other in began if other > epoch), default=float("inf"))
        for epoch in began
    }


def _read_on(kept: _Kept, course: Course) -> None:
    """What the latest allocation has reported since; at first, everything."""
    last = of_group(kept.group)[1]
    known = [(stream, part.sort) for stream, part in course.parts.items()]
    latest = max(course.ends)
    known = [(stream, sort) for stream, sort in known if stream.epoch == latest]
    first = of_epoch(kept.group, latest)[0] if known else of_group(kept.group)[0]
    # Before, between and behind the streams that are known, and behind what was read of each.
    starts = [first, *(f"{sort}!" for _, sort in known)]
    stops = [*(stream.first for stream, _ in known), last]
    for start, stop in zip(starts, stops, strict=True):
        for segment in segments(kept.table, kept.trial_id, start, stop):
            end = course.ends.get(segment.stream.epoch)
            if end is None:
                # An allocation that has begun just now: the next look reads everything anew.
                return
            part = course.parts.setdefault(segment.stream, _Part())
            course.version += part.take(segment, end, kept.objects)
    course.parts = dict(sorted(course.parts.items()))
