"""The states of alarms, and the pages of the runbook."""

import json
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.alarms.records import AlarmRow
from control_plane.alarms.rows import alarm_key, encode_alarm
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.table import Expect, Put
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import call

ROWS = (
    AlarmRow("queue-wait", "gpus", "job 7 waits", 1, raised_ms=5, is_notified=True),
    AlarmRow("failed-boots", "gpus", "broken", 1, raised_ms=4, value="3 failed boots in a row"),
    AlarmRow("lag", "", "late", 1, value="40 s"),
    AlarmRow("machine-age", "gpus", "old", 1, raised_ms=2, cleared_ms=3, is_notified=True),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = build_cluster(tmp_path / "objects")
    for row in ROWS:
        put = Put(alarm_key(row.alarm, row.pool), 1, encode_alarm(row), Expect.ABSENT)
        cluster.services.table.commit((put,))
    return cluster


def configure(cluster: Cluster, alarms: dict[str, object]) -> None:
    put = Put(SHARED_CONFIG, 9, json.dumps({"alarms": alarms}).encode(), Expect.ANYTHING)
    cluster.services.table.commit((put,))


def test_lists_raised_alarms_only(cluster: Cluster) -> None:
    answer = cluster.get("/alarms")
    assert answer.status == 200
    assert json.loads(answer.body)["items"] == [
        {
            "alarm": "failed-boots",
            "pool": "gpus",
            "text": "broken",
            "raised_ms": 4,
            "runbook": "docs/runbook/failed-boots.md",
            "state": "raised",
            "since_ms": 4,
            "value": "3 failed boots in a row",
            "threshold": "2 failed boots in a row",
            "meaning": "Machines of an offering do not boot.",
        },
        {
            "alarm": "queue-wait",
            "pool": "gpus",
            "text": "job 7 waits",
            "raised_ms": 5,
            "runbook": "docs/runbook/queue-wait.md",
            "state": "raised",
            "since_ms": 5,
            "value": "",
            "threshold": "2 h",
            "meaning": "A job waits for slots for too long.",
        },
    ]


def test_lists_all_alarms_with_their_states(cluster: Cluster) -> None:
    configure(cluster, {"off": ["hourly-cost"], "lag": "1m30s"})
    listed = cluster.get("/alarms?state=all").json
    states = [
        (item["alarm"], item["pool"], item["state"], item["since_ms"], item["value"])
        for item in listed["items"]
    ]
    assert states == [
        ("failed-boots", "gpus", "raised", 4, "3 failed boots in a row"),
        ("hourly-cost", "", "off", None, ""),
        ("lag", "", "pending", 1, "40 s"),
        ("machine-age", "gpus", "clear", 3, ""),
        ("queue-wait", "gpus", "raised", 5, ""),
    ]
    thresholds = {item["alarm"]: item["threshold"] for item in listed["items"]}
    assert thresholds["lag"] == "1 min in two checks"
    cost = "2 times the most expensive hour of the week before, and 10 $ an hour"
    assert thresholds["hourly-cost"] == cost
    assert listed["cloud_alarms"] == ["api", "dead-letters", "errors", "minute", "throttles"]


def test_invalid_thresholds_do_not_hide_raised_alarms(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    configure(cluster, {"queue_wait": "soon"})
    items = cluster.get("/alarms").json["items"]
    assert [item["alarm"] for item in items] == ["failed-boots", "queue-wait"]
    assert {item["threshold"] for item in items} == {""}
    assert "the thresholds of alarms cannot be read" in caplog.text


def test_alarm_of_a_newer_version_is_listed(cluster: Cluster) -> None:
    row = AlarmRow("moon-phase", "", "full", 1, raised_ms=1)
    put = Put(alarm_key("moon-phase", ""), 1, encode_alarm(row), Expect.ABSENT)
    cluster.services.table.commit((put,))
    [item] = [one for one in cluster.get("/alarms").json["items"] if one["alarm"] == "moon-phase"]
    assert (item["meaning"], item["threshold"], item["text"]) == ("", "", "full")


def test_describes_alarms_with_the_runbook(cluster: Cluster) -> None:
    described = cluster.get("/alarms/lag").json
    assert [item["state"] for item in described["items"]] == ["pending"]
    assert described["runbook"].startswith("# Alarm `lag`\n\n**Meaning.** ")
    assert "## Silence an alarm" in described["runbook"]
    # The state of an alarm of the cloud is known to the cloud alone.
    described = cluster.get("/alarms/minute").json
    assert described["items"] == []
    assert described["runbook"].startswith("# Alarm `minute`")


@pytest.mark.parametrize("name", ["README", "moon", "..%2Faws", "%2e%2e"])
def test_unknown_alarms_have_no_page(cluster: Cluster, name: str) -> None:
    answer = cluster.get(f"/alarms/{name}")
    assert answer.status == 404


@pytest.mark.parametrize("path", ["/alarms", "/alarms?state=all", "/alarms/lag"])
def test_agents_may_not_read_alarms(cluster: Cluster, path: str) -> None:
    answer = call(cluster.app, "GET", f"{V1}{path}", token=TOKENS[Role.AGENT])
    assert answer.status == 403


def test_unknown_state_is_refused(cluster: Cluster) -> None:
    assert cluster.get("/alarms?state=loud").status == 422
