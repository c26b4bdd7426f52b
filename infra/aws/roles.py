"""A role for each function, one for instances and one for the storage of trials."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi_aws as aws

from infra.aws import policies
from infra.aws.names import FUNCTIONS
from infra.aws.policies import Document
from infra.aws.scope import Scope


@dataclass(frozen=True)
class Roles:
    """All roles. `granted`: the policy of each function's role, which must exist before the
    function runs.
    """

    functions: Mapping[str, Any]
    granted: Mapping[str, Any]
    storage: Any
    instance: Any
    instance_profile: Any


def make_roles(scope: Scope, journal_groups: Sequence[str] = ()) -> Roles:
    """Make all roles of a stack. The instances' role may do nothing: it only says who they are,
    unless Systems Manager may open sessions, or their agents' journals go to `journal_groups` of
    CloudWatch.
    """
    names, settings = scope.names, scope.settings
    documents = {
        "api": policies.api(names),
        "advance": policies.advance(names),
        "tick": policies.tick(names, settings.network),
        "spot_notice": policies.spot_notice(names),
        "checkpoint_gc": policies.checkpoint_gc(names),
        "suggest": policies.suggest(names),
    }
    trust = policies.service_trust("lambda.amazonaws.com")
    functions = {name: _make_role(scope, name, trust) for name in FUNCTIONS}
    key = settings.kms_key
    granted = {}
    for name, role in functions.items():
        more = policies.logs(names, name, is_traced=settings.tracing)
        more += policies.key_use(names, key) if key else []
        more += policies.disk_encryption(names, key) if key and name == "tick" else []
        granted[name] = _make_policy(
            scope, name, role, policies.add_statements(documents[name], more)
        )
    api_trust = policies.storage_trust(names)
    storage = _make_role(scope, "storage", api_trust, after=functions["api"])
    stored = policies.add_statements(
        policies.storage(names), policies.key_use(names, key) if key else []
    )
    _make_policy(scope, "storage", storage, stored)
    instance = _make_role(scope, "instance", policies.service_trust("ec2.amazonaws.com"))
    if journal_groups:
        _make_policy(scope, "instance", instance, policies.journal(names, journal_groups))
    if settings.session_manager:
        aws.iam.RolePolicyAttachment(
            "instance",
            role=instance.name,
            policy_arn=policies.SESSION_MANAGER,
            opts=scope.options(),
        )
    profile = aws.iam.InstanceProfile(
        "instance",
        name=names.role("instance"),
        path=names.iam_path,
        role=instance.name,
        tags=scope.tags(),
        opts=scope.options(),
    )
    return Roles(functions, granted, storage, instance, profile)


def _make_role(scope: Scope, name: str, trust: Document, after: Any = None) -> Any:
    return aws.iam.Role(
        name,
        name=scope.names.role(name),
        path=scope.names.iam_path,
        permissions_boundary=scope.settings.permissions_boundary or None,
        assume_role_policy=json.dumps(trust),
        max_session_duration=policies.STORAGE_SECONDS_MAX,
        tags=scope.tags(),
        opts=scope.options([] if after is None else [after]),
    )


def _make_policy(scope: Scope, name: str, role: Any, document: Document) -> Any:
    return aws.iam.RolePolicy(
        name,
        name=scope.names.part(name),
        role=role.name,
        policy=json.dumps(document),
        opts=scope.options(),
    )
