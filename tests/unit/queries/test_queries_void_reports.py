"""Void reports: queries and charts leave out reports of lost training."""

from typing import Any

import pytest

from control_plane.agents.metric_rows import Stream, segment_writes
from control_plane.metrics.columns import MetricReport
from control_plane.metrics.segment import SUMMARY_REPORTS_MIN
from control_plane.queries.stream_reports import EXACT_MAX
from tests.unit.api.agent_side import CONFIG, Agent, checkpoint_line, metrics
from tests.unit.api.cluster import Cluster
from tests.unit.queries.test_queries_charts import series


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    return agent


def restart(agent: Agent, epoch: int) -> None:
    ended = {"kind": "exited", "reason": "errored", "code": 1}
    agent.report(f"1.{epoch}", ended, writer="agent")
    assert f"1.{epoch + 1}" in agent.take_work()


def list_reports(cluster: Cluster, query: str = "limit=500") -> list[tuple[int, dict[str, Any]]]:
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    is_first = True
    while is_first or cursor is not None:
        further = "" if is_first else f"&cursor={cursor}"
        answer = cluster.get(f"/trials/1/metrics?{query}{further}")
        is_first = False
        assert answer.status == 200, answer.body
        items += answer.json["items"]
        cursor = answer.json["next_cursor"]
    return [(item["steps_completed"], item["metrics"]) for item in items]


def validations(*pairs: tuple[int, float]) -> list[dict[str, Any]]:
    return [metrics(steps, "validation", loss=loss) for steps, loss in pairs]


def test_restart_from_batch_0_voids_all_earlier_reports(cluster: Cluster, agent: Agent) -> None:
    # Steps may come in any order. The second run reports neither step 5 nor the group `other`.
    agent.report("1.1", *validations((10, 1.0), (5, 0.25)), metrics(3, "other", x=1))
    assert cluster.get("/trials/1").json["best_metric"] == 0.25
    assert cluster.get("/experiments/1").json["best_metric"] == 0.25
    restart(agent, 1)
    assert list_reports(cluster) == []
    assert cluster.get("/trials/1/metrics/names").json["items"] == []
    agent.report("1.2", *validations((10, 0.75)))
    assert list_reports(cluster) == [(10, {"loss": 0.75})]
    assert series(cluster, "group=validation") == {"loss": [[10, 0.75]]}
    [name] = cluster.get("/trials/1/metrics/names").json["items"]
    assert (name["count"], name["minimum"], name["maximum"]) == (1, 0.75, 0.75)
    trial = cluster.get("/trials/1").json
    assert (trial["metric"], trial["best_metric"]) == (0.75, 0.75)
    assert cluster.get("/experiments/1").json["best_metric"] == 0.75
    chart = cluster.get("/experiments/1/metrics").json["series"]
    assert [one["points"] for one in chart if one["trial_id"] == 1] == [[[10, 0.75]]]


def test_restart_from_a_checkpoint_keeps_earlier_reports(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", *validations((10, 1.0)), checkpoint_line(1, 1, 10), *validations((15, 0.1)))
    agent.report("1.1", *validations((5, 2.0), (20, 0.2)))
    restart(agent, 1)
    assert [steps for steps, _ in list_reports(cluster)] == [10, 5]
    agent.report(
        "1.2", *validations((20, 0.5)), checkpoint_line(1, 2, 20), *validations((25, 0.05))
    )
    restart(agent, 2)
    agent.report("1.3", *validations((30, 0.4)))
    assert [steps for steps, _ in list_reports(cluster)] == [10, 5, 20, 30]
    assert [steps for steps, _ in list_reports(cluster, "limit=1")] == [10, 5, 20, 30]
    assert [point[0] for point in series(cluster, "group=validation")["loss"]] == [10, 5, 20, 30]
    assert cluster.get("/trials/1").json["best_metric"] == 0.4


def test_later_run_voids_values_reported_again(cluster: Cluster, agent: Agent) -> None:
    both = metrics(5, "validation", loss=1.0, accuracy=0.5)
    agent.report("1.1", both, metrics(10, "validation", loss=0.75), checkpoint_line(1, 1, 10))
    restart(agent, 1)
    agent.report("1.2", metrics(20, "validation", loss=0.5))
    assert series(cluster, "group=validation&name=loss") == {
        "loss": [[5, 1.0], [10, 0.75], [20, 0.5]]
    }
    # The later run evaluates older checkpoints after the chart was drawn.
    agent.report("1.2", metrics(5, "validation", loss=2.0), metrics(10, "validation", loss=3.0))
    assert list_reports(cluster) == [
        (5, {"accuracy": 0.5}),
        (20, {"loss": 0.5}),
        (5, {"loss": 2.0}),
        (10, {"loss": 3.0}),
    ]
    assert series(cluster, "group=validation") == {
        "accuracy": [[5, 0.5]],
        "loss": [[20, 0.5], [5, 2.0], [10, 3.0]],
    }


def test_void_rules_apply_to_rank_metrics(cluster: Cluster, agent: Agent) -> None:
    def rank_line(steps: int, value: int) -> dict[str, Any]:
        return {**metrics(steps, v=value), "kind": "rank_metrics"}

    agent.report("1.1", rank_line(7, 1), writer="1")
    restart(agent, 1)
    agent.report("1.2", rank_line(9, 2), writer="1")
    assert list_reports(cluster, "limit=9&rank=1") == [(9, {"v": 2})]
    assert series(cluster, "group=training&rank=1") == {"v": [[9, 2]]}


def test_profiler_reports_stay_valid(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(1_800_000_000, "cpu", load=1.0))
    restart(agent, 1)
    agent.report("1.2", metrics(1_800_000_100, "cpu", load=2.0))
    assert series(cluster, "group=cpu") == {"load": [[1_800_000_000, 1.0], [1_800_000_100, 2.0]]}
    assert len(list_reports(cluster)) == 2


def test_void_rules_apply_to_summarised_rows(cluster: Cluster, agent: Agent) -> None:
    # Rows of SUMMARY_REPORTS_MIN reports have summaries, which are used beyond EXACT_MAX reports.
    total, size = EXACT_MAX + 4 * SUMMARY_REPORTS_MIN, SUMMARY_REPORTS_MIN
    last = total - 300
    for first in range(0, total, size):
        reports = [
            MetricReport(1 + step, step, 0, {"loss": float(step)})
            for step in range(first, first + size)
        ]
        cluster.services.table.commit(list(segment_writes(1, Stream("training", 1, "0"), reports)))
    agent.report("1.1", checkpoint_line(1, 1, last))
    restart(agent, 1)
    agent.report("1.2", metrics(total, loss=0.5), metrics(7, loss=100_000.0))
    [name] = cluster.get("/trials/1/metrics/names").json["items"]
    # Steps 0 to `last` without 7, then `total` and 7.
    count = last + 2
    assert (name["count"], name["maximum"]) == (count, 100_000.0)
    mean = (sum(range(last + 1)) - 7 + 0.5 + 100_000.0) / count
    assert name["mean"] == pytest.approx(mean)
    assert len(list_reports(cluster)) == count


def test_spec_names_first_void_batch(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", checkpoint_line(1, 1, 10), *validations((15, 0.1)))
    ended = {"kind": "exited", "reason": "errored", "code": 1}
    agent.report("1.1", ended, writer="agent")
    answer = agent.sync()
    specs = [entry["spec"] for entry in answer.json["desired"] if entry["allocation"] == "1.2"]
    assert [spec["discarded_from"] for spec in specs] == [11]
