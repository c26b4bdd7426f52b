"""Reports of the use of slots for a span of days, and of the money that computed little.

Paid is the cost of instances. A slot without an allocation is idle. Time of an allocation's slot
with less than 5 % of computation is low use. Idle and low use are wasted, and the rest is used. The
sums are whole micro-dollars, so that the parts add up exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from control_plane.actors import addresses
from control_plane.actors.cost import Usage
from control_plane.actors.experiment.listing import ListingRow, decode_listing
from control_plane.actors.experiment.state import LISTING, ExperimentState, listing_sort_key
from control_plane.actors.use import Use
from control_plane.fleet.bills import pool_bill
from control_plane.fleet.usage_days import NO_DAY_USE, DayUse, use_until
from control_plane.queries.answer import Answer
from control_plane.queries.cost import Cost, DaySpan, costs, dollars, pools_with_costs, usages
from control_plane.services import Services
from control_plane.state.table import Key

MS_PER_HOUR = 3_600_000
_UNKNOWN = "unknown"


class UsageGrouping(StrEnum):
    """The kind of thing that each line of a usage report stands for."""

    EXPERIMENT = "experiment"
    TRIAL = "trial"
    USER = "user"
    PROJECT = "project"
    WORKSPACE = "workspace"
    POOL = "pool"
    DAY = "day"
    POOL_DAY = "pool-day"


class UsageItem(Answer):
    """A line of a usage report; docs/usage.md defines the figures. Costs are in dollars.

    `use_percent` and `memory_percent` are null without measured time. `instance_cost` and
    `idle_cost` are null in reports whose lines share instances.
    """

    name: str
    title: str
    slot_hours: float
    measured_hours: float
    use_percent: float | None
    memory_percent: float | None
    cost: float
    low_cost: float
    instance_cost: float | None
    idle_cost: float | None
    wasted: float


class UsageReport(Answer):
    """The use from the start of the day `since` to the end of the day `until`, in UTC.

    If `until` has not ended, the use up to now. Items without slots and costs are left out.
    """

    by: UsageGrouping
    since: date
    until: date
    items: list[UsageItem]
    total: UsageItem


@dataclass(frozen=True)
class Amounts:
    """The sums of a line."""

    micros: int = 0
    """The cost of allocations in micro-dollars."""
    use: DayUse = NO_DAY_USE
    bill: int | None = None
    """The cost of instances in micro-dollars. None: the lines share instances."""

    def plus(self, other: "Amounts") -> "Amounts":
        """Return the sum of two lines."""
        bills = [bill for bill in (self.bill, other.bill) if bill is not None]
        return Amounts(
            self.micros + other.micros,
            self.use.plus(other.use),
            sum(bills) if bills else None,
        )


def usage_report(services: Services, by: UsageGrouping, since: date, until: date) -> UsageReport:
    """Return the use of the days from `since` to `until`, grouped as `by` says.

    Days are in order, and other lines begin with the most wasted money. A report by trial reads all
    usage rows since `since`. Other reports read the sums of closed days.
    """
    span, pools = DaySpan(since, until), pools_with_costs(services)
    read = usages if by is UsageGrouping.TRIAL else costs
    used = [(pool, cost) for pool in pools for cost in read(services, pool, since)]
    bills = {
        pool: pool_bill(services.table, pool, since, until, services.now_ms()) for pool in pools
    }
    match by:
        case UsageGrouping.POOL | UsageGrouping.DAY | UsageGrouping.POOL_DAY:
            lines = _place_lines(by, used, bills, span)
        case _:
            lines = _owner_lines(services, by, [cost for _, cost in used], span)
    total = Amounts(bill=sum(sum(bill.values()) for bill in bills.values()))
    for _, cost in used:
        total = total.plus(_amounts(cost, span))
    items = [
        _item(name, title, line)
        for (name, title), line in lines.items()
        if line.micros or line.bill or line.use.slot_ms
    ]
    if by in (UsageGrouping.DAY, UsageGrouping.POOL_DAY):
        items.sort(key=lambda item: (item.name, item.title))
    else:
        items.sort(key=lambda item: (-item.wasted, -item.cost, -item.slot_hours, item.name))
    whole = _item("total", "", total)
    return UsageReport(by=by, since=since, until=until, items=items, total=whole)


def use_within(cost: Cost, span: DaySpan) -> DayUse:
    """Return the use of allocations on the days of the span.

    The use is spread evenly over each run. The results of adjacent spans add up exactly.
    """
    if isinstance(cost, Usage):
        after, before = use_until(cost, span.end_ms), use_until(cost, span.start_ms)
        return DayUse(*(end - start for end, start in zip(after, before, strict=True)))
    total = NO_DAY_USE
    for day, use in cost.uses.items():
        if span.since <= day <= span.until:
            total = total.plus(use)
    return total


def _amounts(cost: Cost, span: DaySpan) -> Amounts:
    return Amounts(span.cost_within(cost), use_within(cost, span))


def _place_lines(
    by: UsageGrouping,
    used: Iterable[tuple[str, Cost]],
    bills: Mapping[str, Mapping[date, int]],
    span: DaySpan,
) -> dict[tuple[str, str], Amounts]:
    """Return the lines of pools, of days, or of the days of each pool, with costs of instances."""
    lines: dict[tuple[str, str], Amounts] = {}

    def add(pool: str, day: date, amounts: Amounts) -> None:
        key = {
            UsageGrouping.POOL: (pool, ""),
            UsageGrouping.DAY: (day.isoformat(), ""),
        }.get(by, (day.isoformat(), pool))
        lines[key] = lines.get(key, Amounts()).plus(amounts)

    for pool, bill in bills.items():
        for day, micros in bill.items():
            add(pool, day, Amounts(bill=micros))
    spans = [span] if by is UsageGrouping.POOL else list(span.days())
    for pool, cost in used:
        for part in spans:
            amounts = _amounts(cost, part)
            if amounts.micros or amounts.use.slot_ms:
                add(pool, part.since, Amounts(amounts.micros, amounts.use, 0))
    return lines


def _owner_lines(
    services: Services, by: UsageGrouping, used: Sequence[Cost], span: DaySpan
) -> dict[tuple[str, str], Amounts]:
    """Return the lines of experiments, trials, users, projects or workspaces.

    Reads the states and the listing rows of the experiments.
    """
    numbers = list(dict.fromkeys(cost.experiment for cost in used))
    states, rows = services.engine.read_states_and_rows(
        [addresses.experiment(number) for number in numbers],
        [Key(LISTING, listing_sort_key(number)) for number in numbers],
    )
    known = {
        number: (state, decode_listing(row.body) if row and row.body else None)
        for number, state, row in zip(numbers, states, rows, strict=True)
    }
    lines: dict[tuple[str, str], Amounts] = {}
    for cost in used:
        key = _owner_key(by, cost, *known[cost.experiment])
        lines[key] = lines.get(key, Amounts()).plus(_amounts(cost, span))
    return lines


def _owner_key(
    by: UsageGrouping, cost: Cost, state: object, listing: ListingRow | None
) -> tuple[str, str]:
    """Return the name and the title of a line.

    A deleted experiment has no listing row, and counts for the project `unknown`.
    """
    experiment = state if isinstance(state, ExperimentState) else None
    match by:
        case UsageGrouping.USER:
            return (experiment.owner if experiment else _UNKNOWN), ""
        case UsageGrouping.WORKSPACE:
            return (listing.workspace if listing else _UNKNOWN), ""
        case UsageGrouping.PROJECT:
            return (listing.project, listing.workspace) if listing else (_UNKNOWN, "")
        case UsageGrouping.TRIAL if isinstance(cost, Usage):
            return str(cost.trial), f"experiment {cost.experiment}"
        case _:
            return str(cost.experiment), experiment.name if experiment else ""


def _item(name: str, title: str, line: Amounts) -> UsageItem:
    """Return a line in hours and dollars."""
    use = line.use
    measured = Use(use.measured_ms, use.busy_ms, use.low_ms, use.memory_ms)
    idle = None if line.bill is None else max(0, line.bill - line.micros)
    return UsageItem(
        name=name,
        title=title,
        slot_hours=use.slot_ms / MS_PER_HOUR,
        measured_hours=use.measured_ms / MS_PER_HOUR,
        use_percent=measured.percent,
        memory_percent=measured.memory_percent,
        cost=dollars(line.micros),
        low_cost=dollars(use.low_micros),
        instance_cost=None if line.bill is None else dollars(line.bill),
        idle_cost=None if idle is None else dollars(idle),
        wasted=dollars(use.low_micros + (idle or 0)),
    )
