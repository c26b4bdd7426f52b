import sys
from dataclasses import replace
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.api.app import create_app
from control_plane.config.images import DEFAULT_IMAGE
from detcloud.shared.version import __version__
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster
from tests.unit.api.exchange import Answer, call


def details(answer: Answer) -> dict[str, str]:
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    return {detail["path"]: detail["message"] for detail in answer.json["error"]["details"]}


def ids(answer: Answer) -> list[int]:
    return [item["id"] for item in answer.json["items"]]


def test_created_experiment_is_described_and_listed(cluster: Cluster) -> None:
    answer = cluster.create(CONFIG)
    assert answer.status == 201
    created = answer.json
    expected = {
        "id": 1,
        "kind": "experiment",
        "name": "digits",
        "description": "",
        "state": "ACTIVE",
        "condition": "queued",
        "user": "user-1",
        "workspace": "Uncategorized",
        "project": "Uncategorized",
        "resource_pool": "default",
        "preferred_pools": [],
        "waits_since_ms": None,
        "pool_moved_ms": None,
        "pool_move_reason": "",
        "searcher": "random",
        "metric": "loss",
        "smaller_is_better": True,
        "progress": 0.0,
        "best_metric": None,
        "best_trial_id": None,
        "trials": {"requested": 2, "running": 2, "completed": 0, "errored": 0},
        "notices": {"saved": 0, "finished": 0, "kept": 0, "cut": 0},
        "created_ms": NOW_MS,
        "ends_ms": None,
        "signal": "",
        "ended_ms": None,
        "logs_deleted_ms": None,
        "metrics_deleted_ms": None,
        "message": "",
        "labels": [],
        "metadata": {},
        "revision": created["revision"],
        "job_id": created["job_id"],
        "archived": False,
        "seed": 7,
        "max_slots": None,
        "weight": 1.0,
        "priority": None,
        "max_cost": None,
        "cost": 0.0,
        "use": None,
        "warnings": [],
        "save_experiment_best": 0,
        "save_trial_best": 1,
        "save_trial_latest": 1,
        "code_sha256": cluster.store_code(),
        "forked_from": None,
        "restored_from": None,
        "schedule_id": None,
        "search_method": None,
        "continuable": True,
        "run": None,
        "values": {},
    }
    assert created == expected
    described = cluster.get("/experiments/1").json
    config, submitted = described.pop("config"), described.pop("submitted_config")
    assert described == expected
    assert "max_restarts" not in submitted
    assert config["max_restarts"] == 5
    assert config["reproducibility"] == {"experiment_seed": 7}
    page = {"items": [expected], "next_cursor": None, "left_out_before": None}
    assert cluster.get("/experiments").json == page


def test_bayesian_search_is_refused_without_optuna(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.replace("name: random", "name: bayesian")
    assert config != CONFIG
    monkeypatch.setitem(sys.modules, "optuna", None)
    problems = details(cluster.create(config))
    assert problems["searcher.name"].endswith("on this server: pip install 'detcloud[optuna]'")


def test_bayesian_search_is_accepted_with_a_suggestion_process(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    elsewhere = replace(cluster.services, suggests=True)
    cluster = replace(cluster, app=create_app(elsewhere), services=elsewhere)
    assert cluster.create(CONFIG.replace("name: random", "name: bayesian")).status == 201


def test_ids_count_up_without_a_gap(cluster: Cluster) -> None:
    assert [cluster.create(CONFIG).json["id"] for _ in range(3)] == [1, 2, 3]


def test_configuration_problems_have_lines_and_hints(cluster: Cluster) -> None:
    text = "entrypoint: [a]\nmax_restart: 1\nsearcher: {name: random, metric: loss}\n"
    answer = cluster.create(text)
    problems = {item["path"]: item for item in answer.json["error"]["details"]}
    assert problems["max_restart"]["line"] == 2
    assert problems["max_restart"]["hint"] == "did you mean max_restarts?"
    assert problems["searcher.max_trials"]["line"] == 3
    assert cluster.get("/experiments").json["items"] == []


@pytest.mark.parametrize(
    ("change", "path", "word"),
    [
        ("resources.resource_pool=gpus", "resources.resource_pool", "gpus does not exist"),
        ("resources.slots_per_trial=3", "resources.slots_per_trial", "3 slots"),
        ("resources.deadline=1970-01-01T00:00:00Z", "resources.deadline", "has passed"),
    ],
)
def test_rejects_experiments_that_the_cluster_cannot_run(
    cluster: Cluster, change: str, path: str, word: str
) -> None:
    Agent(cluster, slots=2)
    assert word in details(cluster.create(CONFIG, overrides=[change]))[path]


def test_rejects_a_grid_of_a_billion_points(cluster: Cluster) -> None:
    axis = "{type: double, minval: 0, maxval: 1, count: 1000}"
    grid = ["searcher={name: grid, metric: loss, max_length: 1}"]
    grid += [f"hyperparameters.x{n}={axis}" for n in range(3)]
    # x of CONFIG has no count.
    assert details(cluster.create(CONFIG, overrides=grid)) == {
        "hyperparameters.x.count": "is required by the grid searcher"
    }
    problems = details(cluster.create(CONFIG, overrides=[*grid, "hyperparameters.x=1"]))
    assert problems == {
        "hyperparameters": "make a grid of 1000000000 points, at most 100000 are allowed"
    }
    assert cluster.get("/experiments").json["items"] == []


def test_slots_are_not_checked_without_agents(cluster: Cluster) -> None:
    assert cluster.create(CONFIG, overrides=["resources.slots_per_trial=64"]).status == 201


def test_unknown_model_code_and_templates_are_refused(cluster: Cluster) -> None:
    body = {"config": CONFIG, "model_code": "0" * 64}
    assert "not stored" in details(cluster.post("/experiments", body))["model_code"]
    assert "no template" in details(cluster.create(CONFIG, template="base"))["template"]


def test_validate_only_creates_no_experiment(cluster: Cluster) -> None:
    answer = cluster.create(CONFIG, validate_only=True)
    assert answer.status == 200
    assert answer.json["id"] is None
    assert answer.json["config"]["max_restarts"] == 5
    assert cluster.get("/experiments").json["items"] == []
    assert cluster.create(CONFIG).json["id"] == 1


def test_validate_only_needs_no_model_code(cluster: Cluster) -> None:
    body = {"config": CONFIG, "validate_only": True}
    assert cluster.post("/experiments", body).json["id"] is None
    refused = details(cluster.post("/experiments", {"config": CONFIG}))
    assert refused == {"model_code": "is missing"}
    lost = cluster.post("/experiments", body | {"overrides": ["resources.resource_pool=gpu"]})
    assert "does not exist" in details(lost)["resources.resource_pool"]


def test_test_mode_runs_one_trial_of_one_batch(cluster: Cluster) -> None:
    assert cluster.create(CONFIG, test_mode=True).json["trials"]["requested"] == 1
    [trial] = cluster.get("/experiments/1/trials").json["items"]
    assert trial["target_steps"] == 1
    [entry] = Agent(cluster).sync().json["desired"]
    assert entry["spec"]["test_mode"] is True
    assert entry["spec"]["scheduling_unit"] == 1


def test_seeds_are_random_without_a_configured_seed(cluster: Cluster) -> None:
    text = CONFIG.replace("reproducibility: {experiment_seed: 7}", "")
    for _ in range(2):
        cluster.create(text)
    drawn = [
        cluster.get(f"/experiments/{n}").json["config"]["reproducibility"]["experiment_seed"]
        for n in (1, 2)
    ]
    # Two of 2^31 seeds are equal in 1 of 2 thousand million runs.
    assert drawn[0] != drawn[1]


def test_state_changes_return_the_changed_experiment(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    # No trial runs, so that a cancelled experiment ends at once.
    states = [("pause", "PAUSED"), ("activate", "ACTIVE"), ("cancel", "CANCELED")]
    for name, state in states:
        answer = cluster.post(f"/experiments/1/{name}", {})
        assert (answer.status, answer.json["id"]) == (200, 1)
        assert answer.json["state"].removeprefix("STOPPING_") == state
    refused = cluster.post("/experiments/1/activate", {})
    assert (refused.status, refused.code) == (409, "conflict")
    assert "no longer be activated" in refused.json["error"]["message"]
    assert cluster.post("/experiments/9/kill", {}).status == 404


def test_experiment_list_is_newest_first_filtered_and_paged(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.create(CONFIG)
    cluster.post("/experiments/4/pause", {})
    first = cluster.get("/experiments?limit=2")
    assert ids(first) == [5, 4]
    second = cluster.get(f"/experiments?limit=2&cursor={first.json['next_cursor']}")
    assert ids(second) == [3, 2]
    third = cluster.get(f"/experiments?limit=2&cursor={second.json['next_cursor']}")
    assert ids(third) == [1]
    assert third.json["next_cursor"] is None
    assert ids(cluster.get("/experiments?state=PAUSED")) == [4]
    assert ids(cluster.get("/experiments?state=paused,ACTIVE&user=user-1")) == [5, 4, 3, 2, 1]
    assert ids(cluster.get("/experiments?user=nobody")) == []
    assert cluster.get("/experiments?state=ASLEEP").status == 422


def test_trials_are_listed_by_number_over_pages(cluster: Cluster) -> None:
    # 70 trials are stored in two parts, of 64 and 6.
    many = ["searcher.max_trials=70", "searcher.max_concurrent_trials=70"]
    cluster.create(CONFIG, overrides=many)
    first = cluster.get("/experiments/1/trials?limit=66").json
    second = cluster.get(f"/experiments/1/trials?limit=66&cursor={first['next_cursor']}").json
    numbers = [item["number"] for item in (*first["items"], *second["items"])]
    assert numbers == list(range(70))
    assert second["next_cursor"] is None
    assert first["items"][0]["state"] == "ACTIVE"
    assert first["items"][0]["target_steps"] == 10
    assert cluster.get("/experiments/2/trials").status == 404


def test_cluster_caller_and_agents_are_shown(cluster: Cluster) -> None:
    Agent(cluster)
    pool = {"slots": 2, "free_slots": 2, "queued": 0, "running": 0, "agents": 1}
    assert cluster.get("/cluster").json == {
        "cluster_id": "cluster-1",
        "version": __version__,
        "resource_pools": [{"name": "default", **pool}],
    }
    assert cluster.get("/whoami").json == {"user": "user-1", "role": "user"}
    [agent] = cluster.get("/agents").json["items"]
    shown: dict[str, Any] = {k: agent[k] for k in ("id", "resource_pool", "state", "version")}
    assert shown == {"id": "node", "resource_pool": "default", "state": "ALIVE", "version": "1"}


def test_image_of_determined_is_replaced_with_a_warning(cluster: Cluster) -> None:
    image = "determinedai/environments:py-3.8-pytorch-1.12-cpu-0.21.0"
    created = cluster.create(CONFIG, overrides=[f"environment.image={{cpu: '{image}'}}"])
    (warning,) = created.json["warnings"]
    assert (
        f"{image} is one of Determined's images: containers run {DEFAULT_IMAGE} instead" in warning
    )
    [entry, *_] = Agent(cluster).sync().json["desired"]
    assert entry["spec"]["image"]["cpu"] == DEFAULT_IMAGE
    assert entry["spec"]["config"]["environment"]["image"]["cpu"] == image


def test_secrets_of_a_configuration_are_masked(cluster: Cluster) -> None:
    auth = "environment.registry_auth={username: me, password: canary-5f}"
    cluster.create(CONFIG, overrides=[auth])
    assert b"canary-5f" not in cluster.get("/experiments/1").body
    [entry, *_] = Agent(cluster).sync().json["desired"]
    # The agent needs the password to pull the image; the trial must not see the password.
    assert entry["spec"].pop("registry_auth")["password"] == "canary-5f"
    assert "canary-5f" not in str(entry)


def test_rejects_unknown_fields_of_the_body(cluster: Cluster) -> None:
    assert "name" in details(cluster.create(CONFIG, name="x"))
    answer = call(cluster.app, "POST", "/api/v1/experiments", token=TOKENS[Role.AGENT])
    assert answer.status == 403


@pytest.mark.parametrize("depth", [60, 65, 120, 150, 196, 200, 230, 260])
@pytest.mark.parametrize("place", ["config", "override"])
def test_deep_configurations_are_refused_or_readable(
    cluster: Cluster, place: str, depth: int
) -> None:
    def nest(levels: int) -> str:
        return "{a: " * levels + "{type: double, minval: 0, maxval: 1}" + "}" * levels

    if place == "config":
        config = CONFIG.replace("  x: {type: double, minval: 0, maxval: 1}", f"  x: {nest(depth)}")
        answer = cluster.create(config)
    else:
        path = ".".join("a" * (depth // 2))
        answer = cluster.create(CONFIG, overrides=[f"hyperparameters.{path}={nest(depth // 2)}"])
    assert answer.status == (201 if depth == 60 else 422)
    if depth > 60:
        assert "64" in answer.json["error"]["details"][0]["message"] or depth // 2 > 64
        assert cluster.get("/experiments").json["items"] == []
    else:
        assert cluster.get("/experiments/1").status == cluster.get("/trials/1").status == 200
        assert Agent(cluster).take_work() == ["1.1", "2.1"]
