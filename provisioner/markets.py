"""The choice of the market for jobs with a deadline, by the policy in control_plane/spot. Pure.

The total work is estimated as the time with machines, divided by the progress so far. Without any
progress, the work is assumed to need half of the time from submission to deadline.
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

# The maximum time from the launch of an instance until work continues on the instance.
CHANGEOVER_MS = 10 * MINUTE_MS
# The spot price as a share of the on-demand price, if the on-demand price is unknown.
SPOT_PRICE_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class MarketConditions:
    """The prices and the availability of both markets at a moment."""

    spot_available: bool
    """Whether a spot offering may be launched now."""
    spot_price: float
    """The price of one slot for an hour; only its ratio to `on_demand_price` matters."""
    on_demand_price: float
    changeover_ms: int = CHANGEOVER_MS
    """The time from the launch of an instance until the work continues on it."""
    tick_ms: int = MINUTE_MS
    """The maximum time between two decisions."""


def choose_market(work: DeadlineProgress, markets: MarketConditions, now_ms: int) -> Market | None:
    """Return the market for an instance that is launched now.

    - SPOT if spot capacity is available and the cheaper way to finish. A loss of the instance must
      also leave time to meet the deadline on demand.
    - Otherwise None if the time to the deadline allows the work to wait for spot capacity.
    - Otherwise ON_DEMAND, also after the deadline.

    The remaining work is estimated (`_estimated_work_ms`). The policy is `reserved_slack_policy`,
    and treats pending work like work that has lost its machine.
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
    """Return the pending work (`demand`) with a market for each job that has a deadline.

    Leave out jobs that can wait for spot capacity. Jobs without a deadline stay as they are, and so
    does the rest of the demand. A job may get a market without a usable offering. Return the demand
    unchanged, without any market, unless the pool has offerings of both markets.

    Args:
        demand: the pending work.
        sold: all of the pool's offerings.
        usable: the offerings that may be launched now.
        now_ms: the time of the decision.
    """
    if len({offering.market for offering in sold}) < len(Market):
        return demand
    markets = _market_conditions(sold, usable)
    jobs = [_assign_market(job, markets, now_ms) for job in demand.jobs]
    return replace(demand, jobs=tuple(job for job in jobs if job is not None))


def _assign_market(job: JobDemand, markets: MarketConditions, now_ms: int) -> JobDemand | None:
    """Return the job with the market to buy on (`choose_market`). Return None if the job can wait.

    A job without a deadline is returned unchanged.
    """
    if job.deadline_progress is None:
        return job
    market = choose_market(job.deadline_progress, markets, now_ms)
    return None if market is None else replace(job, market=market)


def _market_conditions(sold: Sequence[Offering], usable: Sequence[Offering]) -> MarketConditions:
    """Return the present prices and availability of both markets.

    The prices are the lowest known prices of a slot in `sold`. If the price of either market is
    unknown, the prices are SPOT_PRICE_SHARE and 1. Spot capacity is available if `usable` has a
    spot offering.
    """
    spot, on_demand = (_slot_price(sold, market) for market in (Market.SPOT, Market.ON_DEMAND))
    if not (spot and on_demand):
        spot, on_demand = SPOT_PRICE_SHARE, 1.0
    available = any(offering.market is Market.SPOT for offering in usable)
    return MarketConditions(available, spot, on_demand)


def _slot_price(sold: Sequence[Offering], market: Market) -> float:
    """Return the lowest known hourly price of a slot among the market's offerings.

    The price 0 of an offering is unknown. An offering with 0 slots counts as one slot. Return 0 if
    no price is known, or the market has no offering.
    """
    prices = (
        offering.price_per_hour / max(1, offering.slots)
        for offering in sold
        if offering.market is market and offering.price_per_hour
    )
    return min(prices, default=0.0)


def _estimated_work_ms(work: DeadlineProgress) -> int:
    """Return the job's estimated total time with machines, at least 1 ms.

    The estimate is the worked time divided by the progress. Without any progress or worked time,
    the estimate is half of the time from submission to deadline.
    """
    if work.progress and work.worked_ms:
        return max(1, int(work.worked_ms / work.progress))
    return max(1, (work.deadline_ms - work.submitted_ms) // 2)
