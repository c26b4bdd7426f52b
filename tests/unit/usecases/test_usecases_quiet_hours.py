"""Quiet hours of pools over HTTP: the configuration, the states and the reasons of waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.fleet.budget import check_budgets
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster
from tests.unit.api.exchange import Answer
from tests.unit.usecases.test_usecases_resource_pools import apply, put, settings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NIGHT = "quiet_hours: [{begin: '22:00', end: '06:00'}]"


def start_at(cluster: Cluster, hour: int) -> int:
    """Set the clock to an hour of the day in UTC, at least a day from now. Return the time."""
    day = cluster.clock.ms // DAY_MS + 2
    cluster.clock.ms = day * DAY_MS + hour * HOUR_MS
    return cluster.clock.ms


def pool_of(cluster: Cluster) -> Answer:
    return cluster.get("/resource-pools/default")


def test_quiet_hours_act_at_once_and_are_shown(cluster: Cluster) -> None:
    now_ms = start_at(cluster, 23)
    made = put(cluster, "default", NIGHT)
    assert made.status == 200, made.body
    assert (made.json["state"], made.json["quiet_until_ms"]) == (
        "QUIET_HOURS",
        now_ms + 7 * HOUR_MS,
    )
    assert made.json["next_quiet_ms"] == now_ms + 23 * HOUR_MS
    listed = cluster.get("/resource-pools").json["items"][0]
    assert listed["state"] == "QUIET_HOURS"
    rule = made.json["config"]["quiet_hours"][0]
    assert (rule["begin"], rule["end"], rule["running"]) == ("22:00", "06:00", "finish")
    assert put(cluster, "default", "{}").json["state"] == "OPEN"
    assert settings(cluster, "default").quiet_ended_ms == now_ms


def test_waiting_job_shows_the_end(cluster: Cluster) -> None:
    start_at(cluster, 23)
    put(cluster, "default", NIGHT)
    created = cluster.create(CONFIG)
    assert created.status == 201
    assert "has quiet hours until" in created.json["warnings"][0]
    [job] = cluster.get("/jobs?resource_pool=default").json["items"]
    assert job["waits"].startswith("pool default has quiet hours until 20")
    assert job["waits"].endswith(" 06:00 UTC")
    assert job["expected_start_ms"] is None
    assert pool_of(cluster).json["waits"] == f"waits: {job['waits']}"
    cluster.clock.ms += 7 * HOUR_MS
    check_budgets(cluster.services.engine, ["default"])
    [job] = cluster.get("/jobs?resource_pool=default").json["items"]
    assert "quiet hours" not in job["waits"]
    assert pool_of(cluster).json["state"] == "OPEN"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("[{time_zone: Mars/Olympus, end: '06:00'}]", "quiet_hours[0].time_zone is not a time"),
        ("[{}]", "quiet_hours cover the whole week"),
    ],
)
def test_wrong_quiet_hours_are_refused(cluster: Cluster, rules: str, text: str) -> None:
    answer = put(cluster, "default", f"quiet_hours: {rules}")
    assert (answer.status, answer.code) == (422, "invalid")
    assert text in answer.json["error"]["message"]
    config = f"resource_pools: [{{pool_name: default, quiet_hours: {rules}}}]"
    answer = apply(cluster, config)
    assert answer.status == 422
    assert f"resource_pools[0].{text}" in answer.json["error"]["message"]


def test_equal_rules_keep_the_periods(cluster: Cluster) -> None:
    start_at(cluster, 12)
    put(cluster, "default", NIGHT)
    before = settings(cluster, "default")
    assert len(before.quiet_periods) > 1
    cluster.clock.ms += HOUR_MS
    put(cluster, "default", f"description: mine\n{NIGHT}")
    assert settings(cluster, "default") == replace(before, description="mine")
