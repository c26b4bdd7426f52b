"""The events that call the functions: documents that are created in the database, and each minute.

A trigger delivers an event until it is answered with success, for 24 hours at most. It tells
documents apart by the parts of their paths, in which `row_documents` names the function to call.
"""

from collections.abc import Mapping
from typing import Any, Final

import pulumi
from pulumi_gcp import cloudscheduler, eventarc

from control_plane.gcp.row_documents import CREATED, TRIGGER_PATTERNS
from infra.gcp.accounts import Accounts
from infra.gcp.scope import Scope

# By a trigger's name, the function that it calls.
TRIGGERS: Final[Mapping[str, str]] = {"mail": "advance", "intents": "tick"}
MINUTE_SECONDS_MAX: Final = 60


def connect_events(
    scope: Scope, accounts: Accounts, functions: Mapping[str, Any], database: Any
) -> None:
    """Connect the functions with the events that call them."""
    given = accounts.given["events"]
    for name, function in TRIGGERS.items():
        _make_trigger(
            scope, name, TRIGGER_PATTERNS[function], functions[function], accounts, database, given
        )
    _make_minute(scope, functions["tick"], accounts, given)


def _make_trigger(
    scope: Scope,
    name: str,
    path: str,
    function: Any,
    accounts: Accounts,
    database: Any,
    given: list[pulumi.Resource],
) -> None:
    region = scope.settings.region
    eventarc.Trigger(
        name,
        project=scope.settings.project,
        # Where the database is.
        location=region,
        name=scope.names.part(name),
        matching_criterias=[
            {"attribute": "type", "value": CREATED},
            {"attribute": "database", "value": database.name},
            {"attribute": "document", "value": path, "operator": "match-path-pattern"},
        ],
        event_data_content_type="application/protobuf",
        destination={
            "cloud_run_service": {"service": function.name, "region": region, "path": "/"}
        },
        service_account=accounts.email("events"),
        labels=scope.labels,
        # Google looks whether the account may call the function.
        opts=scope.options(given),
    )


def _make_minute(scope: Scope, tick: Any, accounts: Accounts, given: list[pulumi.Resource]) -> None:
    cloudscheduler.Job(
        "minute",
        project=scope.settings.project,
        region=scope.settings.region,
        name=scope.names.part("minute"),
        description=f"{scope.names.cluster}: the tick, each minute",
        schedule="* * * * *",
        time_zone="Etc/UTC",
        attempt_deadline=f"{MINUTE_SECONDS_MAX}s",
        # The next minute does whatever was not done.
        retry_config={"retry_count": 0},
        http_target={
            "http_method": "POST",
            "uri": tick.uri,
            "oidc_token": {"service_account_email": accounts.email("events"), "audience": tick.uri},
        },
        opts=scope.options(given),
    )
