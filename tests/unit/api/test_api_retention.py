"""The retention of logs and metrics over HTTP: days, previews, cleanups, and deleted logs."""

from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.engine.due_rows import process_due_rows
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import collect

DAY_MS = 86_400_000
PATH = "/experiments/1/retention"


def send(
    cluster: Cluster, method: str, path: str, content: Any = None, role: Role = Role.USER
) -> Answer:
    return call(cluster.app, method, f"{V1}{path}", token=TOKENS[role], content=content)


def end_with_data(cluster: Cluster, config: str = CONFIG) -> None:
    """Run trials with a log and metrics, and end the experiment at NOW_MS."""
    cluster.create(config)
    agent = Agent(cluster)
    agent.take_work()
    agent.report("1.1", *(metrics(n, "training", loss=n / 10) for n in range(1, 9)))
    agent.report("1.1", metrics(8, "validation", loss=0.5))
    agent.log("1.1", 0, "one\ntwo\n")
    cluster.post("/experiments/1/kill", {})
    agent.report("1.1", {"kind": "exited", "reason": "killed", "code": 1}, writer="agent")
    agent.report("2.1", {"kind": "exited", "reason": "killed", "code": 1}, writer="agent")
    assert cluster.get("/experiments/1").json["state"] == "CANCELED"
    collect(cluster)


def pass_days(cluster: Cluster, days: int) -> None:
    cluster.clock.ms += days * DAY_MS
    process_due_rows(cluster.services.engine)
    cluster.services.engine.advance_until_idle(("experiment#1",))
    collect(cluster)


def test_configuration_decides_the_days(cluster: Cluster) -> None:
    cluster.create(f"{CONFIG}\nretention_policy: {{log_retention_days: 7}}\n")
    answer = cluster.get(PATH).json
    assert answer["log_retention_days"] == 7
    assert answer["metrics_retention_days"] is None
    assert (answer["logs_due_ms"], answer["planned_ms"], answer["due"]) == (None, None, False)


def test_deleted_logs_and_metrics_have_a_date(cluster: Cluster) -> None:
    end_with_data(cluster, f"{CONFIG}\nretention_policy: {{log_retention_days: 7}}\n")
    before = cluster.get(PATH).json
    assert before["logs_due_ms"] == before["planned_ms"] == before["ended_ms"] + 7 * DAY_MS
    assert cluster.get("/trials/1/logs").json["text"] == "one\ntwo\n"
    assert cluster.get("/trials/1/logs").json["deleted_ms"] is None
    send(cluster, "PATCH", PATH, {"metrics_retention_days": 7})
    pass_days(cluster, 7)
    deleted_ms = cluster.clock.ms
    log = cluster.get("/trials/1/logs").json
    assert (log["text"], log["deleted_ms"], log["complete"]) == ("", deleted_ms, True)
    lines = cluster.get("/trials/1/logs/lines").json
    assert (lines["items"], lines["deleted_ms"]) == ([], deleted_ms)
    trial = cluster.get("/trials/1").json
    assert trial["logs_deleted_ms"] == trial["metrics_deleted_ms"] == deleted_ms
    # The best and the last values stay, for the lists of experiments as well.
    assert trial["best_metric"] == 0.5
    experiment = cluster.get("/experiments/1").json
    assert experiment["logs_deleted_ms"] == experiment["metrics_deleted_ms"] == deleted_ms
    after = cluster.get(PATH).json
    assert (after["logs_due_ms"], after["planned_ms"], after["due"]) == (None, None, False)
    reports = cluster.get("/trials/1/metrics").json["items"]
    steps = [(item["group"], item["steps_completed"]) for item in reports]
    assert sorted(steps) == [("training", 1), ("training", 8), ("validation", 8)]


def test_preview_counts_bytes_of_each_trial(cluster: Cluster) -> None:
    end_with_data(cluster)
    first, second = cluster.get(f"{PATH}/trials").json["items"]
    assert first["log_bytes"] == len("one\ntwo\n")
    assert first["metrics_bytes"] > 0
    assert (second["log_bytes"], second["metrics_bytes"]) == (0, 0)
    send(cluster, "PATCH", PATH, {"log_retention_days": 0})
    pass_days(cluster, 0)
    assert cluster.get(f"{PATH}/trials").json["items"][0]["log_bytes"] == 0


def test_cluster_lists_expired_data_under_its_present_defaults(cluster: Cluster) -> None:
    end_with_data(cluster)
    assert cluster.get("/retention?due=true").json["items"] == []
    assert [item["experiment_id"] for item in cluster.get("/retention").json["items"]] == [1]
    config = "retention_policy: {log_retention_days: 3}"
    put = send(cluster, "PUT", "/cluster/configuration", {"config": config}, Role.ADMIN)
    assert put.status == 200, put.body
    cluster.clock.ms += 3 * DAY_MS
    [item] = cluster.get("/retention?due=true").json["items"]
    assert (item["log_retention_days"], item["due"], item["planned_ms"]) == (3, True, None)
    answer = send(cluster, "POST", f"{PATH}/cleanup", {}, Role.ADMIN)
    assert answer.status == 200, answer.body
    collect(cluster)
    assert cluster.get("/trials/1/logs").json["deleted_ms"] == cluster.clock.ms
    assert cluster.get("/retention?due=true").json["items"] == []


def test_default_days_are_stored_at_the_submission(cluster: Cluster) -> None:
    config = "retention_policy: {log_retention_days: 3, metrics_retention_days: 30}"
    send(cluster, "PUT", "/cluster/configuration", {"config": config}, Role.ADMIN)
    cluster.create(f"{CONFIG}\nretention_policy: {{log_retention_days: -1}}\n")
    answer = cluster.get(PATH).json
    assert (answer["log_retention_days"], answer["metrics_retention_days"]) == (-1, 30)


def test_days_of_a_single_trial(cluster: Cluster) -> None:
    end_with_data(cluster)
    answer = send(cluster, "PATCH", PATH, {"log_retention_days": 1, "trial_id": 1})
    assert answer.json["trial_days"] == [{"trial_id": 1, "log_retention_days": 1}]
    pass_days(cluster, 1)
    assert cluster.get("/trials/1").json["logs_deleted_ms"] == cluster.clock.ms
    assert cluster.get("/trials/2").json["logs_deleted_ms"] is None
    assert cluster.get("/experiments/1").json["logs_deleted_ms"] is None
    assert cluster.get("/retention?due=true").json["items"] == []


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"log_retention_days": -2}, "log_retention_days"),
        ({"metrics_retention_days": 32_768}, "metrics_retention_days"),
        ({"trial_id": 1}, "trial_id"),
        ({"trial_id": 1, "metrics_retention_days": 1}, "trial_id"),
        ({"days": 1}, "days"),
    ],
)
def test_refuses_wrong_days(cluster: Cluster, content: dict[str, int], path: str) -> None:
    cluster.create(CONFIG)
    answer = send(cluster, "PATCH", PATH, content)
    assert answer.status == 422
    assert answer.json["error"]["details"][0]["path"] == path


def test_refuses_trials_of_other_experiments(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    cluster.create(CONFIG)
    other = cluster.get("/experiments/2/trials").json["items"][0]["id"]
    answer = send(cluster, "PATCH", PATH, {"trial_id": other, "log_retention_days": 1})
    assert (answer.status, answer.json["error"]["details"][0]["path"]) == (422, "trial_id")


def test_cleanup_refuses_running_experiments(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    answer = send(cluster, "POST", f"{PATH}/cleanup", {}, Role.ADMIN)
    assert (answer.status, answer.json["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize("schedule", ["99 * * * *", "0 0 30 2 *", "daily", "0h"])
def test_cluster_refuses_schedules_without_a_time(cluster: Cluster, schedule: str) -> None:
    config = f"retention_policy: {{schedule: '{schedule}'}}"
    answer = send(cluster, "PUT", "/cluster/configuration", {"config": config}, Role.ADMIN)
    assert answer.status == 422
    assert "retention_policy.schedule" in str(answer.json["error"])


@pytest.mark.parametrize("schedule", ["0 3 * * *", "@daily", "24h"])
def test_cluster_accepts_cron_expressions_and_durations(cluster: Cluster, schedule: str) -> None:
    config = f"retention_policy: {{schedule: '{schedule}'}}"
    answer = send(cluster, "PUT", "/cluster/configuration", {"config": config}, Role.ADMIN)
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("kind", ["command", "notebook", "shell"])
def test_defaults_hold_for_every_kind_of_job(cluster: Cluster, kind: str) -> None:
    config = "retention_policy: {log_retention_days: 3}"
    send(cluster, "PUT", "/cluster/configuration", {"config": config}, Role.ADMIN)
    program = "entrypoint: [python, train.py]" if kind == "command" else "description: mine"
    assert cluster.create(program, kind=kind).status == 201
    assert cluster.get(PATH).json["log_retention_days"] == 3
