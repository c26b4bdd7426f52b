"""Changes of webhooks, permitted mail domains, stored answers, and damaged routes."""

import json
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors.event_routes import ROUTES, decode_routes
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.table import Delete, Expect, Key, Put
from control_plane.usecases.webhooks import USER_MAX
from control_plane.webhooks.records import decode_webhook, webhook_key
from detcloud.shared.masking import MASK
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster
from tests.unit.api.test_api_webhooks import (
    STATES,
    allow_this_machine,
    ask,
    change,
    create,
    deliver,
    events,
)
from tests.unit.webhooks.receiver import run_receiver

NEW_URL = "https://hooks.example.com/new-canary"
EXPERIMENT_1 = "experiment#1"


def routes(cluster: Cluster) -> list[tuple[int, str]]:
    """Return the id and the name of each route."""
    row = cluster.services.table.get(Key(*ROUTES))
    assert row is not None
    return [(route.webhook, route.name) for route in decode_routes(row.body).routes]


def configure(cluster: Cluster, **webhooks: Any) -> None:
    body = json.dumps({"webhooks": webhooks}).encode()
    cluster.services.table.commit((Put(SHARED_CONFIG, 1, body, Expect.ABSENT),))


def test_only_given_fields_change(cluster: Cluster) -> None:
    before = create(cluster, workspace="w", labels=["a"]).json
    before.pop("secret")
    secret = stored_webhook(cluster).secret
    cluster.clock.ms += 5
    after = change(cluster, url=NEW_URL).json
    assert after == {
        **before,
        "url": NEW_URL,
        "changed_ms": cluster.clock.ms,
        "changed_by": "user-1",
    }
    assert ask(cluster, "GET", "/1").json == after
    assert stored_webhook(cluster).secret == secret
    renamed = change(cluster, name="chat", workspace=None, labels=[], mode="SPECIFIC").json
    assert (renamed["name"], renamed["workspace"], renamed["labels"]) == ("chat", None, [])
    assert renamed["mode"] == "SPECIFIC"
    assert routes(cluster) == [(1, "chat")]


def stored_webhook(cluster: Cluster) -> Any:
    """Return the record of webhook 1."""
    row = cluster.services.table.get(webhook_key(1))
    assert row is not None
    return decode_webhook(row.body)


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "https://169.254.169.254/"},
        {"url": None},
        {"triggers": []},
        {"triggers": [{"type": "CUSTOM", "metric": "loss"}]},
        {"format": "email"},
        {"format": "github"},
        {"token": "x"},
        {"name": "a b"},
        {"secret": "x"},
        {"triggers": [{"type": "TASK_LOG", "pattern": "x" * 300}] * 20},
    ],
)
def test_wrong_change_is_refused(cluster: Cluster, fields: dict[str, Any]) -> None:
    created = create(cluster).json
    answer = change(cluster, **fields)
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert ask(cluster, "GET", "/1").json["url"] == created["url"]
    assert stored_webhook(cluster).changed_ms == 0


def test_change_needs_the_owner_and_a_free_name(cluster: Cluster) -> None:
    create(cluster, Role.ADMIN)
    create(cluster, name="other")
    assert change(cluster, url=NEW_URL).code == "forbidden"
    assert change(cluster, Role.ADMIN, name="other").code == "conflict"
    assert change(cluster, Role.ADMIN, name="hook").status == 200
    ask(cluster, "DELETE", "/1", Role.ADMIN)
    assert change(cluster, Role.ADMIN, url=NEW_URL).status == 404


def test_user_cannot_widen_the_filters(cluster: Cluster) -> None:
    create(cluster, mode="SPECIFIC")
    assert change(cluster, mode="WORKSPACE").json["filtered_user"] == "user-1"
    assert change(cluster, filtered_user=None).json["filtered_user"] == "user-1"
    assert change(cluster, filtered_user="someone").code == "forbidden"
    assert change(cluster, triggers=[{"type": "ALARM"}]).code == "forbidden"
    # An admin may widen a user's webhook, which keeps its owner.
    widened = change(cluster, Role.ADMIN, filtered_user="someone").json
    assert (widened["user"], widened["changed_by"]) == ("user-1", "admin-1")


def test_change_leaves_events_under_way_in_order(cluster: Cluster) -> None:
    allow_this_machine(cluster)
    with run_receiver(lambda number: 500) as broken, run_receiver() as repaired:
        create(cluster, url=broken.url)
        cluster.create(CONFIG)
        deliver(cluster, EXPERIMENT_1)
        cluster.post("/experiments/1/pause", {})
        assert change(cluster, url=repaired.url, triggers=[{"type": "CUSTOM"}]).status == 200
        cluster.clock.ms += 10_000
        deliver(cluster, EXPERIMENT_1)
        # The new trigger does not announce this change.
        cluster.post("/experiments/1/activate", {})
        deliver(cluster, EXPERIMENT_1)
    assert len(broken.requests) == 1
    states = [payload["condition"]["state"] for payload in repaired.accepted_payloads()]
    assert states == ["ACTIVE", "PAUSED"]


def test_changed_trigger_for_metrics_reaches_running_experiments(cluster: Cluster) -> None:
    create(cluster)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    low = {"type": "METRIC_THRESHOLD_EXCEEDED", "metric": "loss", "below": 0.6}
    assert change(cluster, triggers=[low]).status == 200
    agent.report("1.1", metrics(5, "validation", loss=0.5))
    assert [event.type for event in events(cluster, EXPERIMENT_1)][-1] == low["type"]
    count = len(events(cluster, EXPERIMENT_1))
    agent.report("1.1", metrics(6, "validation", loss=0.45))
    assert len(events(cluster, EXPERIMENT_1)) == count
    # The limit of the changed trigger is compared anew.
    assert change(cluster, triggers=[{**low, "below": 0.41}]).status == 200
    agent.report("1.1", metrics(7, "validation", loss=0.4))
    assert len(events(cluster, EXPERIMENT_1)) == count + 1


def test_repeated_change_gets_the_same_answer(cluster: Cluster) -> None:
    create(cluster)
    first = change(cluster, key="k", url=NEW_URL)
    cluster.clock.ms += 1_000
    assert change(cluster, key="k", url=NEW_URL).json == first.json
    assert change(cluster, key="k", url="https://example.com/").code == "conflict"


def test_rows_of_keys_have_no_secret(cluster: Cluster) -> None:
    create(cluster, key="create")
    url = "https://api.github.com/repos/team/digits"
    change(cluster, key="change", url=NEW_URL)
    change(cluster, key="token", url=url, format="github", token="token-canary")
    change(cluster, key="back", url=NEW_URL, format="json")
    for key, method, path in (("test", "POST", "/1/test"), ("delete", "DELETE", "/1")):
        answer = ask(cluster, method, path, key=key)
        assert answer.status < 300, answer.body
        assert b"canary" not in answer.body
    kept = cluster.services.table.query("idempotency#user-1", " ", "\x7f").rows
    assert len(kept) == 6
    assert not [row.key for row in kept if b"canary" in row.body or b"whsec_" in row.body]


def test_users_mail_only_to_permitted_domains(cluster: Cluster) -> None:
    smtp = {"host": "mail.example.com", "sender": "c@example.com", "password": "p"}
    configure(cluster, smtp=smtp, mail_domains=["Example.com"])
    mail: Any = {"format": "email", "url": "mailto:ann@EXAMPLE.com,bob@example.com"}
    assert create(cluster, **mail).status == 201
    for number, url in enumerate(
        (
            "mailto:ann@elsewhere.example",
            "mailto:ann@example.com,bob@elsewhere.example",
            "mailto:ann@sub.example.com",
        )
    ):
        refused = create(cluster, name="b", format="email", url=url)
        assert (refused.status, refused.code) == (403, "forbidden")
        assert "webhooks.mail_domains" in refused.json["error"]["message"]
        assert change(cluster, url=url).code == "forbidden"
        admin = create(cluster, Role.ADMIN, name=f"c{number}", format="email", url=url)
        assert admin.status == 201
    assert ask(cluster, "GET", "/1").json["url"] == mail["url"]


def test_without_permitted_domains_only_admins_create_mail(cluster: Cluster) -> None:
    configure(cluster, smtp={"host": "mail.example.com", "sender": "c@example.com"})
    mail: Any = {"format": "email", "url": "mailto:ann@example.com"}
    assert create(cluster, **mail).code == "forbidden"
    assert create(cluster, Role.ADMIN, **mail).status == 201


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"routes": [1, {"webhook": 1}]}'])
def test_damaged_routes_are_built_again(
    cluster: Cluster, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        create(cluster, name=name)
    table = cluster.services.table
    row = table.get(Key(*ROUTES))
    assert row is not None
    table.commit((Put(row.key, row.revision + 1, body, row.revision),))
    assert ask(cluster, "DELETE", "/2").status == 200
    assert routes(cluster) == [(1, "a"), (3, "c")]
    assert "webhook-routes is damaged" in caplog.text
    create(cluster, name="d")
    assert routes(cluster) == [(1, "a"), (3, "c"), (4, "d")]


def test_damaged_webhook_stops_no_other(cluster: Cluster) -> None:
    create(cluster, name="a")
    table = cluster.services.table
    row = table.get(webhook_key(1))
    assert row is not None
    table.commit((Put(row.key, row.revision + 1, b"{", row.revision),))
    for number in range(USER_MAX):
        assert create(cluster, name=f"b-{number}").status == 201


def test_deleted_mail_hides_recipients(cluster: Cluster) -> None:
    configure(cluster, smtp={"host": "h", "sender": "c@example.com"})
    create(cluster, Role.ADMIN, format="email", url="mailto:ann@example.com")
    assert ask(cluster, "DELETE", "/1", Role.ADMIN).json["url"] == f"mailto:{MASK}"


def test_routes_have_the_triggers_of_the_webhook(cluster: Cluster) -> None:
    create(cluster, triggers=STATES)
    change(cluster, triggers=[{"type": "CUSTOM"}])
    row = cluster.services.table.get(Key(*ROUTES))
    assert row is not None
    (route,) = decode_routes(row.body).routes
    assert route == stored_webhook(cluster).route
    assert (route.edits, route.triggers[0].type) == (1, "CUSTOM")


@pytest.mark.parametrize("body", [None, b'{"routes": []}'])
def test_change_stores_a_lost_route_again(cluster: Cluster, body: bytes | None) -> None:
    create(cluster)
    table = cluster.services.table
    row = table.get(Key(*ROUTES))
    assert row is not None
    write = Delete(row.key, row.revision)
    table.commit((write if body is None else Put(row.key, row.revision + 1, body, row.revision),))
    assert change(cluster, name="chat").status == 200
    assert routes(cluster) == [(1, "chat")]
