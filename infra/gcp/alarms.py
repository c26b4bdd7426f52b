"""The stack's alarms and the recipients.

Each alarm has a single condition, because conditions are billed by the month.
"""

from typing import Any, Final

from pulumi_gcp import billing, monitoring

from infra.gcp.scope import Scope
from lambdas.gcp.function_names import FUNCTIONS
from provisioner.clouds.provider import CLUSTER_TAG

FIVE_MINUTES: Final = "300s"
HOUR: Final = "3600s"
MAIL_SECONDS_MAX: Final = 60


def make_alarms(scope: Scope) -> None:
    """Create the alarms about errors in logs and about delayed messages.

    With the setting `alarm_email`, notify that address. With `monthly_budget`, create a budget.
    """
    settings = scope.settings
    channels = [_make_channel(scope).name] if settings.alarm_email else []
    _make_alarm(scope, "errors", _errors(scope), channels, rate_limit=HOUR)
    _make_alarm(scope, "lag", _lag(scope), channels)
    if settings.monthly_budget:
        _make_budget(scope, channels)


def _make_channel(scope: Scope) -> Any:
    """Create and return the channel that sends notifications to the setting `alarm_email`."""
    return monitoring.NotificationChannel(
        "alarms",
        project=scope.settings.project,
        display_name=scope.names.part("alarms"),
        type="email",
        labels={"email_address": scope.settings.alarm_email},
        user_labels=scope.labels,
        opts=scope.options(),
    )


def _errors(scope: Scope) -> dict[str, Any]:
    """Return the condition that matches error lines in the functions' logs.

    The lines come from functions, and from Cloud Run about timeouts and lack of memory.
    """
    services = " OR ".join(f'"{scope.names.part(name)}"' for name in FUNCTIONS)
    lines = f"resource.labels.service_name=({services}) AND severity>=ERROR"
    return {"condition_matched_log": {"filter": f'resource.type="cloud_run_revision" AND {lines}'}}


def _lag(scope: Scope) -> dict[str, Any]:
    """Return the condition that messages wait longer than MAIL_SECONDS_MAX for `advance`.

    The delay must last for five minutes. The messages wait in the Pub/Sub subscription that
    Eventarc created for the trigger `mail`. The subscription's name contains the trigger's name.
    """
    stem = f"eventarc-{scope.settings.region}-{scope.names.part('mail')}-"
    return {
        "condition_threshold": {
            "filter": (
                'metric.type="pubsub.googleapis.com/subscription/oldest_unacked_message_age" AND '
                'resource.type="pubsub_subscription" AND '
                f'resource.labels.subscription_id=starts_with("{stem}")'
            ),
            "comparison": "COMPARISON_GT",
            "threshold_value": MAIL_SECONDS_MAX,
            "duration": FIVE_MINUTES,
            "aggregations": [{"alignment_period": "60s", "per_series_aligner": "ALIGN_MAX"}],
        }
    }


def _make_alarm(
    scope: Scope,
    name: str,
    condition: dict[str, Any],
    channels: list[Any],
    rate_limit: str = "",
) -> None:
    """Create an alarm with a single condition that notifies `channels` and closes after a day.

    `rate_limit` is the least time between notifications, like `3600s`; "" for none.
    """
    # A condition on the log requires a limit on notifications.
    limit = {"notification_rate_limit": {"period": rate_limit}} if rate_limit else {}
    monitoring.AlertPolicy(
        name,
        project=scope.settings.project,
        display_name=scope.names.part(name),
        combiner="OR",
        conditions=[{"display_name": scope.names.part(name), **condition}],
        alert_strategy={"auto_close": "86400s", **limit},
        notification_channels=channels,
        user_labels=scope.labels,
        opts=scope.options(),
    )


def _make_budget(scope: Scope, channels: list[Any]) -> None:
    """Create the monthly budget for resources with the cluster's label.

    The budget notifies the channels when costs exceed 80 %, and when the forecast exceeds 100 %.
    """
    settings = scope.settings
    billing.Budget(
        "month",
        billing_account=settings.billing_account,
        display_name=scope.names.part("month"),
        budget_filter={
            "projects": [f"projects/{settings.project_number}"],
            "labels": {CLUSTER_TAG: scope.names.cluster},
            "calendar_period": "MONTH",
        },
        amount={"specified_amount": {"units": str(settings.monthly_budget)}},
        threshold_rules=[
            {"threshold_percent": 0.8},
            {"threshold_percent": 1.0, "spend_basis": "FORECASTED_SPEND"},
        ],
        all_updates_rule={
            "monitoring_notification_channels": channels,
            "disable_default_iam_recipients": True,
        },
        opts=scope.options(),
    )
