"""A fleet under faults of cloud and table.

The maximum holds, no instance is leaked, and no work is ended. After the faults stop, exactly the
minimum remains.
"""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.fleet.records import InstanceState, Market
from control_plane.fleet.rows import read_instances
from provisioner.clouds.fake.provider import FakeRules
from provisioner.model import ProvisionerSettings
from simulator.faults.faulty_table import FlakyTable
from simulator.stepped.scripted_pool import Work
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_fleet import ON_DEMAND, SPOT, SPOT_B, FakeCloudFleet

CALM = FakeRules(
    visible_ms=(0, 40_000),
    running_ms=(5_000, 30_000),
    boot_ms=(5_000, 60_000),
    ending_ms=(0, 9_000),
)
shares = st.sampled_from([0.0, 0.1, 0.4])

rules = st.builds(
    lambda **drawn: replace(CALM, stale_ms=20_000, vanish_ms=(20_000, 600_000), **drawn),
    throttled_share=shares,
    partial_share=shares,
    timeout_share=shares,
    lost_request_share=shares,
    never_boots_share=shares,
    late_boot_share=shares,
    vanishes_share=shares,
    interrupted_ms=st.sampled_from([None, (60_000, 900_000)]),
    unannounced_share=shares,
    rebalance_ms=st.sampled_from([0, 60_000]),
    under_way_ms=st.sampled_from([0, 12_000, 90_000]),
)
fleets = st.builds(
    lambda least, more, base: ProvisionerSettings(
        "fake",
        min_instances=least,
        max_instances=max(1, least + more),
        idle_ms_max=60_000,
        starting_ms_max=300_000,
        launch_error_limit=0,
        on_demand_base=base,
    ),
    least=st.integers(0, 2),
    more=st.integers(0, 3),
    base=st.sampled_from([0.0, 0.5]),
)
phases = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 4), st.integers(10, 600)), max_size=6),
        st.integers(10, 300),
        st.sampled_from([None, SPOT.name, SPOT_B.name, ON_DEMAND.name]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rules=rules, fleet=fleets, phases=phases, seed=st.integers(0, 1 << 20), quota=st.booleans())
def test_fleet_stays_within_limits_and_recovers_from_faults(
    rules: FakeRules,
    fleet: ProvisionerSettings,
    phases: list[tuple[list[tuple[int, int]], int, str | None]],
    seed: int,
    quota: bool,
) -> None:
    simulation = FakeCloudFleet(
        fleet,
        rules,
        (SPOT, SPOT_B, ON_DEMAND),
        seed=seed,
        faults=lambda table: FlakyTable(table, seed, 0.1, 0.02),
    )
    if quota:
        simulation.cloud.quota[Market.SPOT] = 4
    for jobs, seconds, exhausted in phases:
        simulation.cloud.capacity = {exhausted: 0} if exhausted else {}
        simulation.pool.work += [Work(slots, left_s * 1000) for slots, left_s in jobs]
        simulation.run(seconds)
    _calm_down(simulation)
    # The longest back-off is 30 minutes, and a machine that never boots is ended after 15.
    simulation.run_until(lambda: not simulation.pool.work, 7_200)
    simulation.run_until(lambda: _is_at_rest(simulation, fleet.min_instances), 7_200)


def _calm_down(simulation: FakeCloudFleet) -> None:
    simulation.cloud.rules = CALM
    simulation.cloud.capacity, simulation.cloud.quota = {}, {}
    simulation.boot(simulation.table, lambda settings: simulation.watched)


def _is_at_rest(simulation: FakeCloudFleet, least: int) -> bool:
    """Return whether only the minimum of instances is left, all connected."""
    rows = read_instances(simulation.table, POOL)
    running = [row for row in rows if row.state is InstanceState.RUNNING]
    living = {machine.id for machine in simulation.cloud.live_machines()}
    return len(rows) == len(running) == least and living == {row.id for row in rows}
