"""The script of commands that make a cluster's remote account on AWS, whose functions run in
another cloud: a role for what launches, which trusts one service account of Google's, and one for
instances.

An administrator of the account's roles runs it once, and again after a release that needs more:
what is there gets the present policies, unless it is another cluster's. A second script removes it.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from infra.aws import policies
from infra.aws.instance_ends import LIVE
from infra.aws.names import Names
from infra.aws.policies import Document
from infra.aws.settings import Network
from infra.remote_accounts import Launcher
from provisioner.clouds.aws.federation import federation_audience
from provisioner.clouds.provider import CLUSTER_TAG

# The tag of a remote account's roles that says where its cluster runs: two of one name share no
# account.
HOME_TAG = "detcloud-home"
# In the place of the service account's number, which Google alone knows.
SUBJECT = "SUBJECT"


@dataclass(frozen=True)
class RemoteRoles:
    """The roles of a remote account, whose instances are in a network; `launcher` launches them."""

    names: Names
    network: Network
    launcher: Launcher
    journal_groups: tuple[str, ...] = ()
    """The groups of CloudWatch that agents of pools there write their journals to."""

    @property
    def home(self) -> str:
        """The place where the cluster runs, as roles are tagged with it."""
        return f"{self.launcher.cloud}/{self.launcher.account}"

    @property
    def role_names(self) -> tuple[str, str]:
        """The names of the launcher's and the instances' role."""
        return self.names.role("launcher"), self.names.role("instance")

    @property
    def trust(self) -> Document:
        """The trust of the role that launches, with SUBJECT in it."""
        return policies.google_trust(SUBJECT, federation_audience(self.names.cluster))

    @property
    def policy(self) -> Document:
        """The permissions of that role."""
        return policies.launcher(self.names, self.network)

    @property
    def instance_trust(self) -> Document:
        """The trust of the instances' role, which shows who they are."""
        return policies.service_trust("ec2.amazonaws.com")

    @property
    def instance_policy(self) -> Document | None:
        """The permissions of instances, None for none at all."""
        return policies.journals(self.names, self.journal_groups) if self.journal_groups else None


def render_script(roles: RemoteRoles) -> str:
    """Return the script."""
    names, email = roles.names, roles.launcher.role
    launcher, instance = roles.role_names
    ask = f"gcloud iam service-accounts describe {email} --format='value(uniqueId)'"
    return "\n".join(
        [
            "#!/bin/bash",
            f"# `bash trust.sh NUMBER`: what the cluster {names.cluster}, which runs in",
            f"# {roles.launcher.cloud}, needs for its pools in the account {names.account}.",
            "# To run it again changes what is missing alone. NUMBER is the answer of",
            f"#   {ask}",
            "set -euo pipefail",
            'subject="${1:-}"',
            '[[ "$subject" =~ ^[0-9]{15,30}$ ]] || {',
            f"  echo {shlex.quote(f'pass the number that this prints: {ask}')} >&2",
            "  exit 2",
            "}",
            *_check_account(names),
            *_check_own_cluster(names),
            *_check_home(roles),
            f"trust={shlex.quote(_text(roles.trust))}",
            f'trust="${{trust//{SUBJECT}/$subject}}"',
            *_role_lines(roles, launcher, '"$trust"'),
            _policy_line(names, "launcher", roles.policy),
            *_role_lines(roles, instance, shlex.quote(_text(roles.instance_trust))),
            *([_policy_line(names, "instance", given)] if (given := roles.instance_policy) else []),
            *_profile_lines(instance),
            f"echo {shlex.quote(f'{names.account} is ready for the pools of its cluster')}",
            "",
        ]
    )


def render_removal(roles: RemoteRoles) -> str:
    """Return the script that removes what the other one made, once no instance is left."""
    names = roles.names
    ready = f"{names.account} has nothing any more of the cluster {names.cluster}"
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Removes what the cluster {names.cluster}, which runs in",
            f"# {roles.launcher.cloud}, has in the account {names.account}, once no instance is",
            "# left there. To run it again removes what is left alone.",
            "set -euo pipefail",
            *_check_account(names),
            *_check_own_cluster(names),
            *_check_home(roles),
            *_check_instances(roles),
            *_template_removal(names),
            *_profile_removal(names.role("instance")),
            *(line for role in roles.role_names for line in _role_removal(role)),
            f"echo {shlex.quote(ready)}",
            "",
        ]
    )


def _check_instances(roles: RemoteRoles) -> Iterator[str]:
    names, launcher = roles.names, roles.launcher
    listed = _run(
        *("ec2", "describe-instances", "--region", names.region),
        *("--filters", f"Name=tag:{CLUSTER_TAG},Values={names.cluster}"),
        f"Name=instance-state-name,Values={','.join(LIVE)}",
        *("--query", "Reservations[].Instances[].InstanceId", "--output", "text"),
    )
    remedy = (
        f"`detcloud deploy destroy {launcher.cloud} --team {names.team}` ends them; without it, "
        "take its pools there out of the cluster's configuration, deploy, and wait until "
        "`detcloud resource-pool list` shows none of their instances"
    )
    yield f"living=$({listed})"
    yield (
        f'if [ -n "$living" ]; then echo "instances are left: $living;" {shlex.quote(remedy)} >&2;'
        " exit 1; fi"
    )


def _template_removal(names: Names) -> Iterator[str]:
    where = ("--region", names.region)
    listed = _run(
        *("ec2", "describe-launch-templates", *where),
        *("--filters", f"Name=tag:{CLUSTER_TAG},Values={names.cluster}"),
        *("--query", "LaunchTemplates[].LaunchTemplateId", "--output", "text"),
    )
    deleted = _run("ec2", "delete-launch-template", *where)
    yield f'for it in $({listed}); do {deleted} --launch-template-id "$it" > /dev/null; done'


def _profile_removal(name: str) -> Iterator[str]:
    profile = ("--instance-profile-name", name)
    there, delete = (
        _run("iam", f"{word}-instance-profile", *profile) for word in ("get", "delete")
    )
    empty = _run("iam", "remove-role-from-instance-profile", *profile, "--role-name", name)
    # After an interruption it is empty.
    emptied = f"{empty} 2> /dev/null || true"
    yield f"if {there} > /dev/null 2>&1; then {emptied}; {delete}; fi"


def _role_removal(role: str) -> Iterator[str]:
    named = ("--role-name", role)
    there, delete = (_run("iam", f"{verb}-role", *named) for verb in ("get", "delete"))
    listed = _run("iam", "list-role-policies", *named, "--query", "PolicyNames", "--output", "text")
    emptied = _run("iam", "delete-role-policy", *named)
    yield f"if {there} > /dev/null 2>&1; then"
    yield f'  for it in $({listed}); do {emptied} --policy-name "$it"; done'
    yield f"  {delete}"
    yield "fi"


def _check_account(names: Names) -> Iterator[str]:
    whose = _run("sts", "get-caller-identity", "--query", "Account", "--output", "text")
    other = f"these credentials are of another account than {names.account}"
    yield f'if [ "$({whose})" != {names.account} ]; then echo {shlex.quote(other)} >&2; exit 1; fi'


def _check_own_cluster(names: Names) -> Iterator[str]:
    described = _run(
        *("dynamodb", "describe-table", "--table-name", names.cluster, "--region", names.region)
    )
    taken = (
        f"the account has a cluster {names.cluster} of its own, which would end the instances of "
        "this one: use another account"
    )
    yield f"if {described} > /dev/null 2>&1; then echo {shlex.quote(taken)} >&2; exit 1; fi"


def _check_home(roles: RemoteRoles) -> Iterator[str]:
    """Yield the lines that leave a role alone whose cluster runs elsewhere."""
    query = f"Role.Tags[?Key=='{HOME_TAG}'].Value|[0]"
    asked = (*("--query", query), *("--output", "text"))
    names = roles.names
    remedy = (
        f"and not {roles.home}: clusters of one name cannot share the account {names.account}. "
        "Take another account, or another name for the team; where that cluster is gone, `detcloud "
        f"deploy trust CLOUD --team {names.team} --remove` with its settings removes its remote "
        f"account"
    )
    for role in roles.role_names:
        described = _run("iam", "get-role", "--role-name", role, *asked)
        whose = f"the role {role} is there, and its cluster runs in $home,"
        yield f"home=$({described} 2> /dev/null) || home={shlex.quote(roles.home)}"
        yield (
            f'if [ "$home" != {shlex.quote(roles.home)} ]; then '
            f'echo "{whose}" {shlex.quote(remedy)} >&2; exit 1; fi'
        )


def _role_lines(roles: RemoteRoles, role: str, trust: str) -> Iterator[str]:
    there = _run("iam", "get-role", "--role-name", role)
    update = _run("iam", "update-assume-role-policy", "--role-name", role)
    tags = (_tag(CLUSTER_TAG, roles.names.cluster), _tag(HOME_TAG, roles.home))
    create = _run("iam", "create-role", "--role-name", role, "--tags", *tags)
    yield f"if {there} > /dev/null 2>&1; then {update} --policy-document {trust};"
    yield f"else {create} --assume-role-policy-document {trust} > /dev/null; fi"


def _policy_line(names: Names, role: str, document: Document) -> str:
    return _run(
        *("iam", "put-role-policy", "--role-name", names.role(role)),
        *("--policy-name", names.part(role), "--policy-document", _text(document)),
    )


def _profile_lines(name: str) -> Iterator[str]:
    """Yield the commands that make an instance profile with the role of its name in it."""
    profile = ("--instance-profile-name", name)
    there, create = (
        _run("iam", f"{verb}-instance-profile", *profile) for verb in ("get", "create")
    )
    add = _run("iam", "add-role-to-instance-profile", *profile, "--role-name", name)
    yield f"{there} > /dev/null 2>&1 || {{ {create} > /dev/null; {add}; }}"


def _tag(key: str, value: str) -> str:
    return f"Key={key},Value={value}"


def _text(document: Document) -> str:
    return json.dumps(document, separators=(",", ":"))


def _run(*words: str) -> str:
    return shlex.join(("aws", *words))
