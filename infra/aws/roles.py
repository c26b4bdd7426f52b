"""The IAM roles of the functions, of instances and of trials."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi_aws as aws

from infra.aws import key_policies, policies, relay_policies, trial_policies
from infra.aws.mail_settings import mail_statements
from infra.aws.names import FUNCTIONS, ROLE_FUNCTIONS, ROLE_OF
from infra.aws.policy_statements import Document, add_statements
from infra.aws.scope import Scope
from infra.aws.settings import Settings


@dataclass(frozen=True)
class Roles:
    """The roles of a stack, as resources."""

    functions: Mapping[str, Any]
    """The role of each function, by the function's name. ROLE_OF lists the shared roles."""
    granted: Mapping[str, Any]
    """The policy of each function's role, which must exist before the function runs."""
    storage: Any
    """The role that the API assumes for trials' access to checkpoints."""
    instance: Any
    """The role of instances."""
    instance_profile: Any
    """The instance profile with the role of instances."""
    data: Any = None
    """The role for trials' access to `data_buckets`, if set."""
    pull: Any = None
    """The role for pulling images of `image_repositories`, if set."""


def make_roles(
    scope: Scope, journal_groups: Sequence[str] = (), reservations: Sequence[str] = ()
) -> Roles:
    """Create and return all roles of a stack, with policies.

    The role of instances identifies an instance and may fetch the agent's code. It may also use
    `kms_key` for data in S3, open Systems Manager sessions and write to the CloudWatch groups
    `journal_groups`, as far as these are set. The tick may launch into the capacity `reservations`.
    """
    names, settings = scope.names, scope.settings
    api = trial_policies.with_sessions(policies.api(names), _trial_roles(settings))
    documents = {
        "api": add_statements(api, relay_policies.starts(names) if settings.has_relay else []),
        "advance": policies.advance(names),
        "tick": add_statements(
            policies.tick(names, settings.network, reservations),
            mail_statements(names, settings.mail_sender, settings.mail_identity),
        ),
        "spot_notice": policies.spot_notice(names),
        "checkpoint_gc": policies.checkpoint_gc(names, purges=settings.purges_versions),
        "suggest": policies.suggest(names),
    }
    trust = policies.service_trust("lambda.amazonaws.com")
    functions = {name: make_role(scope, name, trust) for name in ROLE_FUNCTIONS}
    key = settings.kms_key
    granted = {}
    for name, role in functions.items():
        users = [user for user in FUNCTIONS if ROLE_OF.get(user, user) == name]
        more = policies.logs(names, users, is_traced=settings.tracing)
        more += key_policies.key_use(names, key) if key else []
        more += key_policies.disk_encryption(names, key) if key and name == "tick" else []
        granted[name] = make_policy(scope, name, role, add_statements(documents[name], more))
    api_trust = policies.storage_trust(names)
    storage = make_role(scope, "storage", api_trust, after=functions["api"])
    stored = add_statements(
        policies.storage(names), key_policies.key_use(names, key) if key else []
    )
    make_policy(scope, "storage", storage, stored)
    instance = make_role(scope, "instance", policies.service_trust("ec2.amazonaws.com"))
    more = trial_policies.data_key_use(names, key) if key else []
    if journal_groups:
        more = [*more, policies.journal(names, journal_groups)]
    if settings.session_manager:
        more = [*more, policies.sessions()]
    make_policy(scope, "instance", instance, add_statements(policies.instance(names), more))
    profile = aws.iam.InstanceProfile(
        "instance",
        name=names.role("instance"),
        path=names.iam_path,
        role=instance.name,
        tags=scope.tags(),
        opts=scope.options(),
    )
    data = pull = None
    if settings.data_buckets:
        data = make_role(scope, "data", api_trust, after=functions["api"])
        document = trial_policies.data_access(settings.data_buckets)
        more = trial_policies.data_key_use(names, key) if key else []
        make_policy(scope, "data", data, add_statements(document, more))
    if settings.image_repositories:
        pull = make_role(scope, "pull", api_trust, after=functions["api"])
        make_policy(scope, "pull", pull, trial_policies.pulls(settings.image_repositories))
    for name, owner in ROLE_OF.items():
        functions[name], granted[name] = functions[owner], granted[owner]
    return Roles(functions, granted, storage, instance, profile, data, pull)


def _trial_roles(settings: Settings) -> list[str]:
    """Return the ARNs of the roles that the API assumes for trials, except the storage role."""
    names = settings.names
    return [
        *([names.role_arn("data")] if settings.data_buckets else []),
        *([names.role_arn("pull")] if settings.image_repositories else []),
        *dict.fromkeys(settings.task_roles.values()),
    ]


def make_role(scope: Scope, name: str, trust: Document, after: Any = None) -> Any:
    """Create and return a role with the trust policy `trust` and the settings' boundary.

    With `after`, create the role after that resource.
    """
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


def make_policy(scope: Scope, name: str, role: Any, document: Document) -> Any:
    """Create and return the inline policy `document` of a role."""
    return aws.iam.RolePolicy(
        name,
        name=scope.names.part(name),
        role=role.name,
        policy=json.dumps(document),
        opts=scope.options(),
    )
