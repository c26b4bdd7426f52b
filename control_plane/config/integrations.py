"""The section `integrations` of an experiment's configuration: the choice of webhooks.

Determined's name of the choice is `webhooks`; `webhook` is accepted as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from control_plane.actors.event_routes import WebhookChoice
from control_plane.findings import Finding

NAMES: Final = ("webhooks", "webhook")
CHOSEN_MAX: Final = 50
"""The most ids and the most names of a choice."""
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
