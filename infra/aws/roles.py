"""A role for each function, one for instances and one for the storage of trials."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi_aws as aws

from infra.aws import policies
from infra.aws.names import FUNCTIONS
from infra.aws.policies import Document
from infra.aws.scope import Scope


@dataclass(frozen=True)
class Roles:
    """`granted`: what each function's role may do, which must be before it does it."""

    functions: Mapping[str, Any]
    granted: Mapping[str, Any]
    storage: Any
    instance: Any
    instance_profile: Any


def make_roles(scope: Scope) -> Roles:
    """All roles of a stack. That of instances may do nothing: it only says who they are."""
    names, settings = scope.names, scope.settings
    documents = {
        "api": policies.api(names),
        "advance": policies.advance(names),
        "tick": policies.tick(names, settings.network),
        "spot_notice": policies.spot_notice(names),
        "checkpoint_gc": policies.checkpoint_gc(names),
        "suggest": policies.suggest(names),
    }
    trust = policies.trusted_by_service("lambda.amazonaws.com")
    functions = {name: _role(scope, name, trust) for name in FUNCTIONS}
    granted = {}
    for name, role in functions.items():
        said = policies.logs(names, name, is_traced=settings.tracing)
        granted[name] = _grant(scope, name, role, policies.with_statements(documents[name], said))
    trusted = policies.storage_trust(names)
    storage = _role(scope, "storage", trusted, after=functions["api"])
    _grant(scope, "storage", storage, policies.storage(names))
    instance = _role(scope, "instance", policies.trusted_by_service("ec2.amazonaws.com"))
    profile = aws.iam.InstanceProfile(
        "instance",
        name=names.part("instance"),
        role=instance.name,
        tags=scope.tags(),
        opts=scope.options(),
    )
    return Roles(functions, granted, storage, instance, profile)


def _role(scope: Scope, name: str, trust: Document, after: Any = None) -> Any:
    return aws.iam.Role(
        name,
        name=scope.names.part(name),
        assume_role_policy=json.dumps(trust),
        max_session_duration=policies.STORAGE_SECONDS_MAX,
        tags=scope.tags(),
        opts=scope.options([] if after is None else [after]),
    )


def _grant(scope: Scope, name: str, role: Any, document: Document) -> Any:
    return aws.iam.RolePolicy(
        name,
        name=scope.names.part(name),
        role=role.name,
        policy=json.dumps(document),
        opts=scope.options(),
    )
