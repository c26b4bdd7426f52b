"""Canaries in all secret fields of a configuration: routes, commands and dumps hide canaries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.config.template import masked_template
from control_plane.config.yaml_document import parse_document
from control_plane.local.state_places import FilePlace
from control_plane.state.table import Key, Put
from control_plane.usecases.templates import TEMPLATES
from detcloud.cli.framework.command_index import COMMANDS
from detcloud.cli.main import main
from detcloud.shared.masking import MASK
from lambdas import dump
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import V1, Cluster, build_cluster
from tests.unit.api.exchange import call
from tests.unit.api.test_api_access import access_rules
from tests.unit.api.test_api_owners import (
    ADMIN,
    DELIVERY,
    OTHER,
    OWNER,
    UUID,
    WEBHOOK,
    Call,
    ask,
    make_world,
)

CANARY = "canary-5f1c"
URL = f"postgres://me:{CANARY}@db/x?sslmode=on"
SECTIONS: dict[str, Any] = {
    "environment": {
        "environment_variables": [f"PLAIN_NAME={CANARY}", f"DATABASE_URL={URL}", "SHOWN=seen"],
        "shown_variables": ["SHOWN"],
        "registry_auth": {"username": "u", "password": CANARY},
    },
    "data": {
        "api_key": CANARY,
        "source": URL,
        "signed": f"https://b.example/x?n=1&sig={CANARY}&token={CANARY}",
        "slack_webhook_url": f"https://example.com/{CANARY}",
        "channel": f"https://hooks.slack.com/services/{CANARY}",
    },
    "integrations": {"pachyderm": {"token": CANARY}},
}
PROGRAM = ["python", "train.py", f"--db={URL}"]
STORAGE = {
    "type": "s3",
    "bucket": "b",
    "access_key": CANARY,
    "secret_key": CANARY,
    "endpoint_url": f"http://me:{CANARY}@127.0.0.1:9",
}
POOL = {
    "pool_name": "cloudy",
    "provider": {
        "type": "local",
        "startup_script": f"export TOKEN={CANARY}",
    },
    "task_container_defaults": {
        "environment_variables": [f"ADMINS={CANARY}"],
        "registry_auth": {"username": "u", "password": CANARY},
    },
}
TEXT = json.dumps(SECTIONS)
PLACES = {
    "{report_id}": "1",
    "{experiment_id}": "1",
    "{trial_id}": "1",
    "{uuid}": UUID,
    "{name}": "hers",
    "{number}": "1",
    "{job_id}": "1",
    "{resource_pool}": "cloudy",
    "{sha256}": "0" * 64,
    "{agent_id}": "node",
    "{alarm}": "lag",
    "{tunnel_id}": "a-tunnel-id",
    "{webhook_id}": "2",
    "{delivery_id}": DELIVERY,
    "{schedule_id}": "2",
}


def put_template(cluster: Cluster, text: str = TEXT, token: str = OWNER, name: str = "hers") -> Any:
    request = Call(f"/templates/{name}", {"config": text})
    return ask(cluster, ("PUT", ""), request, token)


@pytest.fixture
def world(tmp_path: Path) -> Cluster:
    """A cluster with secrets in experiment 5, a command, a template, a pool and the defaults."""
    cluster = make_world(build_cluster(tmp_path / "objects", frozenset({"local"})))
    cluster_config = {
        "resource_pools": [{"pool_name": "default"}, POOL],
        "task_container_defaults": POOL["task_container_defaults"],
        "webhooks": {"smtp": {"host": "h", "sender": "a@b.example", "password": CANARY}},
    }
    put = Call("/cluster/configuration", {"config": json.dumps(cluster_config)})
    answer = ask(cluster, ("PUT", ""), put, ADMIN)
    assert answer.status == 200, answer.body
    whole = {**_parse_map(CONFIG), **SECTIONS, "checkpoint_storage": STORAGE, "entrypoint": PROGRAM}
    config = json.dumps(whole)
    answer = cluster.create(config)
    assert answer.status == 201, answer.body
    scheduled = json.dumps({**whole, "schedule": {"cron": "0 3 * * *"}})
    body = {"config": scheduled, "model_code": cluster.store_code()}
    assert ask(cluster, ("POST", ""), Call("/schedules", body), OWNER).status == 201
    run = {"entrypoint": PROGRAM, "environment": SECTIONS["environment"]}
    made = cluster.create(json.dumps(run), kind="command")
    assert made.status == 201, made.body
    assert put_template(cluster).status == 200
    model = Call("/models", {"name": "hers"})
    assert ask(cluster, ("POST", ""), model, OWNER).status == 201
    report = Call("/reports", {"title": "hers", "text": "rates", "sharing": "read"})
    assert ask(cluster, ("POST", ""), report, OWNER).status == 201
    webhook = Call("/webhooks", {**WEBHOOK, "name": "hers", "url": f"https://a.example/{CANARY}"})
    assert ask(cluster, ("POST", ""), webhook, OWNER).status == 201
    return cluster


def _parse_map(text: str) -> dict[str, Any]:
    tree = parse_document(text).tree
    assert isinstance(tree, dict)
    return tree


def targets() -> Iterator[str]:
    """Yield the targets of all GET routes of users, with the names of the world's objects."""
    for (method, path), rule in access_rules().items():
        if method == "GET" and rule.roles & {Role.USER, Role.ADMIN}:
            for number in ("1", "5", "6"):
                target = path.removeprefix(V1).replace("{experiment_id}", number)
                for name, value in PLACES.items():
                    target = target.replace(name, value)
                yield target


def test_get_routes_show_no_secret(world: Cluster) -> None:
    all_targets = sorted(set(targets()))
    assert not [target for target in all_targets if "{" in target]
    statuses = set()
    for target in all_targets:
        for token in (OTHER, OWNER, ADMIN):
            answer = ask(world, ("GET", ""), Call(target), token)
            statuses.add(answer.status)
            is_own = target.startswith(("/templates", "/webhooks")) and token != OTHER
            is_own = is_own and not target.startswith("/webhooks/2/deliveries")
            assert is_own == (CANARY.encode() in answer.body), (target, token)
    assert 200 in statuses
    shown = world.get("/experiments/5").json["config"]
    assert shown["environment"]["environment_variables"]["cpu"][:3] == [
        f"PLAIN_NAME={MASK}",
        f"DATABASE_URL={MASK}",
        "SHOWN=seen",
    ]
    assert shown["data"]["source"] == f"postgres://{MASK}@db/x?sslmode=on"
    assert shown["data"]["signed"] == f"https://b.example/x?n=1&sig={MASK}&token={MASK}"


def test_answers_to_changes_and_log_lines_show_no_secret(
    world: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    config = json.dumps({**_parse_map(CONFIG), **SECTIONS})
    changes = [
        ("POST", Call("/experiments", {"config": config, "validate_only": True})),
        ("POST", Call("/search-previews", {"config": config})),
        # All values are wrong here: no error may repeat a value.
        ("POST", Call("/experiments", {"config": json.dumps({"data": 1, **_wrong(SECTIONS)})})),
        ("POST", Call("/experiments", {"config": f"a: 1\n password: {CANARY}\n"})),
        ("POST", Call("/experiments/5/kill")),
        ("POST", Call("/experiments/5/continue", {"overrides": [f"max_restarts={CANARY}"]})),
        ("PATCH", Call("/experiments/5", {"name": "x"})),
        ("DELETE", Call("/experiments/6")),
    ]
    for method, request in changes:
        answer = ask(world, (method, ""), request, OWNER)
        if "max_restarts" not in str(request.content):
            assert CANARY.encode() not in answer.body, (method, request.target)
    pool = Call("/resource-pools/cloudy", {"overrides": ["description=x"]})
    assert CANARY.encode() not in ask(world, ("PUT", ""), pool, ADMIN).body
    assert caplog.text
    assert CANARY not in caplog.text


def _wrong(value: Any) -> Any:
    """Replace lists, texts and numbers by maps, so that the configuration is refused."""
    if isinstance(value, dict):
        return {name: _wrong(item) for name, item in value.items()}
    return {"x": value}


READING = {
    "experiment list": ("experiment", "list", "--json"),
    "experiment describe": ("experiment", "describe", "5", "--json"),
    "experiment config": ("experiment", "config", "5"),
    "experiment list-trials": ("experiment", "list-trials", "5", "--json"),
    "trial list": ("trial", "list", "5", "--json"),
    "trial describe": ("trial", "describe", "1", "--json"),
    "command list": ("command", "list", "--json"),
    "command describe": ("command", "describe", "6", "--json"),
    "command config": ("command", "config", "6"),
    "notebook list": ("notebook", "list", "--json"),
    "shell list": ("shell", "list", "--json"),
    "checkpoint list": ("checkpoint", "list", "1", "--json"),
    "checkpoint describe": ("checkpoint", "describe", UUID, "--json"),
    "model list": ("model", "list", "--json"),
    "model describe": ("model", "describe", "hers", "--json"),
    "workspace list": ("workspace", "list", "--json"),
    "project list": ("project", "list", "--json"),
    "job list": ("job", "list", "--json"),
    "resource-pool list": ("resource-pool", "list", "--json"),
    "resource-pool describe": ("resource-pool", "describe", "cloudy", "--json"),
    "agent list": ("agent", "list", "--json"),
    "alarm list": ("alarm", "list", "--json"),
    "alarm describe": ("alarm", "describe", "lag", "--json"),
    "agent describe": ("agent", "describe", "node", "--json"),
    "slot list": ("slot", "list", "--json"),
    "report list": ("report", "list", "--json"),
    "schedule list": ("schedule", "list", "--json"),
    "schedule describe": ("schedule", "describe", "2", "--json"),
    "template list": ("template", "list", "--json"),
    "template describe": ("template", "describe", "hers"),
    "webhook list": ("webhook", "list", "--json"),
    "webhook describe": ("webhook", "describe", "hers", "--json"),
    "token list": ("token", "list", "--json"),
    "token describe": ("token", "describe", "2", "--json"),
    "trial support-bundle": ("trial", "support-bundle", "1"),
}
UNREADABLE = {"notebook config", "notebook describe", "shell config", "shell describe"}
"""Commands of notebooks and shells, which print the same as the commands of `READING`."""


def test_reading_commands_print_no_secret_of_other_users(
    world: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    named = {
        command.name
        for command in COMMANDS
        if command.verb in ("list", "describe", "config", "list-trials", "support-bundle")
    }
    assert named - set(READING) <= UNREADABLE | {"master config"}
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DETCLOUD_TOKEN", OTHER)
    monkeypatch.chdir(tmp_path)
    assert ask(world, ("POST", ""), Call("/tokens", {}), OTHER).json["id"] == 2
    with serve_app(world.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        for words in READING.values():
            assert main(words) == 0, (words, capsys.readouterr().err)
            printed = capsys.readouterr()
            assert printed.out, words
            assert CANARY not in printed.out + printed.err, words


def test_dumps_of_rows_mask_secrets(
    world: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "objects" / "state.db"
    partitions: tuple[str, ...] = (
        "experiment#5",
        "experiment#6",
        "templates",
        "schedules",
        "scheduled-submissions",
        "pool#cloudy",
        "pools",
        "cluster",
    )
    partitions += ("cluster-configuration", "configuration", "idempotency#user-1", "trial#1")
    key = [("idempotency-key", "k")]
    content = {"config": TEXT}
    call(world.app, "PUT", f"{V1}/templates/b", token=OWNER, headers=key, content=content)
    shown = ""
    for partition in partitions:
        for words in ([], ["--with-secrets"]):
            monkeypatch.setattr("sys.argv", ["dump", partition, "--home", str(file.parent), *words])
            assert dump.main() == 0
            printed = capsys.readouterr()
            if words:
                shown += printed.out
            else:
                assert CANARY not in printed.out, partition
                assert "--with-secrets" in printed.err
    assert CANARY in shown


def test_template_of_a_different_user_is_applied_without_secrets(world: Cluster) -> None:
    body = {"config": CONFIG, "model_code": world.store_code(), "template": "hers"}
    made = ask(world, ("POST", ""), Call("/experiments", body), OTHER)
    assert made.status == 201, made.body
    [warning] = [text for text in made.json["warnings"] if "template" in text]
    assert warning.startswith("template hers belongs to user-1, and its secrets were left out: ")
    assert "environment.environment_variables[0]" in warning
    assert "data.api_key" in warning
    number = made.json["id"]
    rows = dump.rows_at(FilePlace(_file(world).parent), f"experiment#{number}")
    # The admin's defaults apply to all trials; secrets of the template must not be stored.
    stored = json.dumps(rows).replace(f"ADMINS={CANARY}", "")
    stored = re.sub(r'password[\\": ]+canary-5f1c', "", stored)
    assert CANARY not in stored
    assert "SHOWN=seen" in stored
    own = ask(world, ("POST", ""), Call("/experiments", body), OWNER)
    assert own.status == 201
    assert not [text for text in own.json["warnings"] if "template" in text]
    rows = dump.rows_at(FilePlace(_file(world).parent), f"experiment#{own.json['id']}")
    assert f"PLAIN_NAME={CANARY}" in json.dumps(rows)


def test_template_stored_by_an_earlier_version_is_masked(world: Cluster) -> None:
    table = world.services.table
    row = table.get(Key(TEMPLATES, "hers"))
    assert row is not None
    fields = json.loads(row.body)
    # The earlier version stored neither a masked text nor the number of the masking rules.
    del fields["masking"]
    fields["masked"] = ""
    table.commit([Put(row.key, row.revision + 1, json.dumps(fields).encode(), row.revision)])
    answer = ask(world, ("GET", ""), Call("/templates/hers"), OTHER)
    assert answer.json["config"] == masked_template(TEXT)
    assert CANARY not in answer.json["config"]


MASKED_FIELDS = [
    ({"environment": {"environment_variables": [f"A={MASK}"]}}, "environment_variables[0]"),
    (
        {"environment": {"shown_variables": ["A"], "environment_variables": [f"A={MASK}"]}},
        "environment_variables[0]",
    ),
    ({"environment": {"registry_auth": {"password": MASK}}}, "environment.registry_auth.password"),
    ({"data": {"deep": [{"api_key": MASK}]}}, "data.deep[0].api_key"),
    ({"data": {"source": f"postgres://{MASK}@db/x"}}, "data.source"),
    ({"data": {"source": f"https://b.example/x?sig={MASK}"}}, "data.source"),
    ({"integrations": {"webhook": MASK}}, "integrations.webhook"),
    (
        {
            "checkpoint_storage": {
                "type": "s3",
                "bucket": "b",
                "access_key": "a",
                "secret_key": MASK,
            }
        },
        "checkpoint_storage.secret_key",
    ),
    (
        {
            "checkpoint_storage": {
                "type": "s3",
                "bucket": "b",
                "endpoint_url": f"http://{MASK}@host:9000",
            }
        },
        "checkpoint_storage.endpoint_url",
    ),
    (
        {"checkpoint_storage": {"type": "azure", "container": "c", "connection_string": MASK}},
        "checkpoint_storage.connection_string",
    ),
]


@pytest.mark.parametrize(("fields", "place"), MASKED_FIELDS, ids=[two for _, two in MASKED_FIELDS])
def test_rejects_submitted_mask_and_names_the_place(
    cluster: Cluster, fields: dict[str, Any], place: str
) -> None:
    answers = [
        cluster.create(json.dumps({**_parse_map(CONFIG), **fields})),
        put_template(cluster, json.dumps(fields)),
    ]
    for answer in answers:
        assert (answer.status, answer.code) == (422, "invalid"), answer.body
        [detail] = [item for item in answer.json["error"]["details"] if "mask" in item["message"]]
        assert detail["path"].endswith(place)
        assert detail["line"] == 1
        assert "write the value itself" in detail["hint"]
    assert cluster.get("/experiments").json["items"] == []


def test_rejects_masks_in_overrides_and_cluster_configurations(cluster: Cluster) -> None:
    overrides = [f"environment.environment_variables=['A={MASK}']"]
    answer = cluster.create(CONFIG, overrides=overrides)
    assert (answer.status, "is the mask of a hidden value" in answer.body.decode()) == (422, True)
    shown = {**POOL, "task_container_defaults": {"environment_variables": [f"A={MASK}"]}}
    bodies = {
        "/cluster/configuration": {"resource_pools": [{"pool_name": "default"}, shown]},
        "/resource-pools/other": {"provider": {"type": "local", "startup_script": MASK}},
    }
    for target, config in bodies.items():
        put = Call(target, {"config": json.dumps(config)})
        answer = ask(cluster, ("PUT", ""), put, ADMIN)
        assert answer.status == 422, target
        assert "is the mask of a hidden value" in answer.body.decode(), target


def test_rejects_masked_configuration_with_all_places(
    world: Cluster,
) -> None:
    shown = world.get("/experiments/5").json["config"]
    answer = world.create(json.dumps(shown))
    assert answer.status == 422
    places = {detail["path"] for detail in answer.json["error"]["details"]}
    assert {
        "environment.environment_variables.cpu[0]",
        "environment.registry_auth.password",
        "data.source",
        "checkpoint_storage.secret_key",
        "checkpoint_storage.endpoint_url",
    } <= places


def _file(world: Cluster) -> Path:
    return world.checkpoints.parent / "state.db"
