"""The numbers of experiments in each project, counted by filter."""

from typing import Any
from urllib.parse import urlencode

import pytest

from control_plane.queries import experiment_list
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import Cluster, limit_queries

CONFIG = """
name: NAME
entrypoint: python train.py
workspace: WORKSPACE
project: PROJECT
searcher: {name: single, metric: loss, max_length: {batches: 10}}
hyperparameters: {lr: LR}
"""


def create(cluster: Cluster, place: str, name: str = "one", lr: float = 0.1) -> int:
    workspace, project = place.split("/")
    text = CONFIG.replace("NAME", name).replace("WORKSPACE", workspace)
    text = text.replace("PROJECT", project).replace("LR", str(lr))
    answer = cluster.create(text, paused=True)
    assert answer.status == 201, answer.body
    return int(answer.json["id"])


def ask(cluster: Cluster, **query: Any) -> Any:
    answer = cluster.get(f"/experiment-groups?{urlencode(query)}")
    assert answer.status == 200, answer.body
    return answer.json


def counts(cluster: Cluster, **query: Any) -> dict[str, int]:
    items = ask(cluster, **query)["items"]
    return {f"{one['workspace']}/{one['project']}": one["experiments"] for one in items}


@pytest.fixture
def cluster_with_projects(cluster: Cluster) -> Cluster:
    for place, name, lr in (
        ("B/x", "one", 0.1),
        ("A/y", "two", 0.2),
        ("A/x", "one", 0.3),
        ("A/y", "one", 0.4),
    ):
        create(cluster, place, name, lr)
    return cluster


def test_groups_count_the_experiments_of_each_project(cluster_with_projects: Cluster) -> None:
    answer = ask(cluster_with_projects)
    assert answer == {
        "items": [
            {"workspace": "A", "project": "x", "experiments": 1},
            {"workspace": "A", "project": "y", "experiments": 2},
            {"workspace": "B", "project": "x", "experiments": 1},
        ],
        "left_out_before": None,
        "is_exact": True,
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"filter": "one"}, {"A/x": 1, "A/y": 1, "B/x": 1}),
        ({"filter": "lr>0.15 workspace:A"}, {"A/x": 1, "A/y": 2}),
        ({"workspace": "B"}, {"B/x": 1}),
        ({"filter": "state:paused", "project": "y"}, {"A/y": 2}),
        ({"state": "failed"}, {}),
        ({"user": "nobody"}, {}),
    ],
)
def test_groups_count_matching_experiments(
    cluster_with_projects: Cluster, query: dict[str, str], expected: dict[str, int]
) -> None:
    assert counts(cluster_with_projects, **query) == expected
    # The same filter lists the same experiments.
    items = cluster_with_projects.get(f"/experiments?{urlencode(query)}").json["items"]
    assert len(items) == sum(expected.values())


def test_conditions_of_active_experiments_are_exact(
    cluster_with_projects: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(cluster_with_projects, slots=1)
    for number in (1, 2):
        cluster_with_projects.post(f"/experiments/{number}/activate", {})
    agent.take_work()
    # The first experiment has the slot, and the second waits.
    assert counts(cluster_with_projects, filter="state:running") == {"B/x": 1}
    assert counts(cluster_with_projects, state="queued") == {"A/y": 1}
    # With more active experiments than a request reads, the numbers are upper limits.
    monkeypatch.setattr(experiment_list, "_DECIDED_MAX", 1)
    answer = ask(cluster_with_projects, filter="state:running")
    assert not answer["is_exact"]
    assert sum(one["experiments"] for one in answer["items"]) == 2


def test_only_the_newest_experiments_are_counted(cluster_with_projects: Cluster) -> None:
    answer = ask(limit_queries(cluster_with_projects, listed_experiments_max=3))
    assert sum(one["experiments"] for one in answer["items"]) == 3
    assert answer["left_out_before"] == 2


def test_wrong_filter_is_refused(cluster: Cluster) -> None:
    answer = cluster.get("/experiment-groups?filter=state:x")
    assert answer.status == 422
    assert answer.json["error"]["details"][0]["column"] == 7
