"""Schedules over HTTP: creation, changes, ownership, and runs at once."""

from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.queries.schedules import time_key
from control_plane.usecases import schedules
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

DAILY = f"{CONFIG}\nschedule: {{cron: '0 3 * * *', time_zone: Europe/Berlin}}\n"
# NOW_MS is 8:00 UTC on 15 January. 3:00 in Berlin is 2:00 UTC, 18 hours later.
NEXT_MS = NOW_MS + 18 * 3_600_000
OTHER = "dct_another-users-token"


def create(cluster: Cluster, config: str = DAILY, key: str | None = None, **fields: Any) -> Answer:
    body = {"config": config, "model_code": cluster.store_code(), **fields}
    return cluster.post("/schedules", body, key)


def send(cluster: Cluster, method: str, path: str, token: str = TOKENS[Role.USER]) -> Answer:
    return call(cluster.app, method, f"{V1}{path}", token=token)


def problem(answer: Answer) -> tuple[int, str]:
    error = answer.json["error"]
    return answer.status, (error.get("details") or [{"path": error["code"]}])[0]["path"]


def test_schedule_is_created_without_an_experiment(cluster: Cluster) -> None:
    answer = create(cluster)
    assert answer.status == 201, answer.body
    assert answer.json == {
        "id": 1,
        "name": answer.json["name"],
        "user": "user-1",
        "cron": "0 3 * * *",
        "time_zone": "Europe/Berlin",
        "overlap": "skip",
        "catch_up": False,
        "paused": False,
        "created_ms": NOW_MS,
        "next_ms": NEXT_MS,
        "last_experiment_id": None,
        "runs": [],
        "warnings": [],
    }
    assert cluster.get("/experiments").json["items"] == []
    assert [item["id"] for item in cluster.get("/schedules").json["items"]] == [1]


def test_repeated_creation_stores_one_schedule(cluster: Cluster) -> None:
    assert create(cluster, key="k").json["id"] == create(cluster, key="k").json["id"] == 1
    assert len(cluster.get("/schedules").json["items"]) == 1


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("", "schedule"),
        ("schedule: {cron: '0 3 * *'}", "schedule.cron"),
        ("schedule: {cron: '0 0 30 2 *'}", "schedule.cron"),
        ("schedule: {cron: '@daily', time_zone: Europe/Berlon}", "schedule.time_zone"),
        ("schedule: {cron: '@daily', time_zone: ../../etc/passwd}", "schedule.time_zone"),
        ("schedule: {cron: '@daily', overlap: wait}", "schedule.overlap"),
        ("schedule: {time_zone: UTC}", "schedule.cron"),
        ("schedule: {cron: '@daily'}\nresources: {resource_pool: none}", "resources.resource_pool"),
    ],
)
def test_invalid_schedules_are_refused(cluster: Cluster, section: str, path: str) -> None:
    assert problem(create(cluster, f"{CONFIG}\n{section}\n")) == (422, path)
    assert cluster.get("/schedules").json["items"] == []


def test_experiments_cannot_have_schedules(cluster: Cluster) -> None:
    assert problem(cluster.create(DAILY)) == (422, "schedule")
    # Commands, notebooks and shells are never scheduled.
    command = "entrypoint: ls\nschedule: {cron: '@daily'}\n"
    assert problem(cluster.create(command, kind="command")) == (422, "schedule")


def test_test_runs_and_checks_accept_schedules(cluster: Cluster) -> None:
    assert cluster.create(DAILY, validate_only=True).status == 200
    tried = cluster.create(DAILY, test_mode=True)
    assert (tried.status, tried.json["schedule_id"]) == (201, None)
    assert cluster.get("/experiments/1").json["config"]["schedule"] is None


def test_long_names_are_cut_in_lists(cluster: Cluster) -> None:
    named = create(cluster, overrides=["name=" + "n" * 300])
    assert named.json["name"] == "n" * 200
    cluster.post("/schedules/1/run", None)
    assert cluster.get("/experiments/1").json["name"] == "n" * 300


@pytest.mark.parametrize("name", [r'"\ud800"', r'"\0"', '"\U0001f600"'])
def test_unusual_names_are_stored_or_refused(cluster: Cluster, name: str) -> None:
    assert create(cluster, overrides=[f"name={name}"]).status in (201, 422)
    assert cluster.get("/schedules").status == 200


def test_large_configurations_are_refused(cluster: Cluster) -> None:
    # 120,000 characters of three bytes are 360,000 bytes.
    text = "\u20ac" * 120_000
    large = f"{DAILY}data: {{text: {text}}}\n"
    assert create(cluster, large).status in (413, 422)


def test_secrets_of_configurations_are_masked(cluster: Cluster) -> None:
    secret = f"{DAILY}\ndata: {{api_key: hidden-words}}\n"
    create(cluster, secret, overrides=["data.password=other-words"])
    answer = cluster.get("/schedules/1")
    assert b"hidden-words" not in answer.body
    assert b"other-words" not in answer.body
    assert answer.json["overridden"] == ["data.password"]


def test_paused_schedules_leave_the_due_index(cluster: Cluster) -> None:
    create(cluster)
    table = cluster.services.table
    assert table.get(time_key(1)) is not None
    for _ in range(2):
        paused = cluster.post("/schedules/1/pause", None)
        assert (paused.status, paused.json["paused"], paused.json["next_ms"]) == (200, True, None)
    assert table.get(time_key(1)) is None
    # Two days later, the next time is still the first time from now.
    cluster.clock.ms += 48 * 3_600_000
    active = cluster.post("/schedules/1/activate", None).json
    assert (active["paused"], active["next_ms"]) == (False, NEXT_MS + 48 * 3_600_000)
    assert table.get(time_key(1)) is not None


def test_schedules_may_start_paused(cluster: Cluster) -> None:
    assert create(cluster, paused=True).json["next_ms"] is None


def test_deletion_keeps_experiments(cluster: Cluster) -> None:
    create(cluster)
    cluster.post("/schedules/1/run", None)
    assert send(cluster, "DELETE", "/schedules/1").status == 200
    assert cluster.get("/schedules/1").status == 404
    assert cluster.services.table.get(time_key(1)) is None
    assert cluster.get("/experiments/1").json["schedule_id"] == 1


def test_run_now_submits_one_experiment_for_repeated_requests(cluster: Cluster) -> None:
    create(cluster)
    ran = [cluster.post("/schedules/1/run", None, key="now") for _ in range(2)]
    assert [answer.status for answer in ran] == [200, 200]
    [run] = ran[1].json["runs"]
    assert run == {"time_ms": NOW_MS, "outcome": "submitted", "experiment_id": 1, "text": ""}
    assert (ran[1].json["last_experiment_id"], ran[1].json["next_ms"]) == (1, NEXT_MS)
    assert [item["id"] for item in cluster.get("/experiments").json["items"]] == [1]


def test_run_now_shows_refusals_to_the_caller(cluster: Cluster) -> None:
    create(cluster, template=store_template(cluster))
    send(cluster, "DELETE", "/templates/base")
    assert problem(cluster.post("/schedules/1/run", None)) == (422, "template")
    assert cluster.get("/schedules/1").json["runs"] == []


def store_template(cluster: Cluster) -> str:
    path = f"{V1}/templates/base"
    content = {"config": "max_restarts: 2"}
    call(cluster.app, "PUT", path, token=TOKENS[Role.USER], content=content)
    return "base"


def test_only_owners_and_admins_change_schedules(cluster: Cluster) -> None:
    principal = Principal("user-2", Role.USER, "")
    cluster.services.table.commit([token_put(token_digest(OTHER), principal)])
    create(cluster)
    changes = [("POST", f"/schedules/1/{verb}") for verb in ("pause", "activate", "run")]
    changes.append(("DELETE", "/schedules/1"))
    for method, path in changes:
        assert send(cluster, method, path, OTHER).status == 403
        assert send(cluster, method, path, TOKENS[Role.ADMIN]).status == 200
    # The experiment that the admin started belongs to the owner of the schedule.
    assert cluster.get("/experiments/1").json["user"] == "user-1"


@pytest.mark.parametrize("verb", ["pause", "activate", "run"])
def test_unknown_schedules_are_not_found(cluster: Cluster, verb: str) -> None:
    assert send(cluster, "POST", f"/schedules/7/{verb}").status == 404
    assert send(cluster, "DELETE", "/schedules/7").status == 404
    assert cluster.get("/schedules/7").status == 404


def test_number_of_schedules_is_limited(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "SCHEDULES_MAX", 2)
    assert [create(cluster).status for _ in range(3)] == [201, 201, 409]
