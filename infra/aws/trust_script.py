"""Shell scripts that create and remove a remote account on AWS.

The cluster runs in another cloud or on own machines. The first script creates a role for the
launcher and a role for instances. The launcher's role trusts one Google service account, or the
named IAM user or role of a server. An administrator of the account's roles runs the script once,
and again after a release with new permissions: existing roles get the new policies, unless they
belong to another cluster. The second script removes the roles.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from infra.aws import policies
from infra.aws.instance_ends import LIVE
from infra.aws.names import Names
from infra.aws.policy_statements import Document
from infra.aws.settings import Network
from infra.remote_accounts import Launcher
from provisioner.clouds.aws.federation import federation_audience
from provisioner.clouds.provider import CLUSTER_TAG

# The tag of the roles that names the cluster's home, because clusters with equal names cannot
# share a remote account.
HOME_TAG = "detcloud-home"
# The placeholder for the service account's number, which only Google knows.
SUBJECT = "SUBJECT"


@dataclass(frozen=True)
class RemoteRoles:
    """The IAM roles of a remote account: the launcher's role and the instances' role.

    A function of the cluster, in another cloud, assumes the launcher's role.
    """

    names: Names
    """The names of the cluster's resources in the remote account."""
    network: Network
    """The network of the account's instances."""
    launcher: Launcher
    """The function in the other cloud that launches the instances."""
    journal_groups: tuple[str, ...] = ()
    """The CloudWatch log groups to which the account's agents write their journals."""
    reservations: tuple[str, ...] = ()
    """The capacity reservations of the pools, by id or by the ARN of a resource group."""

    @property
    def home(self) -> str:
        """The cloud and account in which the cluster runs, like `gcp/PROJECT`; the roles' tag."""
        return f"{self.launcher.cloud}/{self.launcher.account}"

    @property
    def role_names(self) -> tuple[str, str]:
        """The names of the launcher's role and of the instances' role, in this order."""
        return self.names.role("launcher"), self.names.role("instance")

    @property
    def has_launcher(self) -> bool:
        """Whether the launcher's role is needed: not for a server without a named principal."""
        return bool(self.launcher.role)

    @property
    def trust(self) -> Document:
        """The trust policy of the launcher's role.

        For a function on Google Cloud, the policy has the placeholder SUBJECT.
        """
        if self.launcher.is_server:
            return policies.principal_trust(self.launcher.role)
        return policies.google_trust(SUBJECT, federation_audience(self.names.cluster))

    @property
    def policy(self) -> Document:
        """The permissions of the launcher's role: to manage the cluster's instances."""
        return policies.launcher(self.names, self.network, self.reservations)

    @property
    def instance_trust(self) -> Document:
        """The trust policy of the instances' role, by which instances identify themselves."""
        return policies.service_trust("ec2.amazonaws.com")

    @property
    def instance_policy(self) -> Document | None:
        """The permissions of the instances' role, or None without journals to write."""
        return policies.journals(self.names, self.journal_groups) if self.journal_groups else None


def render_script(roles: RemoteRoles) -> str:
    """Return the bash script that creates or updates the roles and the instance profile.

    For a function on Google Cloud, the script takes the service account's number as its argument.
    For a server without a named principal, the launcher's role is left out. The script stops with
    an error if the credentials or the roles belong to another account or cluster.
    """
    names = roles.names
    launcher, instance = roles.role_names
    first = _server_lines(roles) if roles.launcher.is_server else _subject_lines(roles)
    replaced = [] if roles.launcher.is_server else [f'trust="${{trust//{SUBJECT}/$subject}}"']
    launching = [
        f"trust={shlex.quote(_text(roles.trust))}",
        *replaced,
        *_role_lines(roles, launcher, '"$trust"'),
        _policy_line(names, "launcher", roles.policy),
    ]
    return "\n".join(
        [
            *first,
            *_check_account(names),
            *_check_own_cluster(names),
            *_check_home(roles),
            *(launching if roles.has_launcher else []),
            *_role_lines(roles, instance, shlex.quote(_text(roles.instance_trust))),
            *([_policy_line(names, "instance", given)] if (given := roles.instance_policy) else []),
            *_profile_lines(instance),
            f"echo {shlex.quote(f'{names.account} is ready for the pools of its cluster')}",
            "",
        ]
    )


def _server_lines(roles: RemoteRoles) -> Iterator[str]:
    """Yield the first lines of the script for a cluster on own machines."""
    names = roles.names
    yield "#!/bin/bash"
    yield f"# What the cluster {names.cluster}, which runs {roles.launcher.place}, needs for its"
    yield f"# pools in the account {names.account}. To run it again changes what is missing alone."
    yield "set -euo pipefail"


def _subject_lines(roles: RemoteRoles) -> Iterator[str]:
    """Yield the first lines of the script for a function on Google Cloud.

    The lines check the argument, the number of the function's service account.
    """
    names, email = roles.names, roles.launcher.role
    ask = f"gcloud iam service-accounts describe {email} --format='value(uniqueId)'"
    yield "#!/bin/bash"
    yield f"# `bash trust.sh NUMBER`: what the cluster {names.cluster}, which runs in"
    yield f"# {roles.launcher.cloud}, needs for its pools in the account {names.account}."
    yield "# To run it again changes what is missing alone. NUMBER is the answer of"
    yield f"#   {ask}"
    yield "set -euo pipefail"
    yield 'subject="${1:-}"'
    yield '[[ "$subject" =~ ^[0-9]{15,30}$ ]] || {'
    yield f"  echo {shlex.quote(f'pass the number that this prints: {ask}')} >&2"
    yield "  exit 2"
    yield "}"


def render_removal(roles: RemoteRoles) -> str:
    """Return the bash script that deletes the launch templates, the instance profile and the roles.

    The script stops with an error while instances of the cluster exist, or if the credentials or
    the roles belong to another account or cluster.
    """
    names = roles.names
    ready = f"{names.account} has nothing any more of the cluster {names.cluster}"
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Removes what the cluster {names.cluster}, which runs",
            f"# {roles.launcher.place}, has in the account {names.account}, once no instance is",
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
    """Yield script lines that stop the script if instances of the cluster have not ended."""
    names = roles.names
    listed = _run(
        *("ec2", "describe-instances", "--region", names.region),
        *("--filters", f"Name=tag:{CLUSTER_TAG},Values={names.tag}"),
        f"Name=instance-state-name,Values={','.join(LIVE)}",
        *("--query", "Reservations[].Instances[].InstanceId", "--output", "text"),
    )
    remedy = roles.launcher.remedy_for_instances
    yield f"living=$({listed})"
    yield (
        f'if [ -n "$living" ]; then echo "instances are left: $living;" {shlex.quote(remedy)} >&2;'
        " exit 1; fi"
    )


def _template_removal(names: Names) -> Iterator[str]:
    """Yield the script line that deletes all launch templates of the cluster."""
    where = ("--region", names.region)
    listed = _run(
        *("ec2", "describe-launch-templates", *where),
        *("--filters", f"Name=tag:{CLUSTER_TAG},Values={names.tag}"),
        *("--query", "LaunchTemplates[].LaunchTemplateId", "--output", "text"),
    )
    deleted = _run("ec2", "delete-launch-template", *where)
    yield f'for it in $({listed}); do {deleted} --launch-template-id "$it" > /dev/null; done'


def _profile_removal(name: str) -> Iterator[str]:
    """Yield the script line that deletes an instance profile, if the profile exists.

    The line first removes the role of the same name from the profile. A profile without the role is
    deleted all the same. An error of the deletion stops the script.
    """
    profile = ("--instance-profile-name", name)
    there, delete = (
        _run("iam", f"{word}-instance-profile", *profile) for word in ("get", "delete")
    )
    empty = _run("iam", "remove-role-from-instance-profile", *profile, "--role-name", name)
    # An interrupted removal may have emptied the profile already.
    emptied = f"{empty} 2> /dev/null || true"
    yield f"if {there} > /dev/null 2>&1; then {emptied}; {delete}; fi"


def _role_removal(role: str) -> Iterator[str]:
    """Yield script lines that delete a role with all inline policies, if it exists."""
    named = ("--role-name", role)
    there, delete = (_run("iam", f"{verb}-role", *named) for verb in ("get", "delete"))
    listed = _run("iam", "list-role-policies", *named, "--query", "PolicyNames", "--output", "text")
    emptied = _run("iam", "delete-role-policy", *named)
    yield f"if {there} > /dev/null 2>&1; then"
    yield f'  for it in $({listed}); do {emptied} --policy-name "$it"; done'
    yield f"  {delete}"
    yield "fi"


def _check_account(names: Names) -> Iterator[str]:
    """Yield the script line that stops the script if the credentials are of another account."""
    whose = _run("sts", "get-caller-identity", "--query", "Account", "--output", "text")
    other = f"these credentials are of another account than {names.account}"
    yield f'if [ "$({whose})" != {names.account} ]; then echo {shlex.quote(other)} >&2; exit 1; fi'


def _check_own_cluster(names: Names) -> Iterator[str]:
    """Yield script lines that stop the script if the account has a cluster of the same name.

    The functions of that cluster would terminate the instances of the remote account.
    """
    described = _run(
        *("dynamodb", "describe-table", "--table-name", names.cluster, "--region", names.region)
    )
    taken = (
        f"the account has a cluster {names.cluster} of its own, which would end the instances of "
        "this one: use another account"
    )
    yield f"if {described} > /dev/null 2>&1; then echo {shlex.quote(taken)} >&2; exit 1; fi"


def _check_home(roles: RemoteRoles) -> Iterator[str]:
    """Yield script lines that stop the script if a role belongs to another cluster.

    A role without the tag HOME_TAG belongs to another cluster. A missing role does not stop the
    script.
    """
    query = f"Role.Tags[?Key=='{HOME_TAG}'].Value|[0]"
    asked = (*("--query", query), *("--output", "text"))
    names = roles.names
    remedy = (
        f"and not {roles.home}: clusters of one name cannot share the account {names.account}. "
        f"Take another account, or another name for {_name_owner(roles)}; where that cluster is "
        "gone, `detcloud deploy trust --remove` with its settings removes its remote account"
    )
    for role in roles.role_names:
        described = _run("iam", "get-role", "--role-name", role, *asked)
        whose = f"the role {role} exists, and its cluster runs in $home,"
        yield f"home=$({described} 2> /dev/null) || home={shlex.quote(roles.home)}"
        yield (
            f'if [ "$home" != {shlex.quote(roles.home)} ]; then '
            f'echo "{whose}" {shlex.quote(remedy)} >&2; exit 1; fi'
        )


def _name_owner(roles: RemoteRoles) -> str:
    """Return the words for the owner of the name in the names of roles."""
    return "the cluster" if roles.launcher.is_server else "the team"


def _role_lines(roles: RemoteRoles, role: str, trust: str) -> Iterator[str]:
    """Yield script lines that create an IAM role, or replace the trust policy of an existing role.

    A new role gets the tags CLUSTER_TAG and HOME_TAG, which name the cluster and the cluster's
    home. An existing role keeps its tags.

    Args:
        roles: the roles of the remote account, for the tags.
        role: the name of the role.
        trust: the trust policy, quoted as a word of the shell.
    """
    there = _run("iam", "get-role", "--role-name", role)
    update = _run("iam", "update-assume-role-policy", "--role-name", role)
    tags = (_tag(CLUSTER_TAG, roles.names.tag), _tag(HOME_TAG, roles.home))
    create = _run("iam", "create-role", "--role-name", role, "--tags", *tags)
    yield f"if {there} > /dev/null 2>&1; then {update} --policy-document {trust};"
    yield f"else {create} --assume-role-policy-document {trust} > /dev/null; fi"


def _policy_line(names: Names, role: str, document: Document) -> str:
    """Return the script line that creates or replaces the inline policy of a role."""
    return _run(
        *("iam", "put-role-policy", "--role-name", names.role(role)),
        *("--policy-name", names.part(role), "--policy-document", _text(document)),
    )


def _profile_lines(name: str) -> Iterator[str]:
    """Yield script lines that create an instance profile with the equally named role.

    An existing profile stays. The role is added unless the profile has the role, so that a second
    run completes an interrupted one.
    """
    profile = ("--instance-profile-name", name)
    there, create = (
        _run("iam", f"{verb}-instance-profile", *profile) for verb in ("get", "create")
    )
    yield f"{there} > /dev/null 2>&1 || {create} > /dev/null"
    query = ("--query", "InstanceProfile.Roles[].RoleName", "--output", "text")
    roles = _run("iam", "get-instance-profile", *profile, *query)
    add = _run("iam", "add-role-to-instance-profile", *profile, "--role-name", name)
    yield f"{roles} | grep -qx {shlex.quote(name)} || {add}"


def _tag(key: str, value: str) -> str:
    """Return a tag as a word of AWS's command line."""
    return f"Key={key},Value={value}"


def _text(document: Document) -> str:
    """Return a policy as JSON without white space."""
    return json.dumps(document, separators=(",", ":"))


def _run(*words: str) -> str:
    """Return a shell command of AWS's command line with quoted words."""
    return shlex.join(("aws", *words))
