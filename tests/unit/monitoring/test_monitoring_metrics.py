"""The metrics of a cluster, as a monitoring system reads them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.alarms.records import AlarmRow
from control_plane.alarms.rows import alarm_key, encode_alarm
from control_plane.config import pools
from control_plane.fleet.bills import day_start_ms, utc_day
from control_plane.fleet.records import InstanceState, Market
from control_plane.monitoring import cluster_metrics, pool_activity
from control_plane.monitoring.cluster_metrics import (
    EXPERIMENTS_MAX,
    KEPT_MS,
    POOLS_MAX,
    RECENT_KEPT_MS,
    ClusterMetrics,
)
from control_plane.monitoring.families import FAMILIES
from control_plane.state.table import Key, Page, StateTable, Unavailable
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import call
from tests.unit.api.table_decorators import RecordedTable, recorded_table
from tests.unit.monitoring.scrapes import (
    HOUR_MS,
    pass_cache,
    put_bill,
    put_fleet,
    put_instance,
    put_row,
    read_samples,
    scrape,
)

GPU_LINES = {"gpu_util_0": 80.0, "gpu_util_1": 40.0, "gpu_free_memory_0": 4.0}


def change(cluster: Cluster, number: int, action: str) -> None:
    answer = cluster.post(f"/experiments/{number}/{action}", {})
    assert answer.status == 200, answer.body


def disable_agent(cluster: Cluster, agent: str, **fields: object) -> None:
    path = f"{V1}/agents/{agent}/disable"
    token = TOKENS[Role.ADMIN]
    assert call(cluster.app, "POST", path, token=token, content=fields).status == 200


def test_counts_agents_by_state(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        Agent(cluster, name)
    disable_agent(cluster, "b")
    disable_agent(cluster, "c", drain=True)
    # The row of the agent stays until the agent is forgotten.
    put_row(cluster, Key("agents", "gone"), b"default")
    samples = read_samples(cluster)
    states = {"enabled": 1, "disabled": 1, "draining": 1, "lost": 1}
    for state, count in states.items():
        assert samples[f'detcloud_agents{{pool="default",state="{state}"}}'] == count


def test_counts_slots_by_state(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    Agent(cluster, "a", slots=1)
    Agent(cluster, "b", slots=2)
    Agent(cluster, "c", slots=2)
    disable_agent(cluster, "c")
    samples = read_samples(cluster)
    # Two trials hold a slot each: of three enabled slots, one is free.
    for state, count in {"used": 2, "free": 1, "disabled": 2}.items():
        assert samples[f'detcloud_slots{{pool="default",state="{state}"}}'] == count


def test_counts_allocations_of_a_queue(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    Agent(cluster, slots=1)
    samples = read_samples(cluster)
    assert samples['detcloud_allocations{pool="default",state="running"}'] == 1
    assert samples['detcloud_allocations{pool="default",state="queued"}'] == 1
    assert samples['detcloud_queued_slots{pool="default"}'] == 1
    assert samples['detcloud_allocations_started_total{pool="default"}'] == 1


def test_oldest_wait_grows_until_the_job_starts(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    assert read_samples(cluster)['detcloud_oldest_wait_seconds{pool="default"}'] == 0
    cluster.clock.ms += 90_000
    assert read_samples(cluster)['detcloud_oldest_wait_seconds{pool="default"}'] == 90
    Agent(cluster)
    pass_cache(cluster)
    assert read_samples(cluster)['detcloud_oldest_wait_seconds{pool="default"}'] == 0


def test_counts_experiments_and_trials_by_state(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.create(CONFIG)
    change(cluster, 2, "pause")
    Agent(cluster)
    samples = read_samples(cluster)
    # The fair share of each active experiment is one of the two slots.
    place = 'kind="experiment",pool="default"'
    for state, count in {"running": 2, "paused": 1}.items():
        assert samples[f'detcloud_experiments{{{place},state="{state}"}}'] == count
    # Each experiment has two trials. The trials of the paused experiment wait.
    for state in ("running", "queued", "waiting"):
        assert samples[f'detcloud_trials{{pool="default",state="{state}"}}'] == 2
    assert samples["detcloud_experiments_submitted_total"] == 3


def test_counts_ended_trials_of_running_experiments(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, *_ = agent.take_work()
    agent.finish(first)
    samples = read_samples(cluster)
    assert samples['detcloud_trials{pool="default",state="finished"}'] == 1
    assert samples['detcloud_trials{pool="default",state="running"}'] == 1


def test_counts_ended_experiments_of_the_newest(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        cluster.create(CONFIG)
        change(cluster, number, "cancel")
    assert read_samples(cluster)['detcloud_recent_experiments{state="canceled"}'] == 3
    monkeypatch.setattr(cluster_metrics, "RECENT_MAX", 2)
    pass_cache(cluster)
    assert read_samples(cluster)['detcloud_recent_experiments{state="canceled"}'] == 3
    cluster.clock.ms += RECENT_KEPT_MS
    assert read_samples(cluster)['detcloud_recent_experiments{state="canceled"}'] == 2


def test_counts_instances_and_costs(cluster: Cluster) -> None:
    put_instance(cluster, "i-1", InstanceState.RUNNING)
    put_instance(cluster, "i-2", InstanceState.RUNNING, idle_ms=NOW_MS)
    put_instance(cluster, "i-3", InstanceState.STARTING, Market.ON_DEMAND, price=3.0)
    put_bill(cluster, 1_500_000)
    samples = read_samples(cluster)
    for market, state in (("spot", "active"), ("spot", "idle"), ("on_demand", "starting")):
        labels = f'market="{market}",pool="default",state="{state}"'
        assert samples[f"detcloud_instances{{{labels}}}"] == 1
    rate = "detcloud_spending_dollars_per_hour"
    assert samples[f'{rate}{{market="spot",pool="default"}}'] == 4
    assert samples[f'{rate}{{market="on_demand",pool="default"}}'] == 3
    # The part of the last hour on this day, at 7 dollars an hour, and 1.5 dollars of the bill.
    hours = min(HOUR_MS, NOW_MS - day_start_ms(utc_day(NOW_MS))) / HOUR_MS
    today = samples['detcloud_cost_today_dollars{pool="default"}']
    assert today == pytest.approx(7 * hours + 1.5, abs=1e-5)
    assert samples['detcloud_cost_month_dollars{pool="default"}'] >= today


def test_shows_state_and_budget_of_a_pool(cluster: Cluster) -> None:
    assert 'detcloud_budget_dollars{pool="default"}' not in read_samples(cluster)
    settings = PoolSettings(draining=True, budget_micros=2_500_000)
    cluster.services.engine.execute_command(
        addresses.pool("default"), PoolConfigured("default", settings)
    )
    pass_cache(cluster)
    samples = read_samples(cluster)
    assert samples['detcloud_budget_dollars{pool="default"}'] == 2.5
    for state, value in {"open": 0, "draining": 1, "over_budget": 0}.items():
        assert samples[f'detcloud_pool_state{{pool="default",state="{state}"}}'] == value


def test_shows_the_age_of_the_last_pass(cluster: Cluster) -> None:
    put_fleet(cluster, NOW_MS - 42_000)
    samples = read_samples(cluster)
    assert samples['detcloud_provisioner_pass_age_seconds{pool="default"}'] == 42


def test_shows_raised_alarms(cluster: Cluster) -> None:
    for row in (
        AlarmRow("queue-wait", "default", "job 7 waits", 1, raised_ms=5),
        AlarmRow("lag", "", "late", 1),
        AlarmRow("machine-age", "default", "old", 1, raised_ms=2, cleared_ms=3),
    ):
        put_row(cluster, alarm_key(row.alarm, row.pool), encode_alarm(row))
    samples = read_samples(cluster)
    assert samples['detcloud_alarm_raised{alarm="queue-wait",pool="default"}'] == 1
    assert samples['detcloud_alarm_raised{alarm="lag",pool=""}'] == 0
    assert samples['detcloud_alarm_raised{alarm="machine-age",pool="default"}'] == 0


def test_averages_gpus_of_running_trials(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, second = agent.take_work()
    now_s = NOW_MS // 1000
    agent.report(first, metrics(now_s - 20, "gpu", gpu_util_0=5.0))
    agent.report(first, metrics(now_s - 10, "gpu", **GPU_LINES))
    agent.report(second, metrics(now_s - 10, "gpu", gpu_util_0=30.0, gpu_free_memory_0=2.0))
    samples = read_samples(cluster)
    assert samples['detcloud_measured_gpus{pool="default"}'] == 3
    # (0.8 + 0.4 + 0.3) / 3, and (4 + 2) / 2 GiB
    assert samples['detcloud_gpu_utilization_ratio{pool="default"}'] == pytest.approx(0.5)
    assert samples['detcloud_gpu_free_memory_bytes{pool="default"}'] == 3 * 2**30


def test_trials_with_low_use_are_counted(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, _ = agent.take_work()
    name = 'detcloud_low_use_trials{pool="default"}'
    assert read_samples(cluster)[name] == 0
    line = {"kind": "low_use", "is_low": True, "percent": 1, "time_ms": 3_600_000}
    agent.report(first, line, writer="agent")
    cluster.clock.ms += KEPT_MS
    assert read_samples(cluster)[name] == 1


def test_skips_gpus_without_recent_reports(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, _ = agent.take_work()
    agent.report(first, metrics(NOW_MS // 1000 - 301, "gpu", **GPU_LINES))
    assert 'detcloud_measured_gpus{pool="default"}' not in read_samples(cluster)


def test_samples_are_kept_for_a_quarter_of_a_minute(cluster: Cluster) -> None:
    name = "detcloud_experiments_submitted_total"
    assert read_samples(cluster)[name] == 0
    cluster.create(CONFIG)
    cluster.clock.ms += KEPT_MS - 1
    assert read_samples(cluster)[name] == 0
    cluster.clock.ms += 1
    assert read_samples(cluster)[name] == 1


def test_reading_of_an_idle_cluster_needs_nine_calls(cluster: Cluster) -> None:
    reader = ClusterMetrics()
    assert len({sample.family for sample in reader.read(cluster.services)}) >= 15
    pass_cache(cluster)
    with recorded_table(cluster) as table:
        reader.read(cluster.services)
    # Queries of pools, agents, fleets and alarms, and of jobs, instances and bills of the pool. The
    # heads of the pools, and the counter of experiments.
    assert table.calls == {"query": 7, "get_many": 1, "get": 1}


def test_unchanged_pool_costs_a_read_of_its_head(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    Agent(cluster)
    activities = pool_activity.PoolActivities()
    activities.read(cluster.services, ["default"])
    with recorded_table(cluster) as table:
        activities.read(cluster.services, ["default"])
    assert table.calls == {"get_many": 1}


def test_skips_removed_pools(cluster: Cluster) -> None:
    engine = cluster.services.engine
    engine.execute_command(addresses.pool("other"), PoolConfigured("other"))
    assert 'detcloud_queued_slots{pool="other"}' in read_samples(cluster)
    path = f"{V1}/resource-pools/other"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.ADMIN]).status == 200
    pass_cache(cluster)
    assert not any('pool="other"' in name for name in read_samples(cluster))


def test_limits_of_pools_are_those_of_the_configuration() -> None:
    assert POOLS_MAX == pools.POOLS_MAX


def test_counts_objects_beyond_the_limits(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        cluster.create(CONFIG)
    Agent(cluster)
    monkeypatch.setattr(cluster_metrics, "EXPERIMENTS_MAX", 1)
    monkeypatch.setattr(cluster_metrics, "GPU_TRIALS_MAX", 1)
    samples = read_samples(cluster)
    # Of three experiments, 1 + 1 rows are read and an experiment is shown.
    assert samples['detcloud_left_out{kind="experiments"}'] == 1
    assert samples['detcloud_left_out{kind="gpu_trials"}'] == 1
    assert EXPERIMENTS_MAX > 1


def test_names_follow_the_conventions() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert family.name.startswith("detcloud_")
        assert family.name.endswith("_total") is (family.kind == "counter")
        assert family.meaning.endswith(".")
        assert not set(family.labels) & {"experiment", "trial", "user", "agent", "instance"}


@pytest.mark.parametrize("body", [b"", b"\x01broken", b"\x01" + bytes(30), b"\x63newer", b"[1]"])
def test_damaged_gpu_rows_fail_no_scrape(cluster: Cluster, body: bytes) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, _ = agent.take_work()
    agent.report(first, metrics(NOW_MS // 1000, "gpu", **GPU_LINES))
    table = cluster.services.table
    rows = table.query(addresses.trial(1), "R#gpu#", "R#gpu$").rows
    put_row(cluster, rows[0].key, body)
    assert scrape(cluster).status == 200


class RacedTable(RecordedTable):
    """A table that calls `act` before the first query of a pool's parts."""

    def __init__(self, table: StateTable, act: Callable[[], object]) -> None:
        super().__init__(table)
        self._acts = iter([act])

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        if partition == addresses.pool("default") and (act := next(self._acts, None)):
            act()
        return super().query(partition, first, last, limit=limit, descending=descending)


def test_pool_that_changes_during_the_read_is_read_again(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    engine = cluster.services.engine
    before = engine.table
    engine.table = RacedTable(before, lambda: Agent(cluster, "late"))
    found = pool_activity.PoolActivities().read(cluster.services, ["default"])
    engine.table = before
    activity = found["default"]
    assert (activity.state.agents, activity.agents["enabled"]) == (1, 1)


def test_unavailable_table_answers_a_scrape_with_503(cluster: Cluster) -> None:
    class BrokenTable(RecordedTable):
        """A table whose queries fail."""

        def query(
            self,
            partition: str,
            first: str,
            last: str,
            *,
            limit: int = 1000,
            descending: bool = False,
        ) -> Page:
            raise Unavailable("throttled")

    before = cluster.services.engine.table
    cluster.services.engine.table = BrokenTable(before)
    answer = scrape(cluster)
    cluster.services.engine.table = before
    assert (answer.status, answer.code) == (503, "unavailable")
    # A later scrape reads again.
    assert scrape(cluster).status == 200


def test_concurrent_scrapes_read_once(cluster: Cluster) -> None:
    reader = ClusterMetrics()
    with recorded_table(cluster) as table, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: reader.read(cluster.services), range(8)))
    assert all(answer is answers[0] for answer in answers)
    # The rows of pools are among the queries of a single reading.
    assert table.calls["query"] <= 12
