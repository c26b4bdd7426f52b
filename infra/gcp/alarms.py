"""The alarms that Google Cloud evaluates, and the recipients of all alarms.

Each alarm has a single condition, because conditions are billed by the month. The alarm `errors`
also forwards the cluster's own alarms, which are lines of the tick's log (decision 115).
"""

from typing import Any, Final

from pulumi_gcp import billing, monitoring

from control_plane.alarms.runbook import runbook_page
from infra.alarm_texts import describe_alarm
from infra.gcp.scope import Scope
from lambdas.gcp.function_names import FUNCTIONS
from provisioner.clouds.provider import CLUSTER_TAG

FIVE_MINUTES: Final = "300s"
HOUR: Final = "3600s"
# The fields of a line about an alarm of the cluster. Each combination is notified separately.
EXTRACTED: Final = ("alarm", "change", "pool", "raised_ms", "runbook")


def make_alarms(scope: Scope) -> None:
    """Create the alarms about error lines and about missing minutes.

    With the setting `alarm_email`, notify that address. With `monthly_budget`, create a budget.
    """
    settings = scope.settings
    channels = [_make_channel(scope).name] if settings.alarm_email else []
    _make_alarm(scope, "errors", _errors(scope), channels, rate_limit=HOUR)
    _make_alarm(scope, "minute", _missing_minutes(scope), channels)
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
    """Return the condition that matches error lines, and lines about alarms of the cluster.

    Error lines come from functions, from Cloud Run about timeouts, lack of memory and requests with
    a status of 5xx, and from Cloud Scheduler about failed calls of the tick.
    """
    names = scope.names
    services = " OR ".join(f'"{names.part(name)}"' for name in FUNCTIONS)
    functions = (
        f'resource.type="cloud_run_revision" AND resource.labels.service_name=({services}) AND '
        "(severity>=ERROR OR jsonPayload.alarm:*)"
    )
    jobs = ["minute", *(["exports"] if scope.settings.copies else [])]
    called = " OR ".join(f'"{names.part(name)}"' for name in jobs)
    minutes = (
        'resource.type="cloud_scheduler_job" AND '
        f"resource.labels.job_id=({called}) AND severity>=ERROR"
    )
    return {
        "condition_matched_log": {
            "filter": f"({functions}) OR ({minutes})",
            "label_extractors": {name: f"EXTRACT(jsonPayload.{name})" for name in EXTRACTED},
        }
    }


def _missing_minutes(scope: Scope) -> dict[str, Any]:
    """Return the condition that no call of the tick has succeeded for ten minutes.

    The condition covers a paused job, refused calls and ticks that always fail. Missing values
    count as zero. A condition about absent values would miss a tick that only fails, since failed
    calls have values, too.
    """
    return {
        "condition_threshold": {
            "filter": (
                'metric.type="run.googleapis.com/request_count" AND '
                'resource.type="cloud_run_revision" AND '
                f'resource.labels.service_name="{scope.names.part("tick")}" AND '
                'metric.labels.response_code_class="2xx"'
            ),
            "comparison": "COMPARISON_LT",
            "threshold_value": 1,
            "duration": FIVE_MINUTES,
            "evaluation_missing_data": "EVALUATION_MISSING_DATA_ACTIVE",
            "aggregations": [
                {
                    "alignment_period": FIVE_MINUTES,
                    "per_series_aligner": "ALIGN_DELTA",
                    "cross_series_reducer": "REDUCE_SUM",
                }
            ],
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
        documentation=_documentation(scope, name, is_about_log=bool(rate_limit)),
        user_labels=scope.labels,
        opts=scope.options(),
    )


def _documentation(scope: Scope, name: str, *, is_about_log: bool) -> dict[str, Any]:
    """Return the text of an alarm's notifications, and the link if the runbook has a URL.

    The text of an alarm about the log names the cluster's alarm in the line, if any.
    """
    url = scope.settings.runbook_url
    content = describe_alarm(name, scope.names.cluster, url)
    if is_about_log:
        content += (
            "\n\nIf the cluster raised or cleared an alarm of its own: "
            "alarm `${log.extracted_label.alarm}` ${log.extracted_label.change}, "
            "pool `${log.extracted_label.pool}`, runbook ${log.extracted_label.runbook}"
        )
    link = {"display_name": f"runbook: {name}", "url": runbook_page(name, url)}
    return {
        "content": content,
        "mime_type": "text/markdown",
        **({"links": [link]} if url else {}),
    }


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
