"""The section `integrations` of an experiment's configuration: webhooks and the code's commit.

Determined's name of the choice is `webhooks`; `webhook` is accepted as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from control_plane.actors.event_routes import WebhookChoice
from control_plane.actors.source_commit import SourceCommit
from control_plane.findings import Finding

NAMES: Final = ("webhooks", "webhook")
CHOSEN_MAX: Final = 50
"""The most ids and the most names of a choice."""
COMMIT_NAME: Final = "github"
"""The name of the section with the commit of the code."""
_COMMIT_HINT: Final = "like {repository: OWNER/REPOSITORY, commit: 40 hexadecimal digits}"
_COMMIT_FORMS: Final = {
    "commit": (re.compile(r"[0-9A-Fa-f]{40}"), "must be a text of 40 hexadecimal digits"),
    "repository": (
        re.compile(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}"),
        "must be like OWNER/REPOSITORY",
    ),
}
_HINT: Final = "like {webhook_id: [1], webhook_name: [team-chat], exclude: false}"


def webhook_choice(integrations: Mapping[str, Any] | None) -> WebhookChoice | None:
    """Return the webhooks that a configuration chooses. Return None without a choice.

    The configuration has no findings of `choice_findings`.
    """
    for name in NAMES:
        choice = (integrations or {}).get(name)
        if isinstance(choice, Mapping):
            return WebhookChoice(
                tuple(choice.get("webhook_id") or ()),
                tuple(choice.get("webhook_name") or ()),
                bool(choice.get("exclude")),
            )
    return None


def source_commit(integrations: Mapping[str, Any] | None) -> SourceCommit | None:
    """Return the commit of the code that a configuration states. Return None without a commit.

    The configuration has no findings of `commit_findings`.
    """
    stated = (integrations or {}).get(COMMIT_NAME)
    if not isinstance(stated, Mapping) or not stated.get("commit"):
        return None
    return SourceCommit(stated["commit"].lower(), stated.get("repository") or "")


def commit_findings(integrations: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield a finding for each wrong value of the section `github`, and for unknown fields."""
    stated = (integrations or {}).get(COMMIT_NAME)
    if stated is None:
        return
    if not isinstance(stated, Mapping):
        yield Finding(("integrations", COMMIT_NAME), "must be a map", _COMMIT_HINT)
        return
    for field, value in stated.items():
        place = ("integrations", COMMIT_NAME, str(field))
        if field not in _COMMIT_FORMS:
            yield Finding(place, "is unknown", _COMMIT_HINT)
            continue
        form, rule = _COMMIT_FORMS[field]
        if value is not None and not (isinstance(value, str) and form.fullmatch(value)):
            yield Finding(place, rule)


def choice_findings(integrations: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield a finding for each field of the choice with a wrong value, and for unknown fields."""
    for name in NAMES:
        choice = (integrations or {}).get(name)
        place = ("integrations", name)
        if choice is None:
            continue
        if not isinstance(choice, Mapping):
            yield Finding(place, "must be a map", _HINT)
            continue
        for field, value in choice.items():
            if field not in _CHECKS:
                yield Finding((*place, str(field)), "is unknown", _HINT)
            elif value is not None and not _CHECKS[field](value):
                yield Finding((*place, field), _RULES[field])


def _is_ids(value: object) -> bool:
    return _is_list(value, lambda item: isinstance(item, int) and not isinstance(item, bool))


def _is_names(value: object) -> bool:
    return _is_list(value, lambda item: isinstance(item, str))


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object, is_item: Any) -> bool:
    return isinstance(value, list) and len(value) <= CHOSEN_MAX and all(map(is_item, value))


_CHECKS: Final = {
    "webhook_id": _is_ids,
    "webhook_name": _is_names,
    "exclude": _is_switch,
}
_RULES: Final = {
    "webhook_id": f"must be a list of at most {CHOSEN_MAX} ids",
    "webhook_name": f"must be a list of at most {CHOSEN_MAX} names",
    "exclude": "must be true or false",
}
