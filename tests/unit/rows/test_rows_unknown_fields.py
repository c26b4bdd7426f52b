"""Fields that a newer version stored survive each rewrite by this version."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.access.agent_credentials import CredentialRequest, credential_writes
from control_plane.access.agent_users import AgentUserKind, AgentUserRecord
from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import TableTokens, token_digest, token_put
from control_plane.actors import addresses
from control_plane.actors.event_routes import EventType, Route
from control_plane.actors.events import Event, event_row
from control_plane.actors.messages.experiment import SettingsChanged
from control_plane.actors.pins import Pin, add_pin, decode_pin, encode_pin
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.agents.leases import RENEW_AFTER_MS, mark_lost_agents, renew_lease
from control_plane.agents.sessions import decode_session, session_write
from control_plane.alarms.notifications import LogNotifier
from control_plane.alarms.records import AlarmRow, CostHistory
from control_plane.alarms.rows import COST_HISTORY, alarm_key, encode_alarm, encode_history
from control_plane.alarms.watch import AlarmWatch
from control_plane.config.alarms import Alarms
from control_plane.fleet.records import FleetRow, InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import instance_key
from control_plane.queries.cluster_configuration import POOL_CONFIGS, SHARED_CONFIG, cluster_config
from control_plane.queries.model_records import (
    ModelRecord,
    VersionRecord,
    decode_model,
    decode_version,
    model_key,
    version_key,
)
from control_plane.rows import agent_rows
from control_plane.rows.registry import ROW_TYPES, find_row_type
from control_plane.state.table import Expect, Key, Put, Row, StateTable
from control_plane.usecases import browser_sessions, metadata_edits, user_tokens
from control_plane.usecases.agent_users import put_agent_user
from control_plane.usecases.checkpoint_pins import pin_write
from control_plane.usecases.models import put_record
from control_plane.usecases.reports import (
    ReportContent,
    Sharing,
    change_report,
    create_report,
)
from control_plane.usecases.templates import TemplateRecord, put_template
from control_plane.usecases.tunnels import admit_agent, open_tunnel
from control_plane.usecases.webhooks import WebhookChange, change_webhook
from control_plane.webhooks.deliverer import Deliverer
from control_plane.webhooks.event_writes import event_put
from control_plane.webhooks.records import WebhookRecord, encode_webhook, webhook_key
from control_plane.webhooks.sender import Outcome, Request
from control_plane.webhooks.signatures import new_secret
from detcloud.shared.tunnel.keys import make_key
from provisioner.ledger import Ledger
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster, build_cluster

NEWER = {"from_newer": {"a": [1, "x"]}}
UUID = "0000000c-0000-4000-8000-000000000003"
POOL = "default"
USER = Principal("user-1", Role.USER)

Case = tuple[Key, Callable[[], object]]
"""The key of a stored row, and a function that rewrites the row."""


def add_field(cluster: Cluster, key: Key) -> None:
    """Add NEWER to a stored row, and to the header of a head, as a newer version stores fields."""
    row = stored_row(cluster, key)
    *header, body = row.body.split(b"\n")
    lines = [json.dumps({**json.loads(line), **NEWER}).encode() for line in (*header, body)]
    revision = row.revision + (key.sort == "M")
    put = Put(key, revision, b"\n".join(lines), row.revision, row.due_ms, row.expires)
    cluster.services.table.commit((put,))


def stored_row(cluster: Cluster, key: Key) -> Row:
    row = cluster.services.table.get(key)
    assert row is not None, key
    return row


def head(cluster: Cluster) -> Case:
    cluster.create(CONFIG)
    return Key(addresses.experiment(1), "M"), lambda: change_weight(cluster)


def part(cluster: Cluster) -> Case:
    cluster.create(CONFIG)
    change_weight(cluster, 1.5)

    def rewrite() -> None:
        # A new revision of the head, since the engine caches the parts of a revision.
        row = stored_row(cluster, Key(addresses.experiment(1), "M"))
        put = Put(row.key, row.revision + 1, row.body, row.revision)
        cluster.services.table.commit((put,))
        change_weight(cluster)
        # The second change takes the part from the cache.
        change_weight(cluster, 3.0)

    return Key(addresses.experiment(1), "P#settings"), rewrite


def change_weight(cluster: Cluster, weight: float = 2.0) -> None:
    message = SettingsChanged(weight=weight)
    cluster.services.engine.execute_command(addresses.experiment(1), message)


def trial_edit(cluster: Cluster) -> Case:
    cluster.create(CONFIG)

    def write(value: int) -> None:
        metadata_edits.set_trial_metadata(cluster.services, 1, {"a": value}, None, lambda _: ())

    write(1)
    return Key(addresses.trial(1), "V#"), lambda: write(2)


def pin(cluster: Cluster) -> Case:
    key = Key("pins", UUID)
    table = cluster.services.table
    table.commit((Put(key, 1, encode_pin(Pin(experiments=(1,))), Expect.ABSENT),))

    def rewrite() -> None:
        row = stored_row(cluster, key)
        write = pin_write(UUID, row, replace(decode_pin(row.body), users=("a",)), NOW_MS)
        table.commit((write,))

    return key, rewrite


def session(cluster: Cluster) -> Case:
    cluster.create(CONFIG)
    name = Agent(cluster).name
    key = Key("sessions", name)

    def rewrite() -> None:
        row = stored_row(cluster, key)
        changed = replace(decode_session(row), clock=7)
        cluster.services.table.commit((session_write(name, changed, row),))

    return key, rewrite


def lease(cluster: Cluster) -> Case:
    cluster.create(CONFIG)
    key = Key(f"leases#{POOL}", Agent(cluster).name)

    def rewrite() -> None:
        row = stored_row(cluster, key)
        renew_lease(cluster.services.table, key, row, 1, NOW_MS + RENEW_AFTER_MS)
        mark_all_lost(cluster, NOW_MS + 10_000)
        mark_all_lost(cluster, NOW_MS + 70_000)
        mark_all_lost(cluster, NOW_MS + 130_000)
        assert json.loads(stored_row(cluster, key).body)["lost"]

    return key, rewrite


def loss_detection(cluster: Cluster) -> Case:
    cluster.create(CONFIG)
    Agent(cluster)
    mark_all_lost(cluster, NOW_MS)
    return Key(f"leases#{POOL}", "~brake"), lambda: mark_all_lost(cluster, NOW_MS + 1_000)


def mark_all_lost(cluster: Cluster, now_ms: int) -> None:
    mark_lost_agents(cluster.services.table, POOL, now_ms, lambda _: None)


def token_record(cluster: Cluster) -> Case:
    table = cluster.services.table
    request = user_tokens.TokenRequest(None, Role.USER, None, "", 1)
    draft = user_tokens.draft_record(cluster.services, request, USER)
    minted = user_tokens.create_token(
        table, cluster.services.tokens, draft, TOKENS[Role.USER], lambda _: ()
    )
    key = Key("token-entries", f"{minted.id:012d}")
    return key, lambda: user_tokens.revoke_token(table, minted.id, "user-1", lambda _: ())


def idempotency_key(cluster: Cluster) -> Case:
    cluster.create(CONFIG, key="k")
    key = Key("idempotency#user-1", "I#k")
    row = stored_row(cluster, key)
    fields = json.loads(row.body)
    del fields["answer"]
    body = json.dumps(fields).encode()
    put = Put(key, row.revision + 1, body, row.revision, row.due_ms, row.expires)
    cluster.services.table.commit((put,))
    return key, lambda: cluster.create(CONFIG, key="k")


def tunnel(cluster: Cluster) -> Case:
    cluster.create(CONFIG)
    Agent(cluster).take_work()
    services, certificate = cluster.services, make_key().certificate
    digest = token_digest(TOKENS[Role.USER])
    name = open_tunnel(services, USER, digest, 1, (80,), certificate, lambda _: ())
    agent_certificate = make_key().certificate
    return (
        Key("tunnels", name),
        lambda: admit_agent(services, "node", name, agent_certificate),
    )


def template(cluster: Cluster) -> Case:
    table = cluster.services.table

    def write(text: str) -> None:
        record = TemplateRecord("t", text, "", NOW_MS, NOW_MS, "user-1")
        put_template(table, record, USER, lambda _: ())

    write("description: a\n")
    return Key("templates", "t"), lambda: write("description: b\n")


def agent_user(cluster: Cluster) -> Case:
    def write(uid: int) -> None:
        record = AgentUserRecord(AgentUserKind.USER, "ada", uid, 1001, "ada", "", "root", NOW_MS)
        put_agent_user(cluster.services.table, record, lambda _: ())

    write(1001)
    return Key("agent-users", "user#ada"), lambda: write(1002)


def schedule(cluster: Cluster) -> Case:
    config = f"{CONFIG}\nschedule: {{cron: '0 3 * * *'}}\n"
    body = {"config": config, "model_code": cluster.store_code()}
    assert cluster.post("/schedules", body).status == 201
    key = Key("schedules", f"{1:012d}")
    return key, lambda: cluster.post("/schedules/1/pause", None)


def report(cluster: Cluster) -> Case:
    table = cluster.services.table
    first = ReportContent("t", "a", Sharing.PRIVATE)
    create_report(table, first, USER, NOW_MS, lambda _: ())

    def rewrite() -> None:
        changed = ReportContent("t", "b", Sharing.READ)
        change_report(table, 1, changed, 1, USER, NOW_MS, lambda _: ())

    return Key("reports", f"{1:012d}"), rewrite


def model(cluster: Cluster) -> Case:
    key = model_key("digits")
    put_model(cluster, key, ModelRecord("digits", "user-1", NOW_MS, NOW_MS), None)

    def rewrite() -> None:
        row = stored_row(cluster, key)
        put_model(cluster, key, replace(decode_model(row.body), notes="b"), row)

    return key, rewrite


def model_version(cluster: Cluster) -> Case:
    key = version_key("digits", 1)
    version = VersionRecord("digits", 1, UUID, 1, 1, 10, "user-1", NOW_MS, NOW_MS)
    put_model(cluster, key, version, None)

    def rewrite() -> None:
        row = stored_row(cluster, key)
        put_model(cluster, key, replace(decode_version(row.body), notes="b"), row)

    return key, rewrite


def put_model(
    cluster: Cluster, key: Key, record: ModelRecord | VersionRecord, row: Row | None
) -> None:
    cluster.services.table.commit((put_record(key, record, row, NOW_MS),))


def fleet(cluster: Cluster) -> Case:
    table = cluster.services.table
    Ledger(table, POOL).commit(FleetRow(POOL, waits="a"))

    def rewrite() -> None:
        ledger = Ledger(table, POOL)
        ledger.commit(replace(ledger.fleet, waits="b"))
        ledger.commit(replace(ledger.fleet, waits=""))

    return Key("fleets", POOL), rewrite


def instance(cluster: Cluster) -> Case:
    table = cluster.services.table
    key = put_new_instance(table)

    def rewrite() -> None:
        ledger = Ledger(table, POOL)
        changed = replace(ledger.instances["i-1"], state=InstanceState.RUNNING)
        ledger.commit(ledger.fleet, changed_rows=(changed,))
        ledger.commit(ledger.fleet, changed_rows=(replace(changed, idle_ms=NOW_MS),))

    return key, rewrite


def put_new_instance(table: StateTable) -> Key:
    offering = Offering("o", "t", "z", Market.SPOT, 1, 1.0)
    new = InstanceRow("i-1", POOL, offering, InstanceState.STARTING, NOW_MS, "n")
    ledger = Ledger(table, POOL)
    ledger.commit(ledger.fleet, changed_rows=(new,))
    return instance_key(new)


def alarm(cluster: Cluster) -> Case:
    key = alarm_key("failed-boots", POOL)
    body = encode_alarm(AlarmRow("failed-boots", POOL, "broken", NOW_MS, raised_ms=NOW_MS))
    cluster.services.table.commit((Put(key, 1, body, Expect.ABSENT),))
    # The check clears the alarm, and notifies users that it was raised.
    return key, lambda: check_alarms(cluster)


def hourly_cost(cluster: Cluster) -> Case:
    body = encode_history(CostHistory(0))
    cluster.services.table.commit((Put(COST_HISTORY, 1, body, Expect.ABSENT),))
    put_new_instance(cluster.services.table)
    return COST_HISTORY, lambda: check_alarms(cluster)


def check_alarms(cluster: Cluster) -> None:
    AlarmWatch(cluster.services.engine, LogNotifier(), "c").check(Alarms(), 0)


def webhook(cluster: Cluster) -> Case:
    table = cluster.services.table
    put_new_webhook(table)
    change = WebhookChange({"url": "https://b.example/"})

    def rewrite() -> None:
        change_webhook(table, 1, change, USER, NOW_MS, lambda _: ())

    return webhook_key(1), rewrite


def put_new_webhook(table: StateTable) -> None:
    route = Route(1, "hook", ())
    new = WebhookRecord(1, "hook", "https://a.example/", "json", new_secret(), "user-1", 1, route)
    table.commit((Put(webhook_key(1), 1, encode_webhook(new), Expect.ABSENT),))


def event(cluster: Cluster) -> Case:
    table = cluster.services.table
    put_new_webhook(table)
    put = event_put(event_row(Event(EventType.TEST, "webhook#1", 1, "t"), (1,), NOW_MS), NOW_MS)
    table.commit((put,))

    class Refusing:
        def send(self, request: Request) -> Outcome:
            return Outcome(False, 500)

    def rewrite() -> None:
        Deliverer(table, lambda: NOW_MS, Refusing(), "c").deliver([put.key.partition])

    return put.key, rewrite


def agent_credential(cluster: Cluster) -> Case:
    table = cluster.services.table
    once = Principal("user-1", Role.JOIN, "default", token_id=1)
    table.commit((token_put("1" * 64, once),))

    def enrol_with(bearer: str, digest: str) -> None:
        request = CredentialRequest("gpu-1", "default", "a" * 32, bearer, digest)
        table.commit(credential_writes(table, request))

    enrol_with("1" * 64, "2" * 64)
    key = Key(agent_rows.CREDENTIAL.partition, "gpu-1")
    return key, lambda: enrol_with("2" * 64, "3" * 64)


CASES: dict[str, Callable[[Cluster], Case]] = {
    "head": head,
    "part": part,
    "edit of trial metadata": trial_edit,
    "pin": pin,
    "session": session,
    "lease": lease,
    "loss detection": loss_detection,
    "token record": token_record,
    "idempotency key": idempotency_key,
    "template": template,
    "agent user": agent_user,
    "report": report,
    "schedule": schedule,
    "tunnel": tunnel,
    "agent credential": agent_credential,
    "registered model": model,
    "model version": model_version,
    "fleet": fleet,
    "instance": instance,
    "alarm": alarm,
    "hourly cost": hourly_cost,
    "event": event,
    "webhook": webhook,
}
# The code of a different family rewrites these rows, too.
SAME_CODE = {
    "edit of checkpoint metadata": "edit of trial metadata",
    "idempotency key of an effect": "idempotency key",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "objects")


def test_every_mutable_row_has_a_case() -> None:
    mutable = {row.name for row in ROW_TYPES if row.is_mutable}
    missing = mutable - CASES.keys() - SAME_CODE.keys()
    assert not missing, f"add {missing} to CASES, or to SAME_CODE if another case has the same code"
    extra = (CASES.keys() | SAME_CODE.keys()) - mutable
    assert not extra, f"remove the cases of {extra}, which are not mutable"


@pytest.mark.parametrize("name", CASES)
def test_unknown_fields_survive_rewrites(cluster: Cluster, name: str) -> None:
    key, rewrite = CASES[name](cluster)
    row_type = find_row_type(*key)
    assert row_type is not None
    assert row_type.name == name
    add_field(cluster, key)
    before = stored_row(cluster, key)
    rewrite()
    after = stored_row(cluster, key)
    assert (after.revision, after.body) != (before.revision, before.body)
    for line in after.body.split(b"\n"):
        assert json.loads(line)["from_newer"] == NEWER["from_newer"]


def test_ended_instance_keeps_unknown_fields(cluster: Cluster) -> None:
    table = cluster.services.table
    add_field(cluster, put_new_instance(table))
    ledger = Ledger(table, POOL)
    ended = replace(ledger.instances["i-1"], state=InstanceState.ENDED, ended_ms=NOW_MS)
    ledger.commit(ledger.fleet, changed_rows=(ended,))
    assert json.loads(stored_row(cluster, instance_key(ended)).body)["from_newer"]


def test_pin_of_an_experiment_keeps_unknown_fields() -> None:
    body = json.dumps({"by": [], "gone": False, **NEWER}).encode()

    class Reader:
        def part(self, name: str) -> object | None:
            return None

        def row(self, partition: str, sort: str) -> ObservedRow:
            return ObservedRow(1, body)

    context = StepContext(addresses.experiment(1), NOW_MS, Reader())
    add_pin(UUID, 7, context)
    ((_, written),) = [(row.sort, row.body) for row in context.rows]
    assert written is not None
    assert json.loads(written) == {"by": [7], "gone": False, **NEWER}


def test_tokens_of_newer_versions_stay_valid(cluster: Cluster) -> None:
    table = cluster.services.table
    table.commit((token_put("d" * 64, USER),))
    add_field(cluster, Key("tokens", "d" * 64))
    tokens = cluster.services.tokens
    assert isinstance(tokens, TableTokens)
    assert tokens.find_principal("d" * 64) == USER


def test_sign_in_codes_of_newer_versions_open_sessions(cluster: Cluster) -> None:
    created = browser_sessions.create_sign_in_code(cluster.services, USER, TOKENS[Role.USER])
    (key,) = (row.key for row in cluster.services.table.query("sign-in-codes", " ", "~").rows)
    add_field(cluster, key)
    session = browser_sessions.open_session_by_code(cluster.services, created.code)
    assert session.principal.user == "user-1"


def test_configuration_of_newer_versions_is_read(cluster: Cluster) -> None:
    table = cluster.services.table
    pool_config = Key(POOL_CONFIGS, POOL)
    for key, body in ((SHARED_CONFIG, b"{}"), (pool_config, b'{"pool_name": "default"}')):
        table.commit((Put(key, 1, body, Expect.ANYTHING),))
        add_field(cluster, key)
    assert cluster_config(cluster.services).resource_pools[0].pool_name == POOL
