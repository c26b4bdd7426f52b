"""`detcloud retention` and the retention verbs, against the real application."""

import json
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from detcloud.cli.commands.retention import parse_days
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster
from tests.unit.api.test_api_collection import collect
from tests.unit.api.test_api_retention import DAY_MS, end_with_data, pass_days
from tests.unit.cli.conftest import Detcloud


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Serve the API with an ended experiment, and make the user an admin of the cluster."""
    built = build_cluster(tmp_path / "cluster")
    end_with_data(built)
    with serve_app(built.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.ADMIN])
        yield built


def test_days_are_set_and_shown(cluster: Cluster, detcloud: Detcloud) -> None:
    answer = detcloud("experiment", "set", "log-retention", "1", "--days", "30")
    days = "are kept for 30 days after the end of the experiment"
    assert answer.out == f"logs of experiment 1 {days}\n"
    answer = detcloud("experiment", "set", "metrics-retention", "1", "--forever")
    assert answer.out == "detailed metrics of experiment 1 are kept as long as the experiment\n"
    answer = detcloud("trial", "set", "log-retention", "2", "--days", "1")
    assert answer.out == (
        "the logs of trial 2 are kept for 1 day after the end of the experiment\n"
    )
    stored = cluster.get("/experiments/1/retention").json
    assert (stored["log_retention_days"], stored["metrics_retention_days"]) == (30, -1)
    assert stored["trial_days"] == [{"trial_id": 2, "log_retention_days": 1}]
    shown = detcloud("retention", "preview", "1").out
    assert "logs: kept for 30 days" in shown
    assert "metrics: kept as long as the experiment" in shown
    assert "next deletion: " in shown


def test_preview_and_cleanup_of_the_cluster(cluster: Cluster, detcloud: Detcloud) -> None:
    assert "expired data: 0 experiments" in detcloud("retention", "preview").out
    assert detcloud("retention", "cleanup", "--yes").code == 0
    # The collector has not run: the retention has ended, and the data is still stored.
    detcloud("experiment", "set", "log-retention", "1", "--days", "2")
    cluster.clock.ms += 2 * DAY_MS
    [item] = json.loads(detcloud("retention", "preview", "--json").out)
    assert (item["experiment_id"], item["metrics_bytes"]) == (1, 0)
    assert item["log_bytes"] > 0
    dry = detcloud("retention", "cleanup", "--dry-run")
    assert "expired data: 1 experiment, " in dry.out
    collect(cluster)
    assert cluster.get("/trials/1").json["logs_deleted_ms"] is None
    done = detcloud("retention", "cleanup", "--yes")
    assert "the cluster deletes this data of 1 experiment within minutes" in done.err
    collect(cluster)
    assert cluster.get("/trials/1").json["logs_deleted_ms"] == cluster.clock.ms
    assert json.loads(detcloud("retention", "preview", "--json").out) == []


def test_cleanup_needs_an_admin(
    cluster: Cluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    detcloud("experiment", "set", "log-retention", "1", "--days", "0")
    monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
    refused = detcloud("retention", "cleanup", "--yes")
    assert refused.code != 0
    assert "admin" in refused.err


def test_deleted_data_has_a_note_with_the_date(cluster: Cluster, detcloud: Detcloud) -> None:
    detcloud("experiment", "set", "log-retention", "1", "--days", "1")
    detcloud("experiment", "set", "metrics-retention", "1", "--days", "1")
    assert "deleted" not in detcloud("trial", "logs", "1").err
    pass_days(cluster, 1)
    for words in (("trial", "logs", "1"), ("trial", "logs", "1", "--json")):
        answer = detcloud(*words)
        assert (answer.code, answer.out) == (0, "")
        assert "note: logs of trial 1 were deleted on 2027-01-16" in answer.err
    assert "note: logs of 2 trials were deleted on" in detcloud("experiment", "logs", "1").err
    metrics = detcloud("trial", "metrics", "1")
    assert "validation" in metrics.out
    assert "note: detailed metrics of trial 1 were deleted on" in metrics.err


@pytest.mark.parametrize("text", ["-2", "32768", "1.5", "soon", ""])
def test_refuses_other_days(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_days(text)
