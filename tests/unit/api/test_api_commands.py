"""Commands over HTTP: created like experiments, listed separately, and run once."""

from typing import Any
from urllib.parse import urlencode

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.trial import DurationExceeded
from control_plane.config.pools import ClusterConfig
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.table import Expect, Put
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import Cluster
from tests.unit.api.test_api_jobs import configure
from tests.unit.api.test_api_projects import SINGLE
from tests.unit.api.test_api_projects import create as create_experiment

ECHO = "name: hello\nentrypoint: [echo, hello]\n"


def create(cluster: Cluster, *overrides: str, config: str = ECHO, **fields: Any) -> Any:
    answer = cluster.create(config, kind="command", overrides=list(overrides), **fields)
    assert answer.status == 201, answer.body
    return answer.json


def list_ids(cluster: Cluster, **query: object) -> list[int]:
    items = cluster.get(f"/experiments?{urlencode(query)}").json["items"]
    return [item["id"] for item in items]


def end_run(cluster: Cluster, **exited: Any) -> Any:
    """End the only waiting command with this exit; return the trial."""
    agent = Agent(cluster)
    [allocation] = agent.take_work()
    agent.report(allocation, {"kind": "exited", **exited}, writer="agent")
    return cluster.get(f"/trials/{allocation.split('.')[0]}").json


def test_experiments_and_commands_are_listed_apart(cluster: Cluster) -> None:
    create_experiment(cluster)
    command = create(cluster)
    assert (command["id"], command["kind"], command["state"]) == (2, "command", "ACTIVE")
    assert list_ids(cluster) == [1]
    assert list_ids(cluster, kind="command") == [2]
    assert list_ids(cluster, kind="command", sort="name") == [2]
    assert list_ids(cluster, kind="all") == [2, 1]
    assert cluster.get("/experiments?kind=program").status == 422
    [project] = cluster.get("/projects").json["items"]
    assert project["experiments"] == 1


def test_described_command_has_resources_and_no_secret(cluster: Cluster) -> None:
    create(cluster, "environment.environment_variables=[API_TOKEN=s3cret]", "resources.slots=0")
    answer = cluster.get("/experiments/1")
    assert b"s3cret" not in answer.body
    assert answer.json["config"]["resources"]["slots"] == 0
    assert "searcher" not in answer.json["config"]
    assert b"s3cret" not in cluster.get("/experiments?kind=command").body


def test_job_of_a_command_is_not_preemptible(cluster: Cluster) -> None:
    create(cluster)
    [job] = cluster.get("/jobs").json["items"]
    assert (job["type"], job["is_preemptible"], job["requested_slots"]) == (
        "TYPE_COMMAND",
        False,
        1,
    )


def test_exit_code_zero_completes_the_command(cluster: Cluster) -> None:
    create(cluster)
    trial = end_run(cluster, reason="completed", code=0)
    assert (trial["state"], trial["exit_code"]) == ("COMPLETED", 0)
    assert cluster.get("/experiments/1").json["state"] == "COMPLETED"


def test_nonzero_exit_code_ends_the_command_in_error(cluster: Cluster) -> None:
    create(cluster)
    trial = end_run(cluster, reason="errored", code=3, message="it ended with exit code 3")
    assert (trial["state"], trial["exit_code"]) == ("ERROR", 3)
    command = cluster.get("/experiments/1").json
    assert (command["state"], command["message"]) == ("ERROR", "it ended with exit code 3")


def test_killed_command_is_canceled(cluster: Cluster) -> None:
    create(cluster)
    assert cluster.post("/experiments/1/kill", {}).json["state"] == "CANCELED"


def test_command_is_neither_paused_nor_continued(cluster: Cluster) -> None:
    create(cluster)
    refused = cluster.post("/experiments/1/pause", {})
    assert (refused.status, refused.code) == (409, "conflict")
    assert refused.json["error"]["message"] == (
        "command 1 cannot be paused: it saves no checkpoints; kill it"
    )
    cluster.post("/experiments/1/kill", {})
    refused = cluster.post("/experiments/1/continue", {"overrides": []})
    assert refused.json["error"]["message"] == (
        "command 1 cannot be continued: it saves no checkpoints; start another one"
    )


@pytest.mark.parametrize(
    ("fields", "path"),
    [({"test_mode": True}, "test_mode"), ({"overrides": ["max_restarts=3"]}, "max_restarts")],
)
def test_commands_reject_fields_of_experiments(
    cluster: Cluster, fields: dict[str, Any], path: str
) -> None:
    answer = cluster.create(ECHO, kind="command", **fields)
    assert (answer.status, path in str(answer.json["error"])) == (422, True)


def test_configuration_has_at_most_256_ki_characters(cluster: Cluster) -> None:
    answer = cluster.create(f"entrypoint: [echo, {'x' * 262_144}]", kind="command")
    assert answer.status in (413, 422)


def test_history_names_the_kind_command(cluster: Cluster) -> None:
    create(cluster)
    texts = [item["text"] for item in cluster.get("/experiments/1/history").json["items"]]
    assert texts[0] == "submitted by user-1 as 'hello': a command"


def test_notebook_has_a_list_and_a_job_type(cluster: Cluster) -> None:
    answer = cluster.create("idle_timeout: 2h\n", kind="notebook")
    assert (answer.status, answer.json["kind"]) == (201, "notebook")
    assert (list_ids(cluster), list_ids(cluster, kind="command")) == ([], [])
    assert list_ids(cluster, kind="notebook") == [1]
    [job] = cluster.get("/jobs").json["items"]
    assert (job["type"], job["is_preemptible"]) == ("TYPE_NOTEBOOK", False)


def test_shell_has_a_list_and_a_job_type(cluster: Cluster) -> None:
    answer = cluster.create("resources: {slots: 0}\n", kind="shell")
    assert (answer.status, answer.json["kind"]) == (201, "shell")
    assert (list_ids(cluster), list_ids(cluster, kind="notebook")) == ([], [])
    assert list_ids(cluster, kind="shell") == [1]
    [job] = cluster.get("/jobs").json["items"]
    assert (job["type"], job["is_preemptible"]) == ("TYPE_SHELL", False)


@pytest.mark.parametrize("kind", ["notebook", "shell"])
def test_notebooks_and_shells_in_cloud_pools_need_a_relay(
    cluster_with_aws: Cluster, kind: str
) -> None:
    cluster = cluster_with_aws
    provider = "provider: {type: aws, instance_type: m5.large, cpu_slots_allowed: true}"
    configure(cluster, "default", provider)
    assert cluster.create("{}", kind=kind).status == 201
    # The services are frozen.
    object.__setattr__(cluster.services, "relay", None)
    answer = cluster.create("{}", kind=kind)
    assert answer.status == 422
    assert f"start the {kind} on a cluster with a relay" in str(answer.json["error"])
    assert "are reached over a relay, and this cluster has no" in answer.json["error"]["message"]
    assert cluster.create(ECHO, kind="command").status == 201


def test_commands_and_notebooks_are_listed_together(cluster: Cluster) -> None:
    create_experiment(cluster)
    create(cluster)
    assert cluster.create("{}", kind="notebook").status == 201
    assert list_ids(cluster, kind="command,notebook") == [3, 2]
    refused = cluster.get("/experiments?kind=command,program")
    assert (refused.status, "'program' is not a kind" in str(refused.json)) == (422, True)


def test_command_shows_agent_and_exit_code(cluster: Cluster) -> None:
    create_experiment(cluster)
    cluster.post("/experiments/1/kill", {})
    create(cluster)
    [trial] = cluster.get("/experiments/2/trials").json["items"]
    known = {"trial_id": trial["id"], "program": "echo hello"}
    waiting = {**known, "agent_id": None, "exit_code": None, "ends_ms": None, "snapshot": None}
    assert cluster.get("/experiments/2").json["run"] == waiting
    agent = Agent(cluster)
    [allocation] = agent.take_work()
    running = {**waiting, "agent_id": agent.name}
    assert cluster.get("/experiments/2").json["run"] == running
    agent.report(allocation, {"kind": "exited", "reason": "errored", "code": 3}, writer="agent")
    ended = {**running, "exit_code": 3}
    assert cluster.get("/experiments/2").json["run"] == ended
    # Lists show the run of commands too, and None for experiments.
    listed = cluster.get("/experiments?kind=all").json["items"]
    assert [item["run"] for item in listed] == [ended, None]


@pytest.mark.parametrize(
    ("entrypoint", "program"),
    [
        ("[bash, -c, 'echo 1; echo 2']", "bash -c 'echo 1; echo 2'"),
        ("make all | tee log", "make all | tee log"),
        # At most 1,000 characters.
        (f"[{'x' * 1001}]", "x" * 1000),
    ],
)
def test_command_shows_the_program(cluster: Cluster, entrypoint: str, program: str) -> None:
    create(cluster, config=f"entrypoint: {entrypoint}\n")
    assert cluster.get("/experiments/1").json["run"]["program"] == program


def configure_limits(cluster: Cluster, section: str = "run_limits", **limits: str) -> None:
    body = ClusterConfig.model_validate({section: limits}).to_json()
    cluster.services.table.commit((Put(SHARED_CONFIG, 9, body, Expect.ANYTHING),))


def test_command_ends_at_its_longest_duration(cluster: Cluster) -> None:
    command = create(cluster, "max_duration=2h")
    described = cluster.get(f"/experiments/{command['id']}").json
    assert described["config"]["max_duration"] == "2h"
    assert described["run"]["ends_ms"] is None
    agent = Agent(cluster)
    begun_ms = cluster.clock.ms
    [allocation] = agent.take_work()
    ends_ms = begun_ms + 7_200_000
    assert cluster.get("/experiments/1").json["run"]["ends_ms"] == ends_ms
    agent.report(allocation, {"kind": "container", "state": "RUNNING"}, writer="agent")
    engine = cluster.services.engine
    engine.execute_command(addresses.trial(1), DurationExceeded(1))
    agent.report(allocation, {"kind": "exited", "reason": "killed", "code": None}, writer="agent")
    ended = cluster.get("/experiments/1").json
    assert (ended["state"], ended["message"]) == ("COMPLETED", "it has come to its max_duration")


def test_limits_follow_the_rules_of_the_cluster(cluster: Cluster) -> None:
    configure_limits(cluster, default_max_duration="8h", longest_max_duration="1d")
    assert create(cluster)["kind"] == "command"
    assert cluster.get("/experiments/1").json["config"]["max_duration"] == "8h"
    for value in ("2d", "null"):
        refused = cluster.create("{}", kind="shell", overrides=[f"max_duration={value}"])
        assert (refused.status, refused.code) == (422, "invalid")
        assert "max_duration" in refused.json["error"]["message"]
        assert "set at most 1d" in str(refused.json["error"])
    # Experiments have rules of their own.
    create_experiment(cluster)


def test_limits_of_experiments_follow_the_rules_of_the_cluster(cluster: Cluster) -> None:
    configure_limits(
        cluster, "experiment_limits", longest_max_duration="2d", default_idle_timeout="1h"
    )
    config = cluster.get(f"/experiments/{create_experiment(cluster)}").json["config"]
    assert (config["max_duration"], config["idle_timeout"]) == ("2d", "1h")
    refused = cluster.create(SINGLE, overrides=["max_duration=3d"])
    assert (refused.status, refused.code) == (422, "invalid")
    assert "set at most 2d" in str(refused.json["error"])
