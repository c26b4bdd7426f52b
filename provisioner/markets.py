"""The market on which instances for work with a deadline are bought: see control_plane/spot.

The total work is estimated from the progress so far and the time with machines that it took. While
there is no progress the work is assumed to need half of the time from submission to deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control_plane.fleet.records import Market, Offering
from control_plane.spot.deadline_policies import (
    DeadlineJob,
    JobSnapshot,
    MachineKind,
    reserved_slack_policy,
)
from provisioner.model import MINUTE_MS, DeadlineProgress, Demand, JobDemand

# The longest time from launching an instance until the work continues on it.
CHANGEOVER_MS = 10 * MINUTE_MS
# The spot price as a share of the on-demand price, where offerings have no prices.
SPOT_PRICE_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class MarketConditions:
    """Prices per slot and hour, and the availability of spot offerings; `tick_ms` is the longest
    time between two decisions.
    """

    spot_available: bool
    spot_price: float
    on_demand_price: float
    changeover_ms: int = CHANGEOVER_MS
    tick_ms: int = MINUTE_MS


def choose_market(work: DeadlineProgress, markets: MarketConditions, now_ms: int) -> Market | None:
    """Choose the market for an instance launched now; None: the work can wait for a better one.

    Pending work has no machine, so it counts as work whose machine was lost.
    """
    job = DeadlineJob(
        work_ms=_estimated_work_ms(work),
        submitted_ms=work.submitted_ms,
        deadline_ms=work.deadline_ms,
        changeover_ms=markets.changeover_ms,
        tick_ms=markets.tick_ms,
    )
    snapshot = JobSnapshot(
        now_ms=now_ms,
        done_ms=min(job.work_ms - 1, work.worked_ms if work.progress else 0),
        machine=MachineKind.NONE,
        starting_ms=0,
        spot_available=markets.spot_available,
        spot_price=markets.spot_price,
        on_demand_price=markets.on_demand_price,
    )
    chosen = reserved_slack_policy(job, snapshot)
    if chosen is MachineKind.NONE:
        return None
    return Market.SPOT if chosen is MachineKind.SPOT else Market.ON_DEMAND


def assign_markets(
    demand: Demand, sold: Sequence[Offering], usable: Sequence[Offering], now_ms: int
) -> Demand:
    """Assign a market to each job that has a deadline, and leave out those that can wait.

    With offerings of one market only there is nothing to decide. `sold`: all offerings; `usable`:
    those that may be launched now.
    """
    if len({offering.market for offering in sold}) < len(Market):
        return demand
    markets = _market_conditions(sold, usable)
    jobs = [_assign_market(job, markets, now_ms) for job in demand.jobs]
    return replace(demand, jobs=tuple(job for job in jobs if job is not None))


def _assign_market(job: JobDemand, markets: MarketConditions, now_ms: int) -> JobDemand | None:
    if job.deadline_progress is None:
        return job
    market = choose_market(job.deadline_progress, markets, now_ms)
    return None if market is None else replace(job, market=market)


def _market_conditions(sold: Sequence[Offering], usable: Sequence[Offering]) -> MarketConditions:
    spot, on_demand = (_slot_price(sold, market) for market in (Market.SPOT, Market.ON_DEMAND))
    if not on_demand:
        spot, on_demand = SPOT_PRICE_SHARE, 1.0
    available = any(offering.market is Market.SPOT for offering in usable)
    return MarketConditions(available, spot, on_demand)


def _slot_price(sold: Sequence[Offering], market: Market) -> float:
    """The hourly price of a slot of the market's cheapest offering."""
    return min(
        offering.price_per_hour / max(1, offering.slots)
        for offering in sold
        if offering.market is market
    )


def _estimated_work_ms(work: DeadlineProgress) -> int:
    if work.progress and work.worked_ms:
        return max(1, int(work.worked_ms / work.progress))
    return max(1, (work.deadline_ms - work.submitted_ms) // 2)
