"""The section `log_policies`: policies for lines of logs, which have no effect here.

Every form of Determined's releases is accepted. Mistakes are refused, as in Determined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from control_plane.config.section import UNKNOWN_FIELD, refusal
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text

ACTIONS: Final = ("cancel_retries", "exclude_node")
_ACTION_FORMS: Final = f"{', '.join(ACTIONS)} or a map {{signal: TEXT}}"
# Older releases had policies with a type instead of actions. The values are the fields of each type
# besides `pattern`.
_FORMER_TYPES: Final = MappingProxyType(
    {
        "on_failure_dont_retry": frozenset[str](),
        "on_failure_exclude_node": frozenset({"restarts"}),
        "send_webhook": frozenset({"webhook_name"}),
    }
)
_TEXTS: Final = ("name", "pattern", "signal", "webhook_name")
_FIELDS: Final = frozenset({*_TEXTS, "action", "actions"} - {"webhook_name"})


def _check_policies(policies: tuple[Any, ...]) -> tuple[Any, ...]:
    findings = [
        finding
        for number, policy in enumerate(policies)
        for finding in _find_policy_problems(policy, (number,))
    ]
    if findings:
        raise refusal(findings)
    return policies


LogPolicies = Annotated[tuple[Any, ...], Field(strict=False), AfterValidator(_check_policies)]


def _find_policy_problems(policy: Any, loc: Loc) -> Iterator[Finding]:
    if not isinstance(policy, Mapping):
        yield Finding(loc, f"must be a map with a pattern and an action, not {value_text(policy)}")
        return
    former = policy.get("type")
    if former is not None and not (isinstance(former, str) and former in _FORMER_TYPES):
        names = ", ".join(_FORMER_TYPES)
        yield Finding((*loc, "type"), f"must be one of {names}, not {value_text(former)}")
        return
    fields = _FIELDS if former is None else {"type", "pattern", *_FORMER_TYPES[former]}
    for name, value in policy.items():
        if name not in fields:
            hint = nearest_name_hint(name, fields) if isinstance(name, str) else ""
            yield Finding((*loc, name), UNKNOWN_FIELD, hint)
        elif name in _TEXTS and not isinstance(value, str | None):
            yield Finding((*loc, name), f"must be a string, not {value_text(value)}")
    if "action" in fields:
        yield from _find_action_problems(policy.get("action"), (*loc, "action"))
        yield from _find_list_problems(policy.get("actions"), (*loc, "actions"))


def _find_list_problems(actions: Any, loc: Loc) -> Iterator[Finding]:
    if actions is None:
        return
    if not isinstance(actions, list | tuple):
        yield Finding(loc, f"must be a list of actions, not {value_text(actions)}")
        return
    for number, action in enumerate(actions):
        yield from _find_action_problems(action, (*loc, number))


def _find_action_problems(action: Any, loc: Loc) -> Iterator[Finding]:
    """Yield a finding for an invalid action. Null is valid.

    A valid action is a name of ACTIONS, a map `{signal: TEXT}`, or a map `{type: NAME}` with a name
    of ACTIONS, as in releases up to 0.36.
    """
    if action is None or (isinstance(action, str) and action in ACTIONS):
        return
    if isinstance(action, Mapping) and list(action) == ["type"]:
        if action["type"] not in ACTIONS:
            text = f"must be one of {', '.join(ACTIONS)}, not {value_text(action['type'])}"
            yield Finding((*loc, "type"), text)
        return
    if isinstance(action, Mapping) and list(action) == ["signal"]:
        if not isinstance(action["signal"], str):
            text = f"must be a string, not {value_text(action['signal'])}"
            yield Finding((*loc, "signal"), text)
        return
    hint = nearest_name_hint(action, ACTIONS) if isinstance(action, str) else ""
    yield Finding(loc, f"must be {_ACTION_FORMS}, not {value_text(action)}", hint)
