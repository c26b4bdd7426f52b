"""Charts over HTTP: metric names, series, and the best trials of an experiment."""

from functools import partial
from random import Random
from typing import Any

import pytest

from control_plane.agents.metric_rows import (
    Stream,
    merge_allocation,
    segment_writes,
    store_full_segment,
)
from control_plane.agents.sessions import MERGE_FROM_ROWS
from control_plane.metrics.columns import MetricReport
from control_plane.objects.store import ObjectKey
from control_plane.queries.metric_series import MetricSeries
from control_plane.queries.metric_series_cache import SERIES_NUMBERS, MetricSeriesCache
from control_plane.queries.stream_reports import EXACT_MAX
from control_plane.queries.void_reports import RunCuts
from tests.unit.api.agent_side import CONFIG, Agent, checkpoint_line, metrics
from tests.unit.api.cluster import Cluster


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent that runs trials 1 and 2 of experiment 1."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    return agent


def series(cluster: Cluster, query: str, trial: int = 1) -> dict[str, Any]:
    answer = cluster.get(f"/trials/{trial}/metrics/series?{query}")
    assert answer.status == 200, answer.body
    return {one["name"]: one["points"] for one in answer.json["series"]}


def rows(cluster: Cluster) -> int:
    return len(cluster.services.table.query("trial#1", "R#", "R$").rows)


def restart(agent: Agent) -> None:
    agent.report("1.1", {"kind": "exited", "reason": "errored", "code": 1}, writer="agent")
    assert "1.2" in agent.take_work()


def test_metric_names_have_summaries(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(1, loss=4.0, note="x"), metrics(2, loss=1, accuracy="NaN"))
    agent.report("1.1", metrics(5, "validation", loss=0.5), metrics(3, loss=2.5))
    items = cluster.get("/trials/1/metrics/names").json["items"]
    # (4 + 1 + 2.5) / 3 = 2.5
    training = {"count": 3, "last_steps": 3, "last": 2.5, "minimum": 1, "maximum": 4, "mean": 2.5}
    half = {"last": 0.5, "minimum": 0.5, "maximum": 0.5, "mean": 0.5}
    assert items == [
        {"group": "training", "name": "loss", **training},
        {"group": "validation", "name": "loss", "count": 1, "last_steps": 5, **half},
    ]
    assert cluster.get("/trials/9/metrics/names").status == 404


def test_series_has_points_and_total(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", *(metrics(n, loss=n, other=-n, text="x") for n in range(1, 6)))
    assert series(cluster, "group=training") == {
        "loss": [[n, n] for n in range(1, 6)],
        "other": [[n, -n] for n in range(1, 6)],
    }
    assert list(series(cluster, "group=training&name=other&name=loss")) == ["other", "loss"]
    [one] = cluster.get("/trials/1/metrics/series?group=training&name=loss&points=3").json["series"]
    # On a straight line all triangles have area 0, so that the first point of bucket 2 to 4 stays.
    assert one == {
        "group": "training",
        "name": "loss",
        "points": [[1, 1], [2, 2], [5, 5]],
        "total": 5,
    }
    assert series(cluster, "group=training&name=nothing") == {"nothing": []}
    assert series(cluster, "group=nothing") == {}


@pytest.mark.parametrize("query", ["", "group=", "group=training&points=2", "group=g&points=2001"])
def test_rejects_series_request_out_of_bounds(cluster: Cluster, agent: Agent, query: str) -> None:
    assert cluster.get(f"/trials/1/metrics/series?{query}").status == 422


def test_series_grows_with_reports(cluster: Cluster, agent: Agent) -> None:
    for n in range(1, 4):
        agent.report("1.1", metrics(n, loss=n))
        assert series(cluster, "group=training") == {"loss": [[k, k] for k in range(1, n + 1)]}


def test_repeated_steps_of_a_restarted_trial_are_drawn_once(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", *(metrics(steps, loss=1) for steps in (10, 20, 30)))
    assert series(cluster, "group=training") == {"loss": [[10, 1], [20, 1], [30, 1]]}
    agent.report("1.1", checkpoint_line(1, 1, 10))
    restart(agent)
    agent.report("1.2", *(metrics(steps, loss=2) for steps in (20, 30, 40)))
    assert series(cluster, "group=training") == {"loss": [[10, 1], [20, 2], [30, 2], [40, 2]]}
    agent.report("1.2", metrics(50, loss=2))
    [name] = cluster.get("/trials/1/metrics/names").json["items"]
    # 1, 2, 2, 2, 2
    assert (name["count"], name["mean"], name["last_steps"]) == (5, 1.8, 50)


def test_merged_rows_give_the_same_series(cluster: Cluster, agent: Agent) -> None:
    for n in range(1, 2 * MERGE_FROM_ROWS + 2):
        agent.report("1.1", metrics(n, loss=n))
        if n % 7 == 0:
            assert len(series(cluster, "group=training")["loss"]) == n
    count = 2 * MERGE_FROM_ROWS + 1
    assert rows(cluster) < MERGE_FROM_ROWS
    assert series(cluster, "group=training")["loss"] == [[n, n] for n in range(1, count + 1)]
    first = cluster.get("/trials/1/metrics?limit=40").json
    merge_allocation(
        cluster.services.table, 1, 1, partial(store_full_segment, cluster.services.objects)
    )
    second = cluster.get(f"/trials/1/metrics?limit=500&cursor={first['next_cursor']}").json
    listed = [item["steps_completed"] for item in first["items"] + second["items"]]
    assert listed == list(range(1, count + 1))
    assert second["next_cursor"] is None


def test_full_rows_are_listed_and_drawn(cluster: Cluster, agent: Agent) -> None:
    notes = {n: Random(n).randbytes(70_000).hex() for n in range(1, 4)}
    for n, note in notes.items():
        agent.report("1.1", metrics(n, loss=n, note=note))
    assert len(list(cluster.services.objects.list_objects(ObjectKey("metrics/1")))) == 3
    items = cluster.get("/trials/1/metrics").json["items"]
    assert [(item["steps_completed"], item["metrics"]["note"]) for item in items] == list(
        notes.items()
    )
    assert series(cluster, "group=training") == {"loss": [[1, 1], [2, 2], [3, 3]]}
    assert cluster.get("/trials/1").json["steps_completed"] == 3


def test_long_series_is_drawn_from_summaries(cluster: Cluster, agent: Agent) -> None:
    stream, table = Stream("training", 1, "0"), cluster.services.table
    store = partial(store_full_segment, cluster.services.objects)

    def write(first: int, last: int) -> None:
        reports = [MetricReport(10 * n, n, 0, {"x": float(n % 16)}) for n in range(first, last)]
        table.commit(list(segment_writes(1, stream, reports)))

    # Of 19,200 reports, the first 16,640 are summarised together, because they exceed EXACT_MAX.
    # The other four rows have their own summaries.
    for first in range(1, 19_200, 640):
        write(first, first + 640)
        if first > EXACT_MAX - 1_000:
            [drawn] = series(cluster, "group=training&points=2000").values()
    # Buckets 1 to 16, 17 to 32 and so on keep values 15 and 0, and the first value of a segment, 1.
    assert {value for _, value in drawn} == {0, 1, 15}
    # Rows below the size of a summary, more than TAIL_MAX reports in all.
    for first in range(19_201, 21_601, 40):
        write(first, first + 40)
        merge_allocation(table, 1, 1, store)
        series(cluster, "group=training")
    [name] = cluster.get("/trials/1/metrics/names").json["items"]
    # 1,350 times 0 to 15: a mean of 7.5.
    assert (name["count"], name["mean"], name["last_steps"]) == (21_600, pytest.approx(7.5), 21_600)
    assert (name["minimum"], name["maximum"]) == (0, 15)
    [one] = cluster.get("/trials/1/metrics/series?group=training&points=300").json["series"]
    assert one["total"] == 21_600
    assert (len(one["points"]), one["points"][0], one["points"][-1]) == (300, [1, 1], [21_600, 0])


def test_unused_series_leave_the_cache(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(1, loss=1))
    cache = MetricSeriesCache(numbers_max=3 * SERIES_NUMBERS)

    def draw(series: MetricSeries) -> list[str]:
        return list(series.summaries())

    def names_of(group: str) -> list[str]:
        services = cluster.services
        return cache.draw_chart(services.table, services.objects, 1, group, RunCuts(), draw)

    for n in range(10):
        assert names_of(f"g{n}") == []
    assert len(cache) == 3
    assert names_of("training") == ["loss"]


def test_experiment_series_has_hyperparameters_on_request(cluster: Cluster, agent: Agent) -> None:
    for trial, loss in ((1, 0.7), (2, 0.3)):
        agent.report(f"{trial}.1", metrics(5, "validation", loss=loss))
    agent.report("2.1", metrics(6, "validation", loss=0.5))
    drawn = cluster.get("/experiments/1/metrics?hparams=true").json["series"]
    for one in drawn:
        assert one["hparams"] == cluster.get(f"/trials/{one['trial_id']}").json["hparams"]
    # The second trial was worse at its last validation than before.
    assert [(one["trial_id"], one["best_metric"]) for one in drawn] == [(2, 0.3), (1, 0.7)]


def test_experiment_series_starts_with_best_trials(cluster: Cluster, agent: Agent) -> None:
    for trial, loss in ((1, 0.7), (2, 0.3)):
        agent.report(f"{trial}.1", metrics(5, "validation", loss=loss, accuracy=1 - loss))
    found = cluster.get("/experiments/1/metrics").json
    assert found == {
        "group": "validation",
        "name": "loss",
        "series": [
            {"trial_id": 2, "points": [[5, 0.3]], "total": 1},
            {"trial_id": 1, "points": [[5, 0.7]], "total": 1},
        ],
    }
    agent.report("1.1", metrics(6, "validation", loss=0.1))
    best = cluster.get("/experiments/1/metrics?trials=1&name=loss").json["series"]
    assert [one["trial_id"] for one in best] == [1]
    other = cluster.get("/experiments/1/metrics?group=training&name=loss").json
    assert (other["group"], [one["total"] for one in other["series"]]) == ("training", [0, 0])
    assert cluster.get("/experiments/9/metrics").status == 404
    assert cluster.get("/experiments/1/metrics?trials=201").status == 422
    # The limit is 50,000 points in all.
    assert cluster.get("/experiments/1/metrics?trials=200&points=250").status == 200
    assert cluster.get("/experiments/1/metrics?trials=200&points=251").status == 422


def test_draws_groups_with_special_characters(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(1, "gpu 0/é", load=0.5))
    assert series(cluster, "group=gpu%200/%C3%A9") == {"load": [[1, 0.5]]}
    [name] = cluster.get("/trials/1/metrics/names").json["items"]
    assert name["group"] == "gpu 0/é"
    [item] = cluster.get("/trials/1/metrics?group=gpu%200/%C3%A9").json["items"]
    assert item["group"] == "gpu 0/é"


def test_log_lines_are_searched_and_followed(cluster: Cluster, agent: Agent) -> None:
    text = "ERROR: a\nINFO: b\nhalf"
    marks = [[0, 1000], [9, 2000]]
    agent.sync(logs=[{"allocation": "1.1", "offset": 0, "text": text, "marks": marks}])
    found = cluster.get("/trials/1/logs/lines").json
    whole = {"rank": 0, "unfinished": False}
    assert found["items"] == [
        {**whole, "offset": 0, "time_ms": 1000, "level": "ERROR", "text": "ERROR: a"},
        {**whole, "offset": 9, "time_ms": 2000, "level": "INFO", "text": "INFO: b"},
    ]
    assert not found["complete"]
    agent.log("1.1", len(text), " done\n")
    agent.finish("1.1")
    rest = cluster.get(f"/trials/1/logs/lines?after={found['next_cursor']}").json
    assert [item["text"] for item in rest["items"]] == ["half done"]
    assert (rest["complete"], rest["next_cursor"]) == (True, None)
    late = cluster.get("/trials/1/logs/lines?since_ms=1500&until_ms=2500&level=INFO").json["items"]
    assert [item["text"] for item in late] == ["INFO: b", "half done"]
    assert cluster.get("/trials/1/logs/lines?search=ZZZ&rank=3").json["items"] == []


@pytest.mark.parametrize("query", ["level=LOUD", "after=xyz", "limit=0", "rank=-1", "since_ms=x"])
def test_rejects_unknown_log_parameters(cluster: Cluster, agent: Agent, query: str) -> None:
    assert cluster.get(f"/trials/1/logs/lines?{query}").status == 422


def test_log_of_an_older_agent_has_arrival_times(cluster: Cluster, agent: Agent) -> None:
    agent.log("1.1", 0, "one\n")
    [item] = cluster.get("/trials/1/logs/lines").json["items"]
    assert item["time_ms"] == cluster.services.now_ms()


def test_rank_metrics_are_listed_separately(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(1, loss=4.0))
    # Each call writes a row; 48 rows are merged.
    for steps in range(1, MERGE_FROM_ROWS + 2):
        agent.report("1.1", metrics(steps, loss=steps) | {"kind": "rank_metrics"}, writer="12")
    agent.report("1.1", metrics(1, "cpu", load=9) | {"kind": "rank_metrics"}, writer="12")
    assert len(cluster.services.table.query("trial#1", "W#", "W$").rows) < MERGE_FROM_ROWS

    def read_items(query: str) -> list[tuple[str, Any]]:
        items = cluster.get(f"/trials/1/metrics{query}").json["items"]
        return [(item["group"], item["metrics"]) for item in items]

    assert read_items("") == [("training", {"loss": 4.0})]
    of_rank = [("training", {"loss": steps}) for steps in range(1, MERGE_FROM_ROWS + 2)]
    assert read_items("?rank=12&limit=100") == [("cpu", {"load": 9}), *of_rank]
    assert read_items("?rank=12&group=cpu") == [("cpu", {"load": 9})]
    assert read_items("?rank=1") == []
    first = cluster.get("/trials/1/metrics?rank=12&limit=20").json
    rest = f"?rank=12&limit=100&cursor={first['next_cursor']}"
    assert len(first["items"]) == 20
    assert read_items(rest) == of_rank[19:]
    names = cluster.get("/trials/1/metrics/names").json["items"]
    assert [(one["group"], one["count"]) for one in names] == [("training", 1)]


def test_rank_metrics_are_drawn_separately(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(10, "cpu", busy=50))
    for rank, busy in ((3, 30), (12, 12)):
        lines = [metrics(10 * n, "cpu", busy=busy + n) for n in (1, 2)]
        agent.report("1.1", *({**line, "kind": "rank_metrics"} for line in lines), writer=str(rank))
    assert cluster.get("/trials/1/metrics/ranks").json == {"items": [3, 12]}
    assert series(cluster, "group=cpu") == {"busy": [[10, 50]]}
    assert series(cluster, "group=cpu&rank=3") == {"busy": [[10, 31], [20, 32]]}
    assert series(cluster, "group=cpu&rank=12&name=busy") == {"busy": [[10, 13], [20, 14]]}
    assert series(cluster, "group=cpu&rank=4") == {}
    [name] = cluster.get("/trials/1/metrics/names?rank=12").json["items"]
    assert (name["group"], name["name"], name["last"], name["count"]) == ("cpu", "busy", 14, 2)
    # Later reports are drawn too. Values that a later allocation repeats replace earlier values.
    line = {**metrics(30, "cpu", busy=33), "kind": "rank_metrics"}
    agent.report("1.1", line, writer="3")
    assert series(cluster, "group=cpu&rank=3")["busy"][-1] == [30, 33]
    restart(agent)
    agent.report("1.2", {**metrics(20, "cpu", busy=7), "kind": "rank_metrics"}, writer="3")
    assert series(cluster, "group=cpu&rank=3") == {"busy": [[10, 31], [20, 7]]}


def test_single_process_trial_has_no_rank_metrics(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(10, "cpu", busy=50))
    assert cluster.get("/trials/1/metrics/ranks").json == {"items": []}
    assert cluster.get("/trials/9/metrics/ranks").status == 404
    assert cluster.get("/trials/1/metrics/series?group=cpu&rank=100000").status == 422


def test_points_have_report_times(cluster: Cluster, agent: Agent) -> None:
    assert "started_ms" not in cluster.get("/trials/1/metrics/series?group=training").json
    path = "/trials/1/metrics/series?group=training&times=true"
    assert cluster.get(path).json == {"started_ms": None, "series": []}
    agent.report("1.1", {"kind": "environment", "time_ms": 900, "python": "3.12"})
    timeless = metrics(3, loss=0.7) | {"time_ms": 0}
    # The clock was set back before the last report.
    agent.report(
        "1.1",
        *(metrics(n, loss=1 / n) | {"time_ms": 1000 * n} for n in (1, 2)),
        timeless,
        *(metrics(n, loss=1 / n) | {"time_ms": 1000 * n} for n in (4,)),
        metrics(5, loss=0.5) | {"time_ms": 3999},
    )
    answer = cluster.get(path).json
    assert answer["started_ms"] == 900
    [drawn] = [one["points"] for one in answer["series"]]
    # Points without a time lie between points with times.
    assert [(steps, time_ms) for steps, _, time_ms in drawn] == [
        (1, 1000),
        (2, 2000),
        (3, 3000),
        (4, 4000),
        (5, 4000),
    ]
    assert series(cluster, "group=training")["loss"][0] == [1, 1.0]
    agent.report("1.1", metrics(5, "validation", loss=0.5) | {"time_ms": 5500})
    [one] = cluster.get("/experiments/1/metrics?times=true&trials=1").json["series"]
    assert (one["started_ms"], one["points"]) == (900, [[5, 0.5, 5500]])


def test_long_series_keeps_sampled_report_times(cluster: Cluster, agent: Agent) -> None:
    stream, table = Stream("training", 1, "0"), cluster.services.table
    # Each step takes a second; an hour's pause precedes step 641.
    reports = [
        MetricReport(10 * n, n, 1000 * n + 3_600_000 * (n > 640), {"x": float(n % 16)})
        for n in range(1, EXACT_MAX + 641)
    ]
    for first in range(0, len(reports), 640):
        table.commit(list(segment_writes(1, stream, reports[first : first + 640])))
    path = "/trials/1/metrics/series?group=training&points=2000&times=true"
    [drawn] = [one["points"] for one in cluster.get(path).json["series"]]
    known = {report.steps: report.time_ms for report in reports}
    assert len(drawn) > 100
    assert [time_ms for *_, time_ms in drawn] == [known[steps] for steps, *_ in drawn]
