"""`detcloud webhook`: announces events of the cluster to other services."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import Any

from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import NotFoundError
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_record,
)
from detcloud.cli.rendering.table import Column, Item, cell_text, field_column, time_column
from detcloud.client import Client
from detcloud.shared.errors import DetcloudError

FORMATS = ("json", "slack", "teams", "discord", "pagerduty", "email", "github")
STATES = ("waiting", "delivered", "failed")
TEST_SECONDS = 30.0
"""The time for which `webhook test` waits for the end of the delivery, in seconds."""
POLL_SECONDS = 0.5
DEFAULT_TRIGGER = {"type": "EXPERIMENT_STATE_CHANGE", "states": ["COMPLETED", "ERROR"]}
GITHUB_TRIGGER = {"type": "EXPERIMENT_STATE_CHANGE"}
"""The trigger of the format `github` without `--trigger`: a commit begins with `pending`."""
_TOKEN_BYTES_MAX = 4_096
_THRESHOLD = re.compile(r"(?P<metric>[^<>]+?)\s*(?P<sign>[<>])\s*(?P<value>\S+)")
_STATE_TYPES = ("EXPERIMENT_STATE_CHANGE", "TRIAL_STATE_CHANGE", "ALARM")

COLUMNS = (
    field_column("ID", "id"),
    field_column("Name", "name"),
    field_column("Format", "format", drop_rank=2),
    Column("Triggers", lambda webhook: ", ".join(map(_trigger_text, webhook["triggers"]))),
    Column("Filters", lambda webhook: _filter_text(webhook), drop_rank=3),
    field_column("URL", "url"),
    field_column("User", "user", drop_rank=1),
    time_column("Created", "created_ms", drop_rank=4),
)
SECRET_COLUMNS = (*COLUMNS, field_column("Secret", "secret"))
DELIVERY_COLUMNS = (
    field_column("ID", "id", drop_rank=4),
    time_column("Event", "time_ms"),
    field_column("Title", "title"),
    field_column("State", "state"),
    field_column("Attempts", "attempts", drop_rank=2),
    field_column("Status", "status", drop_rank=1),
    time_column("Next attempt", "next_ms", drop_rank=3),
    field_column("Error", "error"),
)


def parse_trigger(text: str) -> dict[str, Any]:
    """Return the trigger of a text `TYPE` or `TYPE:VALUES`, in the form of the API.

    The values are states for state changes and alarms, levels for CUSTOM, `METRIC<VALUE`,
    `METRIC>VALUE` or both for METRIC_THRESHOLD_EXCEEDED, and a regular expression for TASK_LOG.

    Raises:
        ArgumentTypeError: the type has no values, or the values have another form.
    """
    name, has_values, values = text.partition(":")
    trigger: dict[str, Any] = {"type": name.strip().upper().replace("-", "_")}
    if not has_values:
        return trigger
    items = [value.strip() for value in values.split(",")]
    kind = trigger["type"]
    if kind in _STATE_TYPES:
        states = [item.lower() if kind == "ALARM" else item.upper() for item in items]
        return {**trigger, "states": states}
    if kind == "CUSTOM":
        return {**trigger, "levels": [item.lower() for item in items]}
    if kind == "TASK_LOG":
        return {**trigger, "pattern": values}
    for limit in items:
        found = _THRESHOLD.fullmatch(limit) if kind == "METRIC_THRESHOLD_EXCEEDED" else None
        metric = "" if found is None else found["metric"].strip()
        if found is None or metric != trigger.setdefault("metric", metric):
            raise ArgumentTypeError(f"{text!r} has no form like CUSTOM:warn,error or loss<0.1")
        try:
            trigger["above" if found["sign"] == ">" else "below"] = float(found["value"])
        except ValueError:
            raise ArgumentTypeError(f"{found['value']!r} is no number") from None
    return trigger


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the output form of `list_webhooks` (`--json`, `--yaml` or `--csv`)."""
    add_output_options(parser)


def list_webhooks(arguments: Namespace) -> int:
    """Print all webhooks as text, CSV, JSON or YAML, and return 0.

    The URL of another user's webhook ends after the host, except for admins.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    print_items(COLUMNS, connect(arguments).items("/webhooks"), arguments)
    return 0


def add_create_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `create_webhook`: NAME, URL, `--trigger`, `--format`, `--token-file`,
    `--specific`, the filters, and the output form (`--json` or `--yaml`).
    """
    parser.add_argument("name", metavar="NAME", help="1 to 64 letters, digits and `._-`")
    parser.add_argument("address", metavar="URL", help="the address of the receiver")
    note = " (default: EXPERIMENT_STATE_CHANGE:COMPLETED,ERROR)"
    _add_field_options(parser, note, "default: json")
    parser.add_argument(
        "--specific",
        action="store_true",
        help="announce only experiments whose configuration names the webhook",
    )
    add_output_options(parser, csv=False)


def _add_field_options(parser: ArgumentParser, trigger_note: str, format_note: str) -> None:
    """Add the options of `create_webhook` and `edit_webhook`: `--trigger`, `--format`,
    `--token-file`, and the filters. Without an option, the argument is None.

    Args:
        parser: the parser of the command.
        trigger_note: the end of the help of `--trigger`.
        format_note: the help of `--format`.
    """
    parser.add_argument(
        "-t",
        "--trigger",
        dest="triggers",
        type=parse_trigger,
        action="append",
        metavar="TYPE[:VALUES]",
        help="EXPERIMENT_STATE_CHANGE:ERROR, TRIAL_STATE_CHANGE, CUSTOM:warn,error,"
        " METRIC_THRESHOLD_EXCEEDED:'loss<0.1', BEST_VALIDATION, TASK_LOG:REGEX, MODEL_VERSION,"
        " LIMIT_AT_RISK, LOW_USE or ALARM; repeatable" + trigger_note,
    )
    parser.add_argument("--format", choices=FORMATS, help=format_note)
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the token for the format github; - reads the token from stdin",
    )
    parser.add_argument("-w", "--workspace", metavar="NAME", help="only this workspace")
    parser.add_argument("-p", "--project", metavar="NAME", help="only this project")
    parser.add_argument(
        "--label", action="append", dest="labels", metavar="LABEL", help="a label; repeatable"
    )
    parser.add_argument("--user", metavar="USER", help="only experiments of this user")
    parser.add_argument(
        "--experiment",
        action="append",
        dest="experiments",
        type=parse_id,
        metavar="EXPERIMENT",
        help="only this experiment; repeatable",
    )


def create_webhook(arguments: Namespace) -> int:
    """Create a webhook, print the fields with the secret, and return 0.

    Without `--trigger`, the webhook announces ended and failed experiments. A webhook of the format
    github announces all states instead.

    A note to stderr says that the secret is not shown again.

    Raises:
        DetcloudError: the file of the token cannot be read, no cluster is available, or the cluster
            refuses the webhook.
    """
    default = GITHUB_TRIGGER if arguments.format == "github" else DEFAULT_TRIGGER
    body = {
        "name": arguments.name,
        "url": arguments.address,
        "mode": "SPECIFIC" if arguments.specific else "WORKSPACE",
        "triggers": [default],
        **_given_fields(arguments),
    }
    created = connect(arguments).post("/webhooks", body)
    print_record(SECRET_COLUMNS, created, arguments)
    if arguments.form == "text":
        print("store the secret safely: it is shown only once", file=sys.stderr)
    return 0


def add_edit_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `edit_webhook`: WEBHOOK, `--name`, `--address`, `--trigger`, `--format`,
    `--token-file`, `--specific`, the filters, `--no-filter`, and the output form (`--json`,
    `--yaml` or `--csv`).
    """
    add_webhook_argument(parser)
    parser.add_argument("--name", metavar="NAME", help="the new name")
    parser.add_argument("--address", metavar="URL", help="the new address of the receiver")
    _add_field_options(parser, "", "the new format")
    parser.add_argument(
        "--specific",
        action=BooleanOptionalAction,
        help="announce only experiments whose configuration names the webhook",
    )
    parser.add_argument(
        "--no-filter",
        action="append",
        dest="removed",
        choices=tuple(_FILTERS),
        default=[],
        help="remove a filter; repeatable",
    )
    add_output_options(parser)


def edit_webhook(arguments: Namespace) -> int:
    """Change a webhook, print the changed webhook, and return 0.

    Options that are left out keep their values. The secret of signatures stays. Attempts after the
    change use the new address, also for earlier events.

    Raises:
        DetcloudError: no change is requested, the file of the token cannot be read, no cluster is
            available, the cluster has no such webhook, or refuses the change.
    """
    changed: dict[str, Any] = {_FILTERS[name]: None for name in arguments.removed}
    changed |= _given_fields(arguments)
    if arguments.name is not None:
        changed["name"] = arguments.name
    if arguments.address is not None:
        changed["url"] = arguments.address
    if arguments.specific is not None:
        changed["mode"] = "SPECIFIC" if arguments.specific else "WORKSPACE"
    if not changed:
        raise DetcloudError("name a change, for example --address URL")
    client = connect(arguments)
    answer = client.patch(_path(client, arguments.webhook), changed)
    print_record(COLUMNS, answer, arguments)
    return 0


_FILTERS = {
    "workspace": "workspace",
    "project": "project",
    "label": "labels",
    "user": "filtered_user",
    "experiment": "experiments",
}
"""The fields of the API by the filters of `--no-filter`."""


def _given_fields(arguments: Namespace) -> dict[str, Any]:
    """Return the fields that options of `_add_field_options` give, in the form of the API.

    Raises:
        DetcloudError: the file of the token cannot be read, or has no token.
    """
    fields = {
        "format": arguments.format,
        "token": _read_token(arguments.token_file),
        "triggers": arguments.triggers,
        "workspace": arguments.workspace,
        "project": arguments.project,
        "labels": arguments.labels,
        "filtered_user": arguments.user,
        "experiments": arguments.experiments,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _read_token(file: Path | None) -> str | None:
    """Return the token in a file, without blanks around the token. Return None without a file.

    A token of the command line would be visible to all users of the machine.

    Raises:
        DetcloudError: the file cannot be read, or has no token.
    """
    if file is None:
        return None
    try:
        if str(file) == "-":
            text = sys.stdin.read(_TOKEN_BYTES_MAX)
        else:
            with file.open(encoding="ascii") as stream:
                text = stream.read(_TOKEN_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the file is no text"
        raise DetcloudError(f"the token cannot be read from {file}: {reason}") from None
    token = text.strip()
    if not token:
        raise DetcloudError(f"{file} has no token")
    return token


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_webhook`: WEBHOOK and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_webhook_argument(parser)
    add_output_options(parser)


def describe_webhook(arguments: Namespace) -> int:
    """Print a webhook without the secret, as text, CSV, JSON or YAML, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such webhook, or the request
            failed.
    """
    client = connect(arguments)
    print_record(COLUMNS, client.get(_path(client, arguments.webhook)), arguments)
    return 0


def add_test_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `test_webhook`: WEBHOOK and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_webhook_argument(parser)
    add_output_options(parser)


def test_webhook(arguments: Namespace) -> int:
    """Send a test event to a webhook, wait for the first attempt, and print the delivery.

    Return 0 if the receiver accepted the event, and 1 if the receiver refused or the wait ended
    after TEST_SECONDS.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such webhook, or refuses the
            request.
    """
    client = connect(arguments)
    path = _path(client, arguments.webhook)
    requested = client.post(f"{path}/test", {})
    deadline = time.monotonic() + TEST_SECONDS
    while True:
        found = client.get(f"{path}/deliveries/{requested['delivery']}")
        if found["attempts"] or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    print_record(DELIVERY_COLUMNS, found, arguments)
    return 0 if found["state"] == "delivered" else 1


def add_deliveries_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `list_deliveries`: WEBHOOK, `--state`, `--limit` and the output form
    (`--json`, `--yaml` or `--csv`).
    """
    add_webhook_argument(parser)
    parser.add_argument("--state", choices=STATES, help="only deliveries in this state")
    add_output_options(parser)


def list_deliveries(arguments: Namespace) -> int:
    """Print the deliveries to a webhook, from the newest event to the oldest, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such webhook, or the webhook
            belongs to another user.
    """
    client = connect(arguments)
    items = client.items(f"{_path(client, arguments.webhook)}/deliveries", state=arguments.state)
    print_items(DELIVERY_COLUMNS, items, arguments)
    return 0


def add_retry_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `retry_delivery`: WEBHOOK and DELIVERY, repeatable, or `--failed`."""
    add_webhook_argument(parser)
    parser.add_argument(
        "deliveries", nargs="*", metavar="DELIVERY", help="ids of `detcloud webhook deliveries`"
    )
    parser.add_argument("--failed", action="store_true", help="all failed deliveries")


def retry_deliveries(arguments: Namespace) -> int:
    """Deliver events to a webhook again, print a line for each, and return 0.

    Failed deliveries are repeated in the order of their events.

    Raises:
        DetcloudError: no delivery is named, no cluster is available, or the cluster refuses a
            request. Earlier deliveries are repeated.
    """
    client = connect(arguments)
    path = _path(client, arguments.webhook)
    names = list(arguments.deliveries)
    if arguments.failed:
        failed = client.items(f"{path}/deliveries", state="failed")
        names += reversed([item["id"] for item in failed])
    elif not names:
        raise DetcloudError("name deliveries of `detcloud webhook deliveries`, or use --failed")
    for name in names:
        client.post(f"{path}/deliveries/{name}/retry", {})
        print(f"delivery {cell_text(name)} is repeated")
    return 0


def delete_webhook(arguments: Namespace) -> int:
    """Delete a webhook, print a confirmation, and return 0. The user is not asked.

    Waiting deliveries are dropped.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such webhook, or the webhook
            belongs to another user.
    """
    client = connect(arguments)
    client.delete(_path(client, arguments.webhook))
    print(f"webhook {arguments.webhook} was deleted")
    return 0


def add_webhook_argument(parser: ArgumentParser) -> None:
    """Add the required argument WEBHOOK, stored unchecked as the text `webhook`."""
    parser.add_argument("webhook", metavar="WEBHOOK", help="the webhook's id or name")


def _path(client: Client, webhook: str) -> str:
    """Return the path of a webhook that is given by id or name.

    Raises:
        NotFoundError: the cluster has no webhook with the name.
        DetcloudError: the request failed.
    """
    if webhook.isascii() and webhook.isdigit():
        return f"/webhooks/{int(webhook)}"
    for item in client.items("/webhooks"):
        if item["name"] == webhook:
            return f"/webhooks/{item['id']}"
    raise NotFoundError(f"there is no webhook {webhook}")


def _trigger_text(trigger: Item) -> str:
    """Return a trigger in the form that `parse_trigger` reads."""
    limits = [
        f"{trigger['metric']}{sign}{trigger[name]:g}"
        for name, sign in (("above", ">"), ("below", "<"))
        if trigger[name] is not None
    ]
    values = ",".join([*trigger["states"], *trigger["levels"], *limits]) or trigger["pattern"]
    return f"{trigger['type']}:{values}" if values else str(trigger["type"])


def _filter_text(webhook: Item) -> str:
    """Return the filters of a webhook as terms like `workspace:NAME`, or ""."""
    terms = [
        f"{title}:{webhook[name]}"
        for title, name in (
            ("workspace", "workspace"),
            ("project", "project"),
            ("user", "filtered_user"),
        )
        if webhook[name] is not None
    ]
    terms += [f"label:{label}" for label in webhook["labels"]]
    terms += [f"experiment:{number}" for number in webhook["experiments"]]
    return " ".join(["specific", *terms] if webhook["mode"] == "SPECIFIC" else terms)


HANDLERS: Handlers = {
    "webhook list": Handler(add_list_arguments, list_webhooks),
    "webhook create": Handler(add_create_arguments, create_webhook),
    "webhook describe": Handler(add_describe_arguments, describe_webhook),
    "webhook edit": Handler(add_edit_arguments, edit_webhook),
    "webhook test": Handler(add_test_arguments, test_webhook),
    "webhook deliveries": Handler(add_deliveries_arguments, list_deliveries),
    "webhook retry": Handler(add_retry_arguments, retry_deliveries),
    "webhook delete": Handler(add_webhook_argument, delete_webhook),
}
