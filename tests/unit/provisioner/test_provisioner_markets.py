"""The market of work with a deadline. Times are minutes after the submission."""

import pytest

from control_plane.fleet.records import Market, Offering
from control_plane.fleet.rows import read_instances
from provisioner.clouds.fake.provider import FakeRules
from provisioner.markets import MarketConditions, assign_markets, choose_market
from provisioner.model import MINUTE_MS, DeadlineProgress, Demand, JobDemand, ProvisionerSettings
from provisioner.pools import PoolSnapshot
from simulator.stepped.scripted_pool import Work
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_fleet import BEGAN_MS, ON_DEMAND, SPOT, FakeCloudFleet, LeasedPool

HOUR = 60
# A changeover takes 10 min, so a spot machine is taken with 20 min of slack or more.
SPOT_SOLD = MarketConditions(spot_available=True, spot_price=0.3, on_demand_price=1.0)
SPOT_GONE = MarketConditions(spot_available=False, spot_price=0.3, on_demand_price=1.0)
SPOT_DEAR = MarketConditions(spot_available=True, spot_price=1.2, on_demand_price=1.0)


def _due(deadline: int, worked: int = 0, progress: float | None = None) -> DeadlineProgress:
    return DeadlineProgress(0, deadline * MINUTE_MS, worked * MINUTE_MS, progress)


@pytest.mark.parametrize(
    ("now", "work", "markets", "market"),
    [
        # Half done in 60 min: 60 min are left, and 240 - 60 of time: plenty.
        (60, _due(240, 60, 0.5), SPOT_SOLD, Market.SPOT),
        (60, _due(240, 60, 0.5), SPOT_GONE, None),
        # Slack 140 - 60 - 60 = 20: two changeovers.
        (60, _due(140, 60, 0.5), SPOT_SOLD, Market.SPOT),
        (60, _due(139, 60, 0.5), SPOT_SOLD, Market.ON_DEMAND),
        (60, _due(139, 60, 0.5), SPOT_GONE, Market.ON_DEMAND),
        # The deadline has passed: on demand is the fastest.
        (200, _due(139, 60, 0.5), SPOT_SOLD, Market.ON_DEMAND),
        # Expensive spot machines are not used once time is short.
        (60, _due(139, 60, 0.5), SPOT_DEAR, Market.ON_DEMAND),
        # Without progress, half of the time, 120 of 240 min, is assumed as work.
        (0, _due(240), SPOT_SOLD, Market.SPOT),
        (0, _due(240), SPOT_GONE, None),
        (110, _due(240), SPOT_GONE, Market.ON_DEMAND),
        (110, _due(240, 30, 0.0), SPOT_SOLD, Market.ON_DEMAND),
    ],
)
def test_market_follows_from_the_slack(
    now: int, work: DeadlineProgress, markets: MarketConditions, market: Market | None
) -> None:
    assert choose_market(work, markets, now * MINUTE_MS) is market


@pytest.mark.parametrize(
    ("spot_prices", "on_demand_prices", "market"),
    [
        # The slack of 20 min suffices for spot, which costs 30 % of on demand.
        ((0.3,), (1.0,), Market.SPOT),
        ((1.2,), (1.0,), Market.ON_DEMAND),
        # The unknown price of a second offering does not count as 0.
        ((1.2, 0.0), (1.0,), Market.ON_DEMAND),
        ((0.3,), (1.0, 0.0), Market.SPOT),
        # Without any price of a market, spot costs the usual share.
        ((0.0,), (1.0,), Market.SPOT),
        ((1.2,), (0.0,), Market.SPOT),
    ],
)
def test_unknown_price_is_not_free(
    spot_prices: tuple[float, ...], on_demand_prices: tuple[float, ...], market: Market
) -> None:
    sold = [
        Offering(f"{kind}-{place}", "large", "", kind, 1, price)
        for kind, prices in ((Market.SPOT, spot_prices), (Market.ON_DEMAND, on_demand_prices))
        for place, price in enumerate(prices)
    ]
    demand = Demand((JobDemand({1: 1}, deadline_progress=_due(140, 60, 0.5)),))
    [job] = assign_markets(demand, sold, sold, 60 * MINUTE_MS).jobs
    assert job.market is market


class DuePool(LeasedPool):
    """A pool with work that is half done after an hour and due 4 hours after the beginning."""

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        snapshot = super().pool_snapshot(pool)
        due = DeadlineProgress(BEGAN_MS, BEGAN_MS + 4 * HOUR * MINUTE_MS, HOUR * MINUTE_MS, 0.5)
        jobs = tuple(
            JobDemand(job.pending_slots, deadline_progress=due) for job in snapshot.demand.jobs
        )
        return PoolSnapshot(snapshot.settings, Demand(jobs), snapshot.agents, snapshot.leases)


def test_waits_for_spot_until_the_deadline_is_near() -> None:
    settings = ProvisionerSettings("fake", max_instances=2)
    simulation = FakeCloudFleet(settings, FakeRules(), (SPOT, ON_DEMAND))
    simulation.pool.__class__ = DuePool
    simulation.pool.work = [Work(4, 10_000_000)]
    simulation.cloud.capacity = {SPOT.name: 0}
    simulation.run(90 * 60)
    # 150 min are left for 60 min of work: nothing is launched.
    assert read_instances(simulation.table, POOL) == []
    # The reserve is 10 min for this changeover, and 20 min plus a quarter of that (one loss in 4 h
    # of work). So on demand is chosen at 240 - 60 - 10 - 25 = 145 min, or a minute before.
    simulation.run_until(lambda: bool(read_instances(simulation.table, POOL)), 60 * 60)
    (row,) = read_instances(simulation.table, POOL)
    assert row.offering == ON_DEMAND
    assert 143 <= (row.launched_ms - BEGAN_MS) / MINUTE_MS <= 145


def test_urgent_work_uses_on_demand_without_fallback() -> None:
    settings = ProvisionerSettings("fake", max_instances=2, on_demand_fallback=False)
    simulation = FakeCloudFleet(settings, FakeRules(), (SPOT, ON_DEMAND))
    simulation.pool.work = [Work(4, 10_000_000)]
    simulation.cloud.capacity = {SPOT.name: 0}
    simulation.run(170 * 60)
    assert read_instances(simulation.table, POOL) == []
    simulation.pool.__class__ = DuePool
    simulation.run(10)
    assert [row.offering for row in read_instances(simulation.table, POOL)] == [ON_DEMAND]
