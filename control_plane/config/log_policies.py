"""The section `log_policies`: policies for lines of logs that match a pattern.

Every form of Determined's releases is accepted. Mistakes are refused, as in Determined. The agent
compares the log with the patterns (agent/allocation/log_watch.py), and the trial applies the
actions (actors/trial/log_policies.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from control_plane.config.section import UNKNOWN_FIELD, refusal
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text
from detcloud.shared.line_patterns.automaton import LinePattern
from detcloud.shared.line_patterns.syntax import PatternInvalid

ACTIONS: Final = ("cancel_retries", "exclude_node")
POLICIES_MAX: Final = 64
"""The most policies of a configuration, besides the default policies."""
NAME_CHARACTERS_MAX: Final = 100
"""The longest name, signal or name of a webhook."""
DEFAULT_POLICIES: Final[tuple[Mapping[str, str], ...]] = (
    MappingProxyType({"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*"}),
    MappingProxyType({"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*"}),
)
"""The policies of every experiment, as in Determined 0.38. A policy with the same name replaces a
default policy.
"""
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


def _check_default_policies(policies: tuple[Any, ...]) -> tuple[Any, ...]:
    findings = list(find_content_problems(policies, ()))
    if findings:
        raise refusal(findings)
    return policies


CheckedLogPolicies = Annotated[LogPolicies, AfterValidator(_check_default_policies)]
"""Policies whose contents are checked with their forms. Stored configurations have `LogPolicies`,
since older releases accepted any pattern.
"""


def find_content_problems(policies: Sequence[Any], loc: Loc) -> Iterator[Finding]:
    """Yield the findings about policies of a valid form.

    Too many policies, repeated names, long texts, and patterns that RE2 does not accept are
    findings. A policy without a name needs a pattern.
    """
    if len(policies) > POLICIES_MAX:
        yield Finding(loc, f"must have at most {POLICIES_MAX} policies, not {len(policies)}")
    names: set[str] = set()
    for number, policy in enumerate(policies):
        place = (*loc, number)
        name = policy.get("name")
        if name and name in names:
            yield Finding((*place, "name"), f"is repeated: {value_text(name)} names two policies")
        names.add(name or "")
        for field in ("name", "signal", "webhook_name"):
            if len(policy.get(field) or "") > NAME_CHARACTERS_MAX:
                text = f"must have at most {NAME_CHARACTERS_MAX} characters"
                yield Finding((*place, field), text)
        if policy.get("pattern"):
            yield from find_pattern_problems(policy["pattern"], (*place, "pattern"))
        elif not name:
            yield Finding((*place, "pattern"), "is required for a policy without a name")
        for signal in _signals(policy):
            if len(signal) > NAME_CHARACTERS_MAX:
                text = f"has a signal of more than {NAME_CHARACTERS_MAX} characters"
                yield Finding(place, text)


def find_pattern_problems(pattern: str, loc: Loc) -> Iterator[Finding]:
    """Yield a finding at `loc` if RE2 does not accept a pattern of a policy or a webhook."""
    try:
        LinePattern(pattern)
    except PatternInvalid as error:
        yield Finding(loc, str(error), "patterns have the syntax of RE2, as in Determined")


def policy_identity(policy: object) -> str | None:
    """Return the identity of a policy for the merge. Return None for an invalid policy.

    Policies with a name are compared by name. Other policies are compared by pattern and actions.
    """
    if not isinstance(policy, Mapping):
        return None
    name = policy.get("name")
    if isinstance(name, str) and name:
        return f"name {name}"
    try:
        return json.dumps([policy.get("pattern"), _actions(policy), list(_signals(policy))])
    except (TypeError, ValueError):
        return None


def effective_policies(policies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the policies with a pattern in the form of the agent, the default policies included.

    Each policy has `pattern`, and if not empty `name`, `actions`, `signal` and `webhook`. A name is
    a signal as well, unless the policy has another signal. A policy without a pattern only removes
    the default policy of the same name.
    """
    names = {policy.get("name") for policy in policies}
    defaults = [policy for policy in DEFAULT_POLICIES if policy["name"] not in names]
    return [_agent_form(policy) for policy in (*policies, *defaults) if policy.get("pattern")]


def _agent_form(policy: Mapping[str, Any]) -> dict[str, Any]:
    name = policy.get("name") or ""
    fields = {
        "name": name,
        "actions": _actions(policy),
        "signal": next(_signals(policy), "") or name,
        "webhook": policy.get("webhook_name") or "",
    }
    return {"pattern": policy["pattern"]} | {key: value for key, value in fields.items() if value}


def _actions(policy: Mapping[str, Any]) -> list[str]:
    """Return the names of a policy's actions, without signals and repetitions."""
    former = {
        "on_failure_dont_retry": ["cancel_retries"],
        "on_failure_exclude_node": ["exclude_node"],
    }.get(str(policy.get("type")), [])
    names = (
        action.get("type") if isinstance(action, Mapping) else action
        for action in _all_actions(policy)
    )
    return [*dict.fromkeys([*former, *(name for name in names if name in ACTIONS)])]


def _signals(policy: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a policy's signals."""
    given = [policy.get("signal")]
    given += [one.get("signal") for one in _all_actions(policy) if isinstance(one, Mapping)]
    yield from (signal for signal in given if isinstance(signal, str) and signal)


def _all_actions(policy: Mapping[str, Any]) -> list[Any]:
    actions = policy.get("actions")
    return [policy.get("action"), *(actions if isinstance(actions, list | tuple) else ())]


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
