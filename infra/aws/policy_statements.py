"""Statements and documents of IAM policies as plain data. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]
Statement = dict[str, Any]
Condition = Mapping[str, Mapping[str, object]]

_VERSION = "2012-10-17"


def make_statement(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str] = (),
    condition: Condition | None = None,
    **more: object,
) -> Statement:
    """Return a policy statement that allows the actions on the resources.

    `sid` is the statement's name. Empty `resources` and `condition` are left out. `more` adds
    keys such as Principal, or replaces Effect.
    """
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        **({"Resource": list(resources)} if resources else {}),
        **({"Condition": condition} if condition else {}),
        **more,
    }


def make_document(*statements: Statement) -> Document:
    """Return a policy of the statements, in IAM's current policy language."""
    return {"Version": _VERSION, "Statement": list(statements)}


def add_statements(document: Document, statements: Sequence[Statement]) -> Document:
    """Return a copy of the document with `statements` appended. The document stays unchanged."""
    return {**document, "Statement": [*document["Statement"], *statements]}
