"""The checks of webhooks that users create or change."""

from dataclasses import replace

from control_plane.access.principals import Principal, Role
from control_plane.actors.event_routes import EventType, Route, Trigger, encode_routes
from control_plane.config.log_policies import find_pattern_problems
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries.cluster_configuration import (
    allowed_private_hosts,
    mail_domains,
    smtp_settings,
)
from control_plane.state.table import StateTable
from control_plane.webhooks.formats.github import parse_repository
from control_plane.webhooks.mail import parse_recipients
from control_plane.webhooks.safe_addresses import AddressRule, UrlRefused, parse_url

ROUTE_BYTES_MAX = 4_096
"""The most bytes of a webhook's triggers and filters in the row of all routes."""
TOKEN_FORMAT = "github"
"""The format whose requests have a token."""
_ADMINS_ONLY = frozenset({EventType.ALARM})
"""The events that belong to no user."""
_THRESHOLD = EventType.METRIC_THRESHOLD_EXCEEDED


def address_rule(table: StateTable) -> AddressRule:
    """Return the decision which hosts webhooks may reach, from the cluster configuration."""
    return AddressRule(allowed_private_hosts(table))


def check_receiver(
    table: StateTable, url: str, format_: str, caller: Principal, *, has_mail_service: bool
) -> None:
    """Check that webhooks of the caller may use a URL with a format. No name is resolved.

    The URL of the format `email` names recipients, and needs a mail server or a mail service. Only
    admins choose recipients outside the permitted domains.

    Raises:
        RequestError: invalid, for a URL that webhooks may not reach, or a missing mail server;
            forbidden, for recipients outside the permitted domains.
    """
    try:
        if format_ == "email":
            recipients = parse_recipients(url)
        else:
            recipients = ()
            parse_url(url, address_rule(table))
        if format_ == TOKEN_FORMAT:
            parse_repository(url)
    except (UrlRefused, ValueError) as error:
        raise invalid("url", str(error)) from None
    if format_ != "email":
        return
    if not has_mail_service and smtp_settings(table) is None:
        hint = "an admin sets webhooks.smtp in the cluster configuration"
        raise invalid("format", "needs a mail server", hint)
    if caller.role is not Role.ADMIN:
        _check_domains(recipients, mail_domains(table))


def check_token(format_: str, token: str) -> None:
    """Raise RequestError invalid for a missing token, or for a token without a use."""
    if format_ == TOKEN_FORMAT and not token:
        hint = "create one with the permission `Commit statuses: write` for the repository"
        raise invalid("token", f"is missing for the format {TOKEN_FORMAT}", hint)
    if token and format_ != TOKEN_FORMAT:
        raise invalid("token", f"is only for the format {TOKEN_FORMAT}", "remove the token")


def check_triggers(triggers: tuple[Trigger, ...], format_: str) -> None:
    """Raise RequestError invalid for triggers with wrong fields, or that a format cannot send."""
    for place, trigger in enumerate(triggers):
        _check_trigger(trigger, place)
        if format_ == TOKEN_FORMAT and trigger.type != EventType.EXPERIMENT_STATE_CHANGE:
            text = f"is {trigger.type}, and a commit has only the state of an experiment"
            hint = f"use {EventType.EXPERIMENT_STATE_CHANGE} for the format {TOKEN_FORMAT}"
            raise invalid(f"triggers.{place}.type", text, hint)


def allowed_route(route: Route, caller: Principal) -> Route:
    """Return a route with the filters that the caller must have.

    Raises:
        RequestError: forbidden, if the caller is no admin and asks for events of other users;
            invalid, for triggers and filters of more than ROUTE_BYTES_MAX bytes.
    """
    size = len(encode_routes((route,)))
    if size > ROUTE_BYTES_MAX:
        text = f"and filters have {size} bytes, the limit is {ROUTE_BYTES_MAX}"
        raise invalid("triggers", text, "use shorter patterns, or fewer triggers and labels")
    if caller.role is Role.ADMIN:
        return route
    if any(trigger.type in _ADMINS_ONLY for trigger in route.triggers):
        raise RequestError(Code.FORBIDDEN, "only an admin can create a webhook for alarms")
    if route.user not in (None, caller.user):
        text = f"only an admin can create a webhook for the experiments of {route.user}"
        raise RequestError(Code.FORBIDDEN, text)
    return route if route.is_specific else replace(route, user=caller.user)


def _check_domains(recipients: tuple[str, ...], domains: tuple[str, ...]) -> None:
    """Raise RequestError forbidden for the first recipient outside the domains."""
    permitted = {domain.lower() for domain in domains}
    for recipient in recipients:
        domain = recipient.rpartition("@")[2].lower()
        if domain not in permitted:
            text = (
                f"the domain {domain} is not in webhooks.mail_domains of the cluster"
                " configuration: ask an admin to add the domain, or to create the webhook"
            )
            raise RequestError(Code.FORBIDDEN, text)


def _check_trigger(trigger: Trigger, place: int) -> None:
    """Raise RequestError invalid for fields of a trigger that do not fit together.

    Args:
        place: the place of the trigger in the list, for the error.
    """
    name = f"triggers.{place}"
    has_limit = trigger.above is not None or trigger.below is not None
    is_threshold = trigger.type == _THRESHOLD
    if is_threshold and not (trigger.metric and has_limit):
        raise invalid(name, "needs a metric, and a limit above or below", "set above or below")
    if not is_threshold and (trigger.metric or has_limit):
        raise invalid(name, "has a metric or limit", f"only {_THRESHOLD} has these fields")
    if trigger.levels and trigger.type != EventType.CUSTOM:
        raise invalid(name, "has levels", f"only {EventType.CUSTOM} has levels")
    if trigger.pattern and trigger.type != EventType.TASK_LOG:
        raise invalid(name, "has a pattern", f"only {EventType.TASK_LOG} has a pattern")
    # A pattern matches by being equal to the pattern of a log policy.
    for problem in find_pattern_problems(trigger.pattern, (name, "pattern")):
        raise invalid(f"{name}.pattern", problem.message, problem.hint)
