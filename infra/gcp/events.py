"""The events that call the functions: new documents in the database, and a timer each minute.

A trigger repeats the delivery of an event until the function succeeds, for at most 24 hours.
Triggers select documents by patterns of paths; `row_documents` puts the function to call into the
path.
"""

from collections.abc import Mapping
from typing import Any, Final

import pulumi
from pulumi_gcp import cloudscheduler, eventarc

from control_plane.gcp.row_documents import CREATED, TRIGGER_PATTERNS
from infra.gcp.accounts import Accounts
from infra.gcp.scope import Scope

# The rows that each trigger selects, a key of TRIGGER_PATTERNS.
TRIGGERS: Final[Mapping[str, str]] = {"mail": "advance", "intents": "tick"}
# The function that each trigger calls.
TRIGGERED: Final[Mapping[str, str]] = {"mail": "advance", "intents": "wake"}
MINUTE_SECONDS_MAX: Final = 60
MINUTE_REPEATS_MAX: Final = 1


def connect_events(
    scope: Scope, accounts: Accounts, functions: Mapping[str, Any], database: Any
) -> None:
    """Create the triggers of new documents, and the job that calls the tick each minute.

    `functions` maps names to Cloud Run services. The grants to the account `events` must have been
    made before.
    """
    given = accounts.given["events"]
    for name, rows in TRIGGERS.items():
        function = functions[TRIGGERED[name]]
        _make_trigger(scope, name, TRIGGER_PATTERNS[rows], function, accounts, database, given)
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
    """Create the trigger that calls a function for each new document that matches `path`.

    The trigger is created after the grants `given`, because Google checks the account.
    """
    region = scope.settings.region
    eventarc.Trigger(
        name,
        project=scope.settings.project,
        # A trigger must be in the database's location.
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
        # Google checks at creation that the account may call the function.
        opts=scope.options(given),
    )


def _make_minute(scope: Scope, tick: Any, accounts: Accounts, given: list[pulumi.Resource]) -> None:
    """Create the job that calls the tick every minute.

    A failed call is repeated MINUTE_REPEATS_MAX times. Cloud Scheduler logs each failed call as an
    error, which triggers the alarm `errors`.
    """
    cloudscheduler.Job(
        "minute",
        project=scope.settings.project,
        region=scope.settings.region,
        name=scope.names.part("minute"),
        description=f"{scope.names.cluster}: the tick, each minute",
        schedule="* * * * *",
        time_zone="Etc/UTC",
        attempt_deadline=f"{MINUTE_SECONDS_MAX}s",
        retry_config={"retry_count": MINUTE_REPEATS_MAX, "min_backoff_duration": "5s"},
        http_target={
            "http_method": "POST",
            "uri": tick.uri,
            "oidc_token": {"service_account_email": accounts.email("events"), "audience": tick.uri},
        },
        opts=scope.options(given),
    )
