"""Cost reports for a span of days, by experiment, trial, user, pool or day.

An instance costs money from its launch to its end. An allocation costs its share of the instance
while the allocation holds slots. The rest is idle cost. Sums are computed in whole micro-dollars
and answered in dollars.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from functools import cached_property

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR, Usage, decode_usage, usage_partition
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.pool.state import agents_of, parse_allocation
from control_plane.actors.trial.metering import cost_so_far, slots_of, use_of
from control_plane.actors.use import use_values
from control_plane.engine.read_only import ActorParts, read_only_context
from control_plane.fleet.bills import day_start_ms, month_cost_micros, pool_bill, utc_day
from control_plane.fleet.rows import read_fleets
from control_plane.fleet.usage_days import DayCosts, cost_until, read_summed_days
from control_plane.queries.answer import Answer
from control_plane.queries.pool import pool_names
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows

Cost = Usage | DayCosts
"""The cost of an allocation, or of several allocations of an experiment."""


class CostGrouping(StrEnum):
    """The kind of thing that each line of a cost report stands for."""

    EXPERIMENT = "experiment"
    TRIAL = "trial"
    USER = "user"
    POOL = "pool"
    DAY = "day"


class CostItem(Answer):
    """A line of a cost report, in dollars.

    `cost` is the cost of allocations. `instance_cost` is the cost of instances, and `idle_cost` the
    part of it that no allocation used. Both are null in reports by experiment, trial or user, whose
    lines share instances.
    """

    name: str
    title: str
    cost: float
    instance_cost: float | None
    idle_cost: float | None


class CostReport(Answer):
    """The costs from the start of the day `since` to the end of the day `until`, in UTC.

    If `until` has not ended, the costs up to now. Items without any cost are left out.
    """

    by: CostGrouping
    since: date
    until: date
    items: list[CostItem]
    total: CostItem


class PoolCosts(Answer):
    """The costs of a pool in the current month (UTC), in dollars.

    `budget` is null if the pool has no budget.
    """

    budget: float | None
    instance_cost: float
    idle_cost: float


@dataclass(frozen=True)
class DaySpan:
    """The days from `since` to `until`, both included, in UTC."""

    since: date
    until: date

    @cached_property
    def start_ms(self) -> int:
        """The start of the first day in epoch ms."""
        return day_start_ms(self.since)

    @cached_property
    def end_ms(self) -> int:
        """The end of the last day in epoch ms."""
        return day_start_ms(self.until + timedelta(days=1))

    def cost_within(self, cost: Cost) -> int:
        """Return the micro-dollars of a cost on the days of the span.

        The cost of an allocation is spread evenly over its run, and is 0 if the run is outside the
        span. The results of adjacent spans add up exactly to the whole cost.
        """
        if isinstance(cost, DayCosts):
            days = cost.days.items()
            return sum(micros for day, micros in days if self.since <= day <= self.until)
        return cost_until(cost, self.end_ms) - cost_until(cost, self.start_ms)

    def days(self) -> Iterator["DaySpan"]:
        """Yield a span of a single day for each day, in order."""
        for n in range((self.until - self.since).days + 1):
            day = self.since + timedelta(days=n)
            yield DaySpan(day, day)


def cost_report(services: Services, by: CostGrouping, since: date, until: date) -> CostReport:
    """Return the costs of the days from `since` to `until`, grouped as `by` says.

    Lines without any cost are left out. Days are in order; other lines start with the most
    expensive. The total has the costs of all pools, removed pools included. Without costs, the
    report has no lines. A report by trial reads all usage rows since `since`. Other reports read
    the sums of closed days and the usage rows of later days.
    """
    read = usages if by is CostGrouping.TRIAL else costs
    span, pools = DaySpan(since, until), pools_with_costs(services)
    used = [(pool, usage) for pool in pools for usage in read(services, pool, since)]
    bills = {
        pool: pool_bill(services.table, pool, since, until, services.now_ms()) for pool in pools
    }
    allocated = sum(span.cost_within(usage) for _, usage in used)
    total = _item("total", "", allocated, sum(sum(bill.values()) for bill in bills.values()))
    match by:
        case CostGrouping.POOL:
            items = [_pool_item(pool, used, sum(bills[pool].values()), span) for pool in pools]
        case CostGrouping.DAY:
            items = [
                _item(
                    day.since.isoformat(),
                    "",
                    sum(day.cost_within(usage) for _, usage in used),
                    sum(bill.get(day.since, 0) for bill in bills.values()),
                )
                for day in span.days()
            ]
        case CostGrouping.EXPERIMENT | CostGrouping.TRIAL | CostGrouping.USER:
            items = _owner_items(services, by, [usage for _, usage in used], span)
    shown = [item for item in items if item.cost or item.instance_cost]
    if by is not CostGrouping.DAY:
        shown.sort(key=lambda item: (-(item.instance_cost or item.cost), item.name))
    return CostReport(by=by, since=since, until=until, items=shown, total=total)


def pool_costs(services: Services, pool: str, budget_micros: int | None) -> PoolCosts:
    """Return the cost of a pool's instances in the current month (UTC), and the idle part, in
    dollars.

    The idle cost is the instance cost without the cost of the pool's allocations, at least 0. The
    budget is only converted to dollars. An unknown pool has no costs.
    """
    now_ms = services.now_ms()
    today = utc_day(now_ms)
    span = DaySpan(today.replace(day=1), today)
    spent = month_cost_micros(services.table, pool, now_ms)
    used = sum(span.cost_within(cost) for cost in costs(services, pool, span.since))
    return PoolCosts(
        budget=None if budget_micros is None else dollars(budget_micros),
        instance_cost=dollars(spent),
        idle_cost=dollars(max(0, spent - used)),
    )


def costs(services: Services, pool: str, since: date) -> list[Cost]:
    """Return the costs of the pool's allocations that ran on the day `since` or later, in no order.

    The allocations that ended on a day with stored sums are summed up by experiment. Other
    allocations are as in `usages`.
    """
    # An allocation that ends during the read ends on a day without sums.
    running = list(_running_usages(services, pool))
    summed = read_summed_days(services.table, pool, since)
    return [*summed.costs, *_with_ended(services, pool, summed.unsummed_from, running)]


def usages(services: Services, pool: str, since: date) -> list[Usage]:
    """Return the costs of the pool's allocations that ran on the day `since` or later, in no order.

    Each usage has the allocation's whole cost, including the cost before `since`. A running
    allocation is counted as if the allocation ended now. Empty for a pool without allocations.
    """
    return _with_ended(services, pool, since, list(_running_usages(services, pool)))


def dollars(micros: int) -> float:
    """Convert micro-dollars to dollars, for answers only: computations use micro-dollars."""
    return micros / MICROS_PER_DOLLAR


def _with_ended(
    services: Services, pool: str, since: date, running: Iterable[Usage]
) -> list[Usage]:
    """Return the running allocations, and the allocations that ended on the day `since` or later.

    Running allocations must be read first, so that an allocation that ends meanwhile is found
    twice instead of never. Its usage row then replaces the running allocation.
    """
    rows = read_rows(services.table, usage_partition(pool), f"{day_start_ms(since):015d}")
    ended = (decode_usage(row.body) for row in rows)
    return list({(usage.trial, usage.epoch): usage for usage in (*running, *ended)}.values())


def _running_usages(services: Services, pool: str) -> Iterator[Usage]:
    """Yield the costs so far of the allocations that hold slots of the pool now.

    Reads the pool's agents and the trials. A trial that has moved to another pool is left out.
    """
    address = addresses.pool(pool)
    parts = ActorParts(services.engine, address, ("agents",))
    context = read_only_context(services.engine, address, parts)
    names = {name for _, agent in agents_of(context).items() for name in agent.parts}
    heads = services.experiments.read_trials([parse_allocation(name)[0] for name in sorted(names)])
    now_ms = services.now_ms()
    for head in heads:
        allocation = None if head is None else head.allocation
        if head is None or allocation is None or not allocation.places or allocation.pool != pool:
            continue
        yield Usage(
            head.experiment_id,
            head.trial_id,
            head.epoch,
            allocation.placed_ms,
            now_ms,
            cost_so_far(allocation, now_ms),
            slots_of(head, allocation),
            *use_values(use_of(head, allocation)),
        )


def pools_with_costs(services: Services) -> list[str]:
    """Return the names of existing pools and of removed pools that had instances, sorted."""
    return sorted({*pool_names(services), *(fleet.pool for fleet in read_fleets(services.table))})


def _pool_item(pool: str, used: Iterable[tuple[str, Cost]], bill: int, span: DaySpan) -> CostItem:
    """Return the line of a pool. `used` has the usages of all pools with the pool's name."""
    return _item(
        pool, "", sum(span.cost_within(usage) for name, usage in used if name == pool), bill
    )


def _owner_items(
    services: Services, by: CostGrouping, used: Sequence[Cost], span: DaySpan
) -> list[CostItem]:
    """Return a line for each experiment, trial or user with the costs on the days of the span.

    Lines have no instance costs. Reads the states of the experiments.
    """
    numbers = list(dict.fromkeys(usage.experiment for usage in used))
    states = services.engine.read_states([addresses.experiment(number) for number in numbers])
    experiments = dict(zip(numbers, states, strict=True))
    sums: dict[tuple[str, str], int] = {}
    for usage in used:
        key = _line_key(by, usage, experiments[usage.experiment])
        sums[key] = sums.get(key, 0) + span.cost_within(usage)
    return [_item(name, title, micros, None) for (name, title), micros in sums.items()]


def _line_key(by: CostGrouping, usage: Cost, experiment: ExperimentState | None) -> tuple[str, str]:
    """Return the name and the title of a usage's line, for costs by user, trial or experiment.

    - By user: the owner of the experiment, or "unknown" without the experiment; no title.
    - By trial: the trial's id, and `experiment ID` as the title.
    - By experiment: the id, and the experiment's name as the title, or "" without the experiment.
    """
    if by is CostGrouping.USER:
        return (experiment.owner if experiment else "unknown"), ""
    if isinstance(usage, Usage) and by is CostGrouping.TRIAL:
        return str(usage.trial), f"experiment {usage.experiment}"
    return str(usage.experiment), experiment.name if experiment else ""


def _item(name: str, title: str, allocated: int, bill: int | None) -> CostItem:
    """Return a line of the report, given micro-dollars of allocations and of instances.

    The idle cost is the difference, at least 0. Without a `bill` (None), both instance costs are
    None.
    """
    return CostItem(
        name=name,
        title=title,
        cost=dollars(allocated),
        instance_cost=None if bill is None else dollars(bill),
        idle_cost=None if bill is None else dollars(max(0, bill - allocated)),
    )
