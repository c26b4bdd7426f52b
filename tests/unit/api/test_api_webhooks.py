"""Webhooks: creation, secrets, ownership, filters, deliveries, tests and retries."""

import json
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors.events import EventRow, decode_event
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.table import Expect, Put
from control_plane.usecases.webhooks import USER_MAX, WEBHOOKS_MAX
from control_plane.webhooks.deliverer import Deliverer
from control_plane.webhooks.sender import HttpSender
from detcloud.shared.masking import MASK
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.queries.test_queries_trials import checkpoint
from tests.unit.webhooks.receiver import HERE, run_receiver

URL = "https://hooks.example.com/path-canary"
STATES: list[dict[str, Any]] = [{"type": "EXPERIMENT_STATE_CHANGE"}]


def create(
    cluster: Cluster, role: Role = Role.USER, key: str | None = None, **fields: Any
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    body = {"name": "hook", "url": URL, "triggers": STATES, **fields}
    return call(
        cluster.app,
        "POST",
        f"{V1}/webhooks",
        token=TOKENS[role],
        headers=headers,
        content=body,
    )


def change(
    cluster: Cluster, role: Role = Role.USER, key: str | None = None, **fields: Any
) -> Answer:
    """Change the webhook 1."""
    headers = [] if key is None else [("idempotency-key", key)]
    path = f"{V1}/webhooks/1"
    return call(cluster.app, "PATCH", path, token=TOKENS[role], headers=headers, content=fields)


def ask(
    cluster: Cluster, method: str, path: str, role: Role = Role.USER, key: str | None = None
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    return call(cluster.app, method, f"{V1}/webhooks{path}", token=TOKENS[role], headers=headers)


def deliver(cluster: Cluster, *subjects: str) -> None:
    """Deliver the events of subjects to receivers on this machine."""
    table = cluster.services.table
    deliverer = Deliverer(table, cluster.services.now_ms, HttpSender(lambda: HERE), "c")
    deliverer.deliver([f"events#{subject}" for subject in subjects])


def allow_this_machine(cluster: Cluster) -> None:
    """Store a cluster configuration that allows receivers on this machine."""
    body = b'{"webhooks": {"allowed_private_hosts": ["127.0.0.1"]}}'
    cluster.services.table.commit((Put(SHARED_CONFIG, 1, body, Expect.ABSENT),))


def test_secret_is_shown_at_the_creation_only(cluster: Cluster) -> None:
    answer = create(cluster)
    assert answer.status == 201, answer.body
    created = answer.json
    assert created.pop("secret").startswith("whsec_")
    expected = {
        "id": 1,
        "name": "hook",
        "url": URL,
        "format": "json",
        "mode": "WORKSPACE",
        "triggers": [
            {
                "type": "EXPERIMENT_STATE_CHANGE",
                "states": [],
                "levels": [],
                "metric": "",
                "above": None,
                "below": None,
                "pattern": "",
            }
        ],
        "workspace": None,
        "project": None,
        "labels": [],
        # A user who is no admin hears of the user's own experiments.
        "filtered_user": "user-1",
        "experiments": [],
        "user": "user-1",
        "created_ms": cluster.clock.ms,
        "changed_ms": None,
        "changed_by": None,
    }
    assert created == expected
    assert ask(cluster, "GET", "/1").json == expected
    assert ask(cluster, "GET", "").json["items"] == [expected]
    # The answer to a deletion is stored for repetitions, without the secret part of the URL.
    shown = f"https://hooks.example.com/{MASK}"
    assert ask(cluster, "DELETE", "/1").json == {**expected, "url": shown}
    assert ask(cluster, "GET", "/1").status == 404


def test_repeated_creation_gets_the_same_secret(cluster: Cluster) -> None:
    first, again = (create(cluster, key="k").json for _ in range(2))
    assert first == again
    assert len(ask(cluster, "GET", "").json["items"]) == 1


def test_names_are_unique_and_webhooks_are_limited(cluster: Cluster) -> None:
    for number in range(WEBHOOKS_MAX):
        assert create(cluster, Role.ADMIN, name=f"hook-{number}").status == 201
    assert create(cluster, Role.ADMIN, name="more").code == "conflict"
    assert ask(cluster, "DELETE", "/1", Role.ADMIN).status == 200
    assert create(cluster, name="hook-1").code == "conflict"
    # Ids are never used again.
    assert create(cluster, name="hook-0").json["id"] == WEBHOOKS_MAX + 1


def test_user_has_a_limited_number_of_webhooks(cluster: Cluster) -> None:
    for number in range(USER_MAX):
        assert create(cluster, name=f"hook-{number}").status == 201
    assert create(cluster, name="more").code == "conflict"
    assert create(cluster, Role.ADMIN, name="of-admin").status == 201


def test_filters_have_a_limited_size(cluster: Cluster) -> None:
    trigger = {"type": "TASK_LOG", "pattern": "x" * 300}
    answer = create(cluster, triggers=[trigger] * 20)
    assert (answer.status, answer.code) == (422, "invalid")
    assert "the limit is 4096" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "http://example.com/"},
        {"url": "https://169.254.169.254/"},
        {"url": "https://[::ffff:127.0.0.1]/"},
        {"url": "nonsense"},
        {"triggers": []},
        {"triggers": [{"type": "UNKNOWN"}]},
        {"triggers": [{"type": "TEST"}]},
        {"triggers": [{"type": "METRIC_THRESHOLD_EXCEEDED", "metric": "loss"}]},
        {"triggers": [{"type": "METRIC_THRESHOLD_EXCEEDED", "above": 1}]},
        {"triggers": [{"type": "CUSTOM", "metric": "loss"}]},
        {"triggers": [{"type": "CUSTOM", "pattern": "x"}]},
        {"triggers": [{"type": "TASK_LOG", "levels": ["info"]}]},
        {"triggers": [{"type": "TASK_LOG", "pattern": "("}]},
        {"format": "fax"},
        {"name": "a b"},
    ],
)
def test_wrong_webhook_is_refused(cluster: Cluster, fields: dict[str, Any]) -> None:
    answer = create(cluster, Role.ADMIN, **fields)
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert ask(cluster, "GET", "").json["items"] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "without its"),
        ("(?<=loss)nan", "which RE2 does not have"),
        (r"(a)\1", "backreference"),
    ],
)
def test_webhooks_and_log_policies_refuse_the_same_patterns(
    cluster: Cluster, pattern: str, reason: str
) -> None:
    trigger = {"type": "TASK_LOG", "pattern": pattern}
    answer = create(cluster, Role.ADMIN, triggers=[trigger])
    assert answer.status == 422
    assert answer.json["error"]["message"].startswith("triggers.0.pattern: ")
    assert reason in answer.json["error"]["message"]
    policy = json.dumps([{"pattern": pattern, "action": "cancel_retries"}])
    refused = cluster.create(f"{CONFIG}log_policies: {policy}\n")
    assert refused.status == 422
    assert reason in str(refused.json)


def test_pattern_that_only_re2_accepts_is_accepted(cluster: Cluster) -> None:
    trigger = {"type": "TASK_LOG", "pattern": r"\pL+ out of memory(?i)"}
    assert create(cluster, Role.ADMIN, triggers=[trigger]).status == 201


def test_only_admins_hear_of_other_users(cluster: Cluster) -> None:
    assert create(cluster, filtered_user="someone").code == "forbidden"
    assert create(cluster, triggers=[{"type": "ALARM"}]).code == "forbidden"
    assert create(cluster, name="a", mode="SPECIFIC").json["filtered_user"] is None
    assert create(cluster, Role.ADMIN, name="b").json["filtered_user"] is None
    other = create(
        cluster, Role.ADMIN, name="c", filtered_user="someone", triggers=[{"type": "ALARM"}]
    )
    assert other.json["filtered_user"] == "someone"


def test_other_users_see_only_the_host(cluster: Cluster) -> None:
    create(cluster, Role.ADMIN)
    for answer in (ask(cluster, "GET", "/1"), ask(cluster, "GET", "")):
        assert answer.status == 200
        assert b"canary" not in answer.body
        assert b"https://hooks.example.com/***" in answer.body
    for method, path in (
        ("DELETE", "/1"),
        ("POST", "/1/test"),
        ("GET", "/1/deliveries"),
    ):
        assert ask(cluster, method, path).code == "forbidden"


def test_change_of_an_experiment_reaches_the_receiver(cluster: Cluster) -> None:
    allow_this_machine(cluster)
    with run_receiver() as receiver:
        assert create(cluster, url=receiver.url).status == 201
        cluster.create(CONFIG)
        cluster.clock.ms += 1
        cluster.post("/experiments/1/pause", {})
        deliver(cluster, "experiment#1")
        payloads = receiver.accepted_payloads()
    assert [payload["condition"]["state"] for payload in payloads] == ["ACTIVE", "PAUSED"]
    listed = ask(cluster, "GET", "/1/deliveries").json["items"]
    assert [item["title"] for item in listed] == [
        "experiment 1 (digits) is PAUSED",
        "experiment 1 (digits) is ACTIVE",
    ]
    assert {item["state"] for item in listed} == {"delivered"}
    assert ask(cluster, "GET", f"/1/deliveries/{listed[0]['id']}").json == listed[0]
    assert ask(cluster, "GET", "/1/deliveries?state=failed").json["items"] == []


def test_other_users_experiment_is_not_announced(cluster: Cluster) -> None:
    create(cluster, Role.ADMIN, filtered_user="someone-else")
    cluster.create(CONFIG)
    assert cluster.services.table.query("events#experiment#1", " ", "\x7f").rows == ()


def test_test_event_is_delivered(cluster: Cluster) -> None:
    allow_this_machine(cluster)
    with run_receiver() as receiver:
        create(cluster, url=receiver.url)
        answer = ask(cluster, "POST", "/1/test")
        assert answer.status == 202
        path = f"/1/deliveries/{answer.json['delivery']}"
        assert ask(cluster, "GET", path).json["state"] == "waiting"
        deliver(cluster, "webhook#1")
    assert ask(cluster, "GET", path).json["state"] == "delivered"
    assert receiver.accepted_payloads()[0]["event_type"] == "TEST"


def test_ended_delivery_is_repeated_with_the_same_id(cluster: Cluster) -> None:
    allow_this_machine(cluster)
    with run_receiver(lambda number: 410 if number == 0 else 200) as receiver:
        create(cluster, url=receiver.url)
        cluster.create(CONFIG)
        deliver(cluster, "experiment#1")
        (failed,) = ask(cluster, "GET", "/1/deliveries").json["items"]
        assert (failed["state"], failed["status"]) == ("failed", 410)
        cluster.clock.ms += 1000
        assert ask(cluster, "POST", f"/1/deliveries/{failed['id']}/retry").status == 202
        deliver(cluster, "experiment#1")
    (again,) = ask(cluster, "GET", "/1/deliveries").json["items"]
    assert (again["state"], again["id"], again["attempts"]) == ("delivered", failed["id"], 1)
    assert [request.headers["webhook-id"] for request in receiver.requests] == [
        failed["event_id"]
    ] * 2


def test_waiting_delivery_is_repeated_at_once(cluster: Cluster) -> None:
    allow_this_machine(cluster)
    with run_receiver(lambda number: 500 if number == 0 else 200) as receiver:
        create(cluster, url=receiver.url)
        cluster.create(CONFIG)
        deliver(cluster, "experiment#1")
        deliver(cluster, "experiment#1")
        assert len(receiver.requests) == 1
        (waiting,) = ask(cluster, "GET", "/1/deliveries?state=waiting").json["items"]
        ask(cluster, "POST", f"/1/deliveries/{waiting['id']}/retry")
        deliver(cluster, "experiment#1")
    assert len(receiver.requests) == 2
    assert ask(cluster, "GET", "/1/deliveries?state=waiting").json["items"] == []


def test_unknown_deliveries_are_not_found(cluster: Cluster) -> None:
    create(cluster)
    unknown = f"{'0' * 14}.{'0' * 8}-0000-0000-0000-{'0' * 12}"
    assert ask(cluster, "GET", f"/1/deliveries/{unknown}").status == 404
    assert ask(cluster, "POST", f"/1/deliveries/{unknown}/retry").status == 404
    assert ask(cluster, "POST", f"/2/deliveries/{unknown}/retry").status == 404
    assert ask(cluster, "POST", "/2/test").status == 404
    assert ask(cluster, "GET", "/1/deliveries/x").status == 422


def events(cluster: Cluster, subject: str) -> list[EventRow]:
    """Return the events of a subject that are not delivered."""
    rows = cluster.services.table.query(f"events#{subject}", " ", "\x7f").rows
    return [decode_event(row.body) for row in rows]


def test_alert_of_a_trial_is_announced(cluster: Cluster) -> None:
    create(cluster, triggers=[{"type": "CUSTOM", "levels": ["warn"]}])
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    alert = {"kind": "alert", "title": "slow", "description": "3 s", "level": "warn"}
    agent.report("1.1", alert, {**alert, "level": "info"}, writer="1")
    # Lines of hostile code are dropped.
    wrong: list[dict[str, Any]] = [
        {**alert, "level": "loud"},
        {**alert, "level": ["warn"]},
        {"kind": "alert", "level": "warn"},
        {"kind": "alert", "title": "x"},
        {"kind": "alert", "title": {"a": 1}, "description": 3, "level": "warn"},
    ]
    agent.report("1.1", *wrong)
    (event,) = events(cluster, "experiment#1")
    assert (event.title, event.text) == ("slow", "3 s")
    assert event.data["alert"]["trial_id"] == 1


def test_new_model_version_is_announced(cluster: Cluster) -> None:
    create(cluster, triggers=[{"type": "MODEL_VERSION"}])
    create(cluster, Role.ADMIN, name="other", triggers=[{"type": "MODEL_VERSION"}], workspace="w")
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    uuid = "0000000c-0000-4000-8000-000000000003"
    checkpoint(cluster, agent, 1, uuid, 2)
    assert cluster.post("/models", {"name": "m"}).status < 300
    for _ in range(2):
        body = {"checkpoint_uuid": uuid, "comment": "good"}
        assert cluster.post("/models/m/versions", body).status < 300
    found = events(cluster, "model#m")
    assert [(event.number, event.title) for event in found] == [
        (1, "model m has version 1"),
        (2, "model m has version 2"),
    ]
    # A model has no workspace, so that a webhook of a workspace announces no model.
    assert [list(event.pending) for event in found] == [[1], [1]]


def test_webhook_for_metrics_reaches_running_experiments(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    create(cluster, triggers=[{"type": "BEST_VALIDATION"}])
    agent.report("1.1", metrics(5, "validation", loss=0.5))
    (event,) = events(cluster, "experiment#1")
    assert event.data["validation"] == {"trial_id": 1, "units": 5.0, "metrics": {"loss": 0.5}}


def test_configuration_chooses_a_webhook(cluster: Cluster) -> None:
    create(cluster, mode="SPECIFIC")
    for choice in ("webhook_name: [hook]", "webhook_id: [1]", "webhook_name: [x]"):
        answer = cluster.create(f"{CONFIG}integrations: {{webhooks: {{{choice}}}}}\n")
        assert answer.status == 201, answer.body
        assert answer.json["warnings"] == []
    assert [len(events(cluster, f"experiment#{number}")) for number in (1, 2, 3)] == [1, 1, 0]
    shown = cluster.get("/experiments/1").json["config"]["integrations"]
    assert shown == {"webhooks": {"webhook_name": ["hook"]}}
    refused = cluster.create(f"{CONFIG}integrations: {{webhooks: {{webhook_id: x}}}}\n")
    assert refused.code == "invalid"


def test_replay_finds_no_difference_with_webhooks(cluster: Cluster) -> None:
    create(cluster)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    for allocation in agent.take_work():
        agent.finish(allocation)
    assert len(events(cluster, "experiment#1")) == 2
    items = cluster.get("/experiments/1/replay").json["items"]
    assert [item["difference"] for item in items] == [None] * 3


def test_mail_needs_a_mail_server_and_hides_recipients(cluster: Cluster) -> None:
    mail = {"format": "email", "url": "mailto:ann@example.com"}
    refused = create(cluster, Role.ADMIN, **mail)
    assert refused.code == "invalid"
    assert b"needs a mail server" in refused.body
    smtp = {"host": "mail.example.com", "sender": "c@example.com", "password": "p"}
    body = json.dumps({"webhooks": {"smtp": smtp}}).encode()
    cluster.services.table.commit((Put(SHARED_CONFIG, 1, body, Expect.ABSENT),))
    assert create(cluster, Role.ADMIN, **mail).json["url"] == mail["url"]
    assert ask(cluster, "GET", "/1").json["url"] == f"mailto:{MASK}"
    wrong = create(cluster, Role.ADMIN, name="b", format="email", url="https://example.com/")
    assert wrong.code == "invalid"
    wrong = create(cluster, Role.ADMIN, name="b", url="mailto:ann@example.com")
    assert wrong.code == "invalid"


def test_repeated_deletion_has_the_stored_answer(cluster: Cluster) -> None:
    create(cluster)
    first = ask(cluster, "DELETE", "/1", key="once")
    assert first.status == 200
    repeated = ask(cluster, "DELETE", "/1", key="once")
    assert (repeated.status, repeated.json) == (200, first.json)
    assert ask(cluster, "DELETE", "/1", key="another").status == 404
    assert ask(cluster, "DELETE", "/1").status == 404
    # The key of another deletion does not reach a webhook that is missing.
    assert ask(cluster, "DELETE", "/2", key="once").status == 404
