"""Which market work with a deadline gets; times are minutes after the submission at 0."""

import pytest

from control_plane.fleet.records import Market
from control_plane.fleet.rows import read_instances
from provisioner.clouds.fake.provider import FakeRules
from provisioner.markets import MarketConditions, choose_market
from provisioner.model import MINUTE_MS, DeadlineProgress, Demand, JobDemand, ProvisionerSettings
from provisioner.pools import PoolSnapshot
from tests.simulation.fleet import (
    BEGAN_MS,
    ON_DEMAND,
    POOL,
    SPOT,
    ScriptedPool,
    SimulatedFleet,
    Work,
)

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
        # It is late already: as fast as it can be.
        (200, _due(139, 60, 0.5), SPOT_SOLD, Market.ON_DEMAND),
        # Spot machines at more than the others' price are not waited for once time is short.
        (60, _due(139, 60, 0.5), SPOT_DEAR, Market.ON_DEMAND),
        # Nothing is known of its speed: 120 of 240 min are kept for it.
        (0, _due(240), SPOT_SOLD, Market.SPOT),
        (0, _due(240), SPOT_GONE, None),
        (110, _due(240), SPOT_GONE, Market.ON_DEMAND),
        (110, _due(240, 30, 0.0), SPOT_SOLD, Market.ON_DEMAND),
    ],
)
def test_the_market_follows_from_the_slack(
    now: int, work: DeadlineProgress, markets: MarketConditions, market: Market | None
) -> None:
    assert choose_market(work, markets, now * MINUTE_MS) is market


class DuePool(ScriptedPool):
    """A pool whose work is half done after an hour and due 4 hours after the beginning."""

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        snapshot = super().pool_snapshot(pool)
        due = DeadlineProgress(BEGAN_MS, BEGAN_MS + 4 * HOUR * MINUTE_MS, HOUR * MINUTE_MS, 0.5)
        jobs = tuple(
            JobDemand(job.pending_slots, deadline_progress=due) for job in snapshot.demand.jobs
        )
        return PoolSnapshot(snapshot.settings, Demand(jobs), snapshot.agents, snapshot.leases)


def test_work_waits_for_spot_machines_until_its_deadline_is_near() -> None:
    settings = ProvisionerSettings("fake", max_instances=2)
    simulation = SimulatedFleet(settings, FakeRules(), (SPOT, ON_DEMAND))
    simulation.pool.__class__ = DuePool
    simulation.pool.work = [Work(4, 10_000_000)]
    simulation.cloud.capacity = {SPOT.name: 0}
    simulation.run(90 * 60)
    # 150 min are left for the 60 min of work: nothing is bought.
    assert read_instances(simulation.table, POOL) == []
    # What is reserved: 10 min for this change, 20 min and a quarter of that (one loss in 4 h of
    # computing), so at 240 - 60 - 10 - 25 = 145 min, or a minute before, on demand it is.
    simulation.run_until(lambda: bool(read_instances(simulation.table, POOL)), 60 * 60)
    (row,) = read_instances(simulation.table, POOL)
    assert row.offering == ON_DEMAND
    assert 143 <= (row.launched_ms - BEGAN_MS) / MINUTE_MS <= 145


def test_work_that_must_gets_on_demand_machines_where_others_do_not_fall_back() -> None:
    settings = ProvisionerSettings("fake", max_instances=2, on_demand_fallback=False)
    simulation = SimulatedFleet(settings, FakeRules(), (SPOT, ON_DEMAND))
    simulation.pool.work = [Work(4, 10_000_000)]
    simulation.cloud.capacity = {SPOT.name: 0}
    simulation.run(170 * 60)
    assert read_instances(simulation.table, POOL) == []
    simulation.pool.__class__ = DuePool
    simulation.run(10)
    assert [row.offering for row in read_instances(simulation.table, POOL)] == [ON_DEMAND]
