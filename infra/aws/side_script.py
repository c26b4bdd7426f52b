"""The script of commands that make a cluster's side on AWS, whose functions run in another cloud: a
role for what launches, which trusts one service account of Google's, and one for instances.

Whoever may manage the account's roles runs it once, and again after a release that needs more: what
is there gets the present policies.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from infra.aws import policies
from infra.aws.names import Names
from infra.aws.policies import Document
from infra.aws.settings import Network
from infra.other_sides import Launcher
from provisioner.clouds.aws.federation import federation_audience
from provisioner.clouds.provider import CLUSTER_TAG

# In the place of the service account's number, which Google alone knows.
SUBJECT = "SUBJECT"


@dataclass(frozen=True)
class SideRoles:
    """The roles of a side, whose instances are in a network; `launcher` launches them."""

    names: Names
    network: Network
    launcher: Launcher
    journal_groups: tuple[str, ...] = ()
    """The groups of CloudWatch that agents of pools there write their journals to."""

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


def render_script(roles: SideRoles) -> str:
    """Return the script."""
    names, email = roles.names, roles.launcher.role
    launcher, instance = names.role("launcher"), names.role("instance")
    ask = f"gcloud iam service-accounts describe {email} --format='value(uniqueId)'"
    return "\n".join(
        [
            "#!/bin/bash",
            f"# `bash side.sh NUMBER`: what the cluster {names.cluster}, which runs in",
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
            f"trust={shlex.quote(_text(roles.trust))}",
            f'trust="${{trust//{SUBJECT}/$subject}}"',
            *_role_lines(launcher, '"$trust"', names.cluster),
            _policy_line(names, "launcher", roles.policy),
            *_role_lines(instance, shlex.quote(_text(roles.instance_trust)), names.cluster),
            *([_policy_line(names, "instance", given)] if (given := roles.instance_policy) else []),
            *_profile_lines(instance),
            f"echo {shlex.quote(f'{names.account} is ready for the pools of its cluster')}",
            "",
        ]
    )


def _check_account(names: Names) -> Iterator[str]:
    whose = _run("sts", "get-caller-identity", "--query", "Account", "--output", "text")
    other = f"these credentials are of another account than {names.account}"
    yield f'if [ "$({whose})" != {names.account} ]; then echo {shlex.quote(other)} >&2; exit 1; fi'
    described = _run(
        *("dynamodb", "describe-table", "--table-name", names.cluster, "--region", names.region)
    )
    taken = (
        f"the account has a cluster {names.cluster} of its own, which would end the instances of "
        "this one: use another account"
    )
    yield f"if {described} > /dev/null 2>&1; then echo {shlex.quote(taken)} >&2; exit 1; fi"


def _role_lines(role: str, trust: str, cluster: str) -> Iterator[str]:
    there = _run("iam", "get-role", "--role-name", role)
    update = _run("iam", "update-assume-role-policy", "--role-name", role)
    create = _run("iam", "create-role", "--role-name", role, "--tags", _tag(cluster))
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


def _tag(cluster: str) -> str:
    return f"Key={CLUSTER_TAG},Value={cluster}"


def _text(document: Document) -> str:
    return json.dumps(document, separators=(",", ":"))


def _run(*words: str) -> str:
    return shlex.join(("aws", *words))
