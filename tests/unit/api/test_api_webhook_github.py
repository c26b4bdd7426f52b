"""The statuses of commits, from the configuration to a server with the rules of GitHub."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.state.table import Key
from control_plane.webhooks.records import decode_webhook
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster
from tests.unit.api.test_api_webhooks import allow_this_machine, ask, change, create, deliver
from tests.unit.webhooks.github_api import GitHub, run_github

TOKEN = "github_pat_token-canary"
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def github() -> Iterator[GitHub]:
    with run_github(TOKEN, {"team/digits": {SHA}}) as server:
        yield server


def create_github(cluster: Cluster, github: GitHub, **fields: Any) -> None:
    allow_this_machine(cluster)
    url = f"{github.url}/repos/team/digits"
    answer = create(cluster, url=url, format="github", **{"token": TOKEN, **fields})
    assert answer.status == 201, answer.body
    assert b"canary" not in answer.body


def submit(cluster: Cluster, **source: str) -> None:
    text = json.dumps({"github": source})
    answer = cluster.create(f"{CONFIG}integrations: {text}\n")
    assert answer.status == 201, answer.body
    assert answer.json["warnings"] == []


def test_commit_gets_the_states_of_the_experiment(cluster: Cluster, github: GitHub) -> None:
    create_github(cluster, github)
    submit(cluster, commit=SHA.upper(), repository="Team/Digits")
    agent = Agent(cluster)
    for allocation in agent.take_work():
        agent.finish(allocation)
    deliver(cluster, "experiment#1")
    assert github.refusals == []
    assert [(sha, status["state"]) for sha, status in github.statuses] == [
        (SHA, "pending"),
        (SHA, "success"),
    ]
    assert github.statuses[0][1] == {
        "state": "pending",
        "description": "Experiment 1 (digits) is ACTIVE",
        "context": "detcloud/digits",
    }
    listed = ask(cluster, "GET", "/1/deliveries").json["items"]
    assert {(item["state"], item["status"]) for item in listed} == {("delivered", 201)}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({}, "the experiment has no commit: set integrations.github.commit, or submit with --git"),
        (
            {"commit": SHA, "repository": "team/other"},
            "the commit of the experiment is in team/other, not in team/digits",
        ),
    ],
)
def test_experiment_without_a_commit_fails_at_once(
    cluster: Cluster, github: GitHub, source: dict[str, str], reason: str
) -> None:
    create_github(cluster, github)
    submit(cluster, **source)
    deliver(cluster, "experiment#1")
    (failed,) = ask(cluster, "GET", "/1/deliveries?state=failed").json["items"]
    assert (failed["error"], failed["next_ms"], failed["attempts"]) == (reason, None, 1)
    assert (github.statuses, github.refusals) == ([], [])
    # An experiment with a commit does not wait for the failed one.
    submit(cluster, commit=SHA)
    deliver(cluster, "experiment#1", "experiment#2")
    assert len(github.statuses) == 1


def test_commit_that_is_not_pushed_is_announced_later(cluster: Cluster, github: GitHub) -> None:
    create_github(cluster, github)
    github.commits["team/digits"] = set()
    submit(cluster, commit=SHA)
    deliver(cluster, "experiment#1")
    (waiting,) = ask(cluster, "GET", "/1/deliveries?state=waiting").json["items"]
    assert f"No commit found for SHA: {SHA}" in waiting["error"]
    github.commits["team/digits"] = {SHA}
    cluster.clock.ms += 10_000
    deliver(cluster, "experiment#1")
    assert len(github.statuses) == 1


def test_test_event_reads_the_repository(cluster: Cluster, github: GitHub) -> None:
    create_github(cluster, github, token="wrong")
    for number, token in ((1, None), (2, TOKEN)):
        if token is not None:
            assert change(cluster, token=token).status == 200
        path = f"/1/deliveries/{ask(cluster, 'POST', '/1/test').json['delivery']}"
        deliver(cluster, "webhook#1")
        found = ask(cluster, "GET", path).json
        assert (found["state"], found["status"]) == (
            ("waiting", 401) if number == 1 else ("delivered", 200)
        )
        cluster.clock.ms += 60_000
    assert github.statuses == []


@pytest.mark.parametrize(
    "fields",
    [
        {"token": None},
        {"token": "with blank"},
        {"url": "https://api.github.com/team/digits"},
        {"url": "https://api.github.com/repos/team"},
        {"url": "https://api.github.com/repos/team/.."},
        {"url": "https://api.github.com/repos/team/digits?x=1"},
        {"triggers": [{"type": "TRIAL_STATE_CHANGE"}]},
        {"format": "json"},
    ],
)
def test_wrong_github_webhook_is_refused(cluster: Cluster, fields: dict[str, Any]) -> None:
    url = "https://api.github.com/repos/team/digits"
    given = {"url": url, "format": "github", "token": TOKEN, **fields}
    answer = create(cluster, Role.ADMIN, **{k: v for k, v in given.items() if v is not None})
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert b"canary" not in answer.body
    assert b"with blank" not in answer.body


def test_another_format_drops_the_token(cluster: Cluster) -> None:
    url = "https://api.github.com/repos/team/digits"
    assert create(cluster, url=url, format="github", token=TOKEN).status == 201
    assert change(cluster, format="slack", url="https://hooks.slack.com/x").status == 200
    row = cluster.services.table.get(Key("webhooks", f"{1:012d}"))
    assert row is not None
    assert decode_webhook(row.body).token == ""
    assert change(cluster, format="github", url=url).code == "invalid"


def test_wrong_commit_is_refused(cluster: Cluster) -> None:
    for source in ('{"commit": "main"}', '{"repository": "digits"}', '{"branch": "x"}', "[]"):
        answer = cluster.create(f'{CONFIG}integrations: {{"github": {source}}}\n')
        assert answer.code == "invalid", source
