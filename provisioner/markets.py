"""Which market the instances of work with a deadline are bought on: see control_plane/spot.

What is known of the work is how far it has come and for how long it has had machines: at the same
speed all of it takes the one divided by the other. While nothing is known of its speed it is taken
to need half of the time that it was given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control_plane.fleet.records import Market, Offering
from control_plane.spot.deadline import Job, Machine, Standing, reserved_slack
from provisioner.model import MINUTE_MS, Demand, JobDemand, WorkDue

# From asking for an instance until the work goes on there where it was, at most.
CHANGEOVER_MS = 10 * MINUTE_MS
# Of the on-demand price, where offerings have no prices.
SPOT_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class Markets:
    """What can be had: prices an hour of a slot; `tick_ms` is the longest time between looks."""

    spot_available: bool
    spot_price: float
    on_demand_price: float
    changeover_ms: int = CHANGEOVER_MS
    tick_ms: int = MINUTE_MS


def market_of(work: WorkDue, markets: Markets, now_ms: int) -> Market | None:
    """The market for an instance that is asked for now; None: the work can wait for a better one.

    What waits has no machine, so it stands as work whose machine was lost.
    """
    job = Job(
        work_ms=_work_ms(work),
        submitted_ms=work.submitted_ms,
        deadline_ms=work.deadline_ms,
        changeover_ms=markets.changeover_ms,
        tick_ms=markets.tick_ms,
    )
    standing = Standing(
        now_ms=now_ms,
        done_ms=min(job.work_ms - 1, work.worked_ms if work.progress else 0),
        machine=Machine.NONE,
        starting_ms=0,
        spot_available=markets.spot_available,
        spot_price=markets.spot_price,
        on_demand_price=markets.on_demand_price,
    )
    chosen = reserved_slack(job, standing)
    if chosen is Machine.NONE:
        return None
    return Market.SPOT if chosen is Machine.SPOT else Market.ON_DEMAND


def placed(
    demand: Demand, sold: Sequence[Offering], usable: Sequence[Offering], now_ms: int
) -> Demand:
    """The demand with the market of each job that has a deadline, without those that can wait.
    Where only one market is sold there is nothing to decide. `usable`: what may be asked for now.
    """
    if len({offering.market for offering in sold}) < len(Market):
        return demand
    markets = _markets(sold, usable)
    jobs = [_placed(job, markets, now_ms) for job in demand.jobs]
    return replace(demand, jobs=tuple(job for job in jobs if job is not None))


def _placed(job: JobDemand, markets: Markets, now_ms: int) -> JobDemand | None:
    if job.due is None:
        return job
    market = market_of(job.due, markets, now_ms)
    return None if market is None else replace(job, market=market)


def _markets(sold: Sequence[Offering], usable: Sequence[Offering]) -> Markets:
    spot, on_demand = (_price(sold, market) for market in (Market.SPOT, Market.ON_DEMAND))
    if not on_demand:
        spot, on_demand = SPOT_SHARE, 1.0
    available = any(offering.market is Market.SPOT for offering in usable)
    return Markets(available, spot, on_demand)


def _price(sold: Sequence[Offering], market: Market) -> float:
    """Of a slot, where it is cheapest."""
    return min(it.price_per_hour / max(1, it.slots) for it in sold if it.market is market)


def _work_ms(work: WorkDue) -> int:
    if work.progress and work.worked_ms:
        return max(1, int(work.worked_ms / work.progress))
    return max(1, (work.deadline_ms - work.submitted_ms) // 2)
