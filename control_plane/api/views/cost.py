"""What was spent from one day to another, by whom and on what.

The instances of a pool cost from their launch to their end; allocations cost their share of that
while they have slots. What nobody had is idle. Sums are of whole micro-dollars, shown as dollars.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR, Usage, read_usage, usage_of
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.pool_state import agents_of, parse_allocation
from control_plane.actors.trial_cost import cost_so_far
from control_plane.api.bodies import Body
from control_plane.api.services import Services
from control_plane.api.views.pool import pool_names
from control_plane.dispatch.outside import looking_at
from control_plane.fleet.bills import day_of, month_micros, pool_bill, start_ms
from control_plane.fleet.rows import fleets, read_all


class By(StrEnum):
    """What a report has a line for."""

    EXPERIMENT = "experiment"
    TRIAL = "trial"
    USER = "user"
    POOL = "pool"
    DAY = "day"


class CostItem(Body):
    """`cost` is what allocations cost, in dollars, and `instance_cost` what instances did, of which
    nobody used `idle_cost`; these are null where no instance belongs to the line alone.
    """

    name: str
    title: str
    cost: float
    instance_cost: float | None
    idle_cost: float | None


class CostReport(Body):
    """From the beginning of `since` to the end of `until`, days in UTC, or to now."""

    by: By
    since: date
    until: date
    items: list[CostItem]
    total: CostItem


class PoolCosts(Body):
    """Of this month, in dollars; `budget` is null where there is none."""

    budget: float | None
    instance_cost: float
    idle_cost: float


@dataclass(frozen=True, slots=True)
class Span:
    """Days, both included."""

    since: date
    until: date

    def part_of(self, usage: Usage) -> int:
        """What of an allocation's cost lies in it: the parts of all days come to all of it."""
        end_ms = start_ms(self.until + timedelta(days=1))
        return _by(usage, end_ms) - _by(usage, start_ms(self.since))

    def days(self) -> Iterator["Span"]:
        """Its days, one by one."""
        for n in range((self.until - self.since).days + 1):
            day = self.since + timedelta(days=n)
            yield Span(day, day)


def cost_report(services: Services, by: By, since: date, until: date) -> CostReport:
    """The lines with anything in them: days in their order, others by their cost."""
    span, pools = Span(since, until), _pools(services)
    used = [(pool, usage) for pool in pools for usage in usages(services, pool, since)]
    bills = {
        pool: pool_bill(services.table, pool, since, until, services.now_ms()) for pool in pools
    }
    allocated = sum(span.part_of(usage) for _, usage in used)
    total = _item("total", "", allocated, sum(sum(bill.values()) for bill in bills.values()))
    match by:
        case By.POOL:
            items = [_pool_item(pool, used, sum(bills[pool].values()), span) for pool in pools]
        case By.DAY:
            items = [
                _item(
                    day.since.isoformat(),
                    "",
                    sum(day.part_of(usage) for _, usage in used),
                    sum(bill.get(day.since, 0) for bill in bills.values()),
                )
                for day in span.days()
            ]
        case By.EXPERIMENT | By.TRIAL | By.USER:
            items = _owned(services, by, (usage for _, usage in used), span)
    shown = [item for item in items if item.cost or item.instance_cost]
    if by is not By.DAY:
        shown.sort(key=lambda item: (-(item.instance_cost or item.cost), item.name))
    return CostReport(by=by, since=since, until=until, items=shown, total=total)


def pool_costs(services: Services, pool: str, budget_micros: int | None) -> PoolCosts:
    """What a pool has cost in this month."""
    now_ms = services.now_ms()
    today = day_of(now_ms)
    span = Span(today.replace(day=1), today)
    spent = month_micros(services.table, pool, now_ms)
    used = sum(span.part_of(usage) for usage in usages(services, pool, span.since))
    return PoolCosts(
        budget=None if budget_micros is None else dollars(budget_micros),
        instance_cost=dollars(spent),
        idle_cost=dollars(max(0, spent - used)),
    )


def usages(services: Services, pool: str, since: date) -> list[Usage]:
    """What allocations of the pool cost that ran then or later: those that have ended, and those
    that run, as if they ended now.
    """
    rows = read_all(services.table, usage_of(pool), f"{start_ms(since):015d}")
    ended = {(it.trial, it.epoch): it for it in (read_usage(row.body) for row in rows)}
    running = {(it.trial, it.epoch): it for it in _running(services, pool)}
    return list({**running, **ended}.values())


def dollars(micros: int) -> float:
    """For people and JSON: nothing is computed with it."""
    return micros / MICROS_PER_DOLLAR


def _running(services: Services, pool: str) -> Iterator[Usage]:
    address = addresses.pool(pool)
    turn = looking_at(services.engine, address)
    names = {name for _, agent in agents_of(turn).items() for name in agent.parts}
    heads = services.agents.trials([parse_allocation(name)[0] for name in sorted(names)])
    now_ms = services.now_ms()
    for head in heads:
        held = None if head is None else head.allocation
        if head is None or held is None or not held.places or held.pool != pool:
            continue
        micros = cost_so_far(held, now_ms)
        yield Usage(head.experiment_id, head.trial_id, head.epoch, held.placed_ms, now_ms, micros)


def _pools(services: Services) -> list[str]:
    return sorted({*pool_names(services), *(fleet.pool for fleet in fleets(services.table))})


def _by(usage: Usage, time_ms: int) -> int:
    """What the allocation had cost by then."""
    if time_ms >= usage.ended_ms:
        return usage.micros
    elapsed_ms = max(0, time_ms - usage.started_ms)
    return usage.micros * elapsed_ms // max(1, usage.ended_ms - usage.started_ms)


def _pool_item(pool: str, used: Iterable[tuple[str, Usage]], bill: int, span: Span) -> CostItem:
    return _item(pool, "", sum(span.part_of(usage) for name, usage in used if name == pool), bill)


def _owned(services: Services, by: By, used: Iterable[Usage], span: Span) -> list[CostItem]:
    owner = _remembered(lambda number: services.engine.state(addresses.experiment(number)))
    sums: dict[tuple[str, str], int] = {}
    for usage in used:
        key = _key(by, usage, owner(usage.experiment))
        sums[key] = sums.get(key, 0) + span.part_of(usage)
    return [_item(name, title, micros, None) for (name, title), micros in sums.items()]


def _key(by: By, usage: Usage, experiment: ExperimentState | None) -> tuple[str, str]:
    if by is By.USER:
        return (experiment.owner if experiment else "unknown"), ""
    if by is By.TRIAL:
        return str(usage.trial), f"experiment {usage.experiment}"
    return str(usage.experiment), experiment.name if experiment else ""


def _remembered(
    read: Callable[[int], ExperimentState | None],
) -> Callable[[int], ExperimentState | None]:
    known: dict[int, ExperimentState | None] = {}

    def found(number: int) -> ExperimentState | None:
        if number not in known:
            known[number] = read(number)
        return known[number]

    return found


def _item(name: str, title: str, allocated: int, bill: int | None) -> CostItem:
    return CostItem(
        name=name,
        title=title,
        cost=dollars(allocated),
        instance_cost=None if bill is None else dollars(bill),
        idle_cost=None if bill is None else dollars(max(0, bill - allocated)),
    )
