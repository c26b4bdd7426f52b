"""A reader of policy documents, with the subset of IAM that detcloud's policies use."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Context = Mapping[str, str | Sequence[str]]
NOTHING: Context = {}


def allows(
    document: Mapping[str, Any], action: str, resource: str, context: Context = NOTHING
) -> bool:
    """Whether any statement of the document allows the action."""
    return any(
        statement["Effect"] == "Allow"
        and _one_matches(statement["Action"], action)
        and _one_matches(statement.get("Resource", ["*"]), resource)
        and _holds(statement.get("Condition", {}), context)
        for statement in document["Statement"]
    )


def _one_matches(patterns: Iterable[str], text: str) -> bool:
    return any(_matches(pattern, text) for pattern in patterns)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def _holds(condition: Mapping[str, Mapping[str, Any]], context: Context) -> bool:
    return all(
        _condition_holds(operator, wanted, context.get(key))
        for operator, keys in condition.items()
        for key, wanted in keys.items()
    )


def _condition_holds(operator: str, wanted: Any, given: Any) -> bool:
    patterns = [wanted] if isinstance(wanted, str) else wanted
    match operator.split(":"):
        case ["StringEquals"] | ["Bool"]:
            return given in patterns
        case ["ForAllValues", "StringEquals"]:
            return all(value in patterns for value in given or ())
        case ["ForAllValues", "StringLike"]:
            return all(_one_matches(patterns, value) for value in given or ())
    raise AssertionError(f"this reader of policies knows no {operator}")
