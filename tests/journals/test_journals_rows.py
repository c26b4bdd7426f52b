"""Rows of every release are found and read by today's code. `row_files.py` records a release."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.agent_credentials import decode_credential
from control_plane.access.agent_users import CODEC as AGENT_USERS
from control_plane.access.principals import Principal, Role
from control_plane.access.relay_record import decode_relay
from control_plane.actors.cost import decode_usage
from control_plane.actors.event_routes import decode_routes
from control_plane.actors.events import decode_event
from control_plane.actors.experiment.listing import decode_listing
from control_plane.actors.experiment.values import decode_values
from control_plane.actors.job_row import decode_job
from control_plane.actors.metadata_edits import decode_edit
from control_plane.actors.pins import decode_pin
from control_plane.actors.replacement import decode_replacement
from control_plane.actors.spans import decode_spans
from control_plane.adapters import lazy_adapter
from control_plane.agents.leases import Lease, LossDetection
from control_plane.agents.sessions import decode_session
from control_plane.alarms.rows import decode_alarm, decode_history
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import PARTS, decode_head
from control_plane.engine.journal import read_entry
from control_plane.engine.mailbox import UNREADABLE, read_mail
from control_plane.fleet.bills import decode_bill
from control_plane.fleet.rows import decode_fleet, decode_instance, decode_intent
from control_plane.fleet.usage_days import decode_day
from control_plane.queries.model_records import decode_model, decode_version
from control_plane.queries.schedules import SCHEDULE_CODEC, SUBMISSION_CODEC
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.rows.registry import ROW_TYPES, find_row_type
from control_plane.state.table import Row
from control_plane.usecases.experiment_views import decode_view
from control_plane.usecases.reports import decode_report, decode_report_text
from control_plane.usecases.templates import decode_template
from control_plane.usecases.tunnels import decode_tunnel
from control_plane.usecases.user_tokens import decode_record
from control_plane.webhooks.records import decode_delivery, decode_webhook
from detcloud import __version__
from provisioner.settings import decode_settings
from tests.journals.journal_files import FOLDER
from tests.journals.row_files import REQUIRED, ROWS, describe_row_type, read_sample

FILES = sorted(FOLDER.glob(f"*/{ROWS}"))
ROWS_BY_NAME = {row_type.name: row_type for row_type in ROW_TYPES}
AGAIN = "`python -m tests.journals.row_files` records the rows of an unreleased version again"


def _decode_head(row: Row) -> object:
    header, state = decode_head(row.body)
    return header, actor_type_at(row.key.partition).decode_state(state)


def _decode_part(row: Row) -> object:
    name = row.key.sort.removeprefix(PARTS)
    return actor_type_at(row.key.partition).decode_part(name, row.body)


def _decode_mail(row: Row) -> object:
    mail = read_mail(row)
    actor_type = actor_type_at(row.key.partition)
    assert all(name != UNREADABLE for name, _ in mail.messages)
    return [actor_type.decode_message(name, fields) for name, fields in mail.messages]


def _decode_principal(row: Row) -> object:
    codec = JsonCodec(user_rows.TOKEN, Principal, {"role": Role, "makers": tuple})
    return codec.decode(row.body)


DECODERS: Mapping[str, Callable[[Row], object]] = {
    "head": _decode_head,
    "part": _decode_part,
    "mail": _decode_mail,
    "timer": _decode_mail,
    "journal entry": read_entry,
    "listing": lambda row: decode_listing(row.body),
    "values": lambda row: decode_values([row.body])[0],
    "pin": lambda row: decode_pin(row.body),
    "edit of trial metadata": lambda row: decode_edit(row.body),
    "edit of checkpoint metadata": lambda row: decode_edit(row.body),
    "job": lambda row: decode_job(row.body),
    "replacement": lambda row: decode_replacement(row.body),
    "spans of a run": lambda row: decode_spans(row.body),
    "replacement of an experiment": lambda row: decode_replacement(row.body),
    "replacement of a trial": lambda row: decode_replacement(row.body),
    "usage": lambda row: decode_usage(row.body),
    "session": decode_session,
    "lease": lambda row: lazy_adapter(Lease)().validate_json(row.body),
    "loss detection": lambda row: lazy_adapter(LossDetection)().validate_json(row.body),
    "fleet": decode_fleet,
    "location": lambda row: decode_settings(row.body.decode()),
    "instance": decode_instance,
    "past instance": decode_instance,
    "launch intent": decode_intent,
    "bill": lambda row: decode_bill(row.body),
    "usage of a day": lambda row: decode_day(row.body),
    "token": _decode_principal,
    "agent credential": lambda row: decode_credential(row.body),
    "token record": lambda row: decode_record(row.body),
    "template": lambda row: decode_template(row.body),
    "agent user": lambda row: AGENT_USERS.decode(row.body),
    "tunnel": lambda row: decode_tunnel(row.body),
    "relay": lambda row: decode_relay(row.body).relay(),
    "experiment view": lambda row: decode_view(row.body),
    "report": lambda row: decode_report(row.body),
    "webhook": lambda row: decode_webhook(row.body),
    "webhook routes": lambda row: decode_routes(row.body).routes[0],
    "event": lambda row: decode_event(row.body),
    "delivery": lambda row: decode_delivery(row.body),
    "report text": lambda row: decode_report_text(row.body),
    "schedule": lambda row: SCHEDULE_CODEC.decode(row.body),
    "scheduled submission": lambda row: SUBMISSION_CODEC.decode(row.body),
    "registered model": lambda row: decode_model(row.body),
    "sign-in code": _decode_principal,
    "alarm": lambda row: decode_alarm(row.body),
    "hourly cost": lambda row: decode_history(row.body),
    "cluster configuration": lambda row: ClusterConfig.model_validate_json(row.body),
    "pool configuration": lambda row: ResourcePool.model_validate_json(row.body),
    "model version": lambda row: decode_version(row.body),
}


def release_rows() -> list[Any]:
    return [
        pytest.param(described, name, id=f"{path.parent.name}/{name}")
        for path in FILES
        for name, described in json.loads(path.read_text(encoding="utf-8")).items()
    ]


def test_rows_of_this_version_are_recorded() -> None:
    path: Path = FOLDER / __version__ / ROWS
    stored = json.loads(path.read_text(encoding="utf-8"))
    now = {row_type.name: describe_row_type(row_type) for row_type in ROW_TYPES}
    assert now.keys() == stored.keys(), AGAIN


@pytest.mark.parametrize(("then", "name"), release_rows())
def test_row_of_a_release_is_still_declared(then: Mapping[str, Any], name: str) -> None:
    now = describe_row_type(ROWS_BY_NAME[name])
    # Keys find rows, and the paths of documents in Firestore depend on the functions that a row
    # wakes.
    assert (now["key"], now["wakes"]) == (then["key"], then["wakes"]), AGAIN
    gone = then["fields"].keys() - now["fields"].keys()
    assert not gone, f"rows of {name} have these fields: {AGAIN}"
    for field, default in now["fields"].items():
        is_new = field not in then["fields"]
        assert not (is_new and default == REQUIRED), f"stored rows have no {field}: {AGAIN}"
        # A row without a field has had the default of the release that wrote the row.
        assert is_new or then["fields"][field] in (default, REQUIRED), f"{field}: {AGAIN}"


@pytest.mark.parametrize(("then", "name"), release_rows())
def test_row_of_a_release_is_read(then: Mapping[str, Any], name: str) -> None:
    sample = read_sample(then)
    if sample is None:
        return
    key, body = sample
    row_type = find_row_type(*key)
    assert row_type is ROWS_BY_NAME[name]
    if decode := DECODERS.get(name):
        assert decode(Row(key, 1, body)) is not None
    elif row_type.fields:
        assert json.loads(body).keys() <= row_type.fields.keys()


def test_every_record_has_a_decoder() -> None:
    missing = {row.name for row in ROW_TYPES if row.record} - DECODERS.keys()
    assert not missing, f"add a function that decodes {missing} to DECODERS"
