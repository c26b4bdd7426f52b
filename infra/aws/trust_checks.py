"""The check of a cluster's remote account on AWS, with the deployer's credentials.

The credentials may lack the permissions to read the account's roles.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.trust_script import HOME_TAG, SUBJECT, RemoteRoles
from infra.findings import Finding, Level

_MISSING: Final = frozenset(
    {"NoSuchEntity", "InvalidSubnetID.NotFound", "InvalidGroup.NotFound", "InvalidGroupId.NotFound"}
)

_NOT_CHECKED: Final = "neither the remote account nor its pools were checked"
_NAMESAKE: Final = "it belongs to another cluster of the same name"

Problems = Callable[[], Iterator[str]]

# The permissions that each part of the check needs.
_NEEDS: Final = {
    "launcher": "iam:GetRole and iam:GetRolePolicy",
    "instances": "iam:GetInstanceProfile and iam:GetRolePolicy",
    "network": "ec2:DescribeSecurityGroups and ec2:DescribeSubnets",
}


def find_remote_findings(roles: RemoteRoles, clients: Clients) -> list[Finding]:
    """Return findings about the credentials, the launcher, the instances and the network.

    The launcher is the role with which the cluster's function launches instances. Each of the four
    subjects has a FINE finding if it is correct. If the credentials cannot be checked or belong to
    another account, return only that warning. A subject that AWS refuses to read is a warning, too;
    a missing or different resource is an error.
    """
    names = roles.names
    checks: dict[str, Problems] = {
        "credentials": lambda: _caller_problems(roles, clients),
        "launcher": lambda: _launcher_problems(roles, clients),
        "instances": lambda: _instance_problems(roles, clients),
        "network": lambda: _network_problems(roles, clients),
    }
    found = []
    for part, look in checks.items():
        subject = f"{part} in {names.account}"
        try:
            problems = list(look())
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            if part == "credentials":
                return [_missing(roles, subject, f"{_NOT_CHECKED}: {error}")]
            text = f"could not be checked: {error}"
            remedy = f"use credentials of that account that have {_NEEDS[part]}"
            found.append(Finding(Level.WARNING, subject, text, remedy))
            continue
        found += [_missing(roles, subject, problem) for problem in problems] or [
            Finding(Level.FINE, subject, "as pools there need it")
        ]
        if part == "credentials" and problems:
            break
    return found


def _missing(roles: RemoteRoles, subject: str, problem: str) -> Finding:
    """Return the finding about a problem; the subject decides the level and the remedy."""
    team, cloud = roles.launcher.team, roles.launcher.cloud
    remedy = f"`detcloud deploy trust {cloud} --team {team}` prints the commands that create it"
    level = Level.ERROR
    if problem.startswith(_NAMESAKE):
        remedy = "use another account, or another name for the team; see docs/resource-pools.md"
    elif subject.startswith("credentials"):
        level = Level.WARNING
        remedy = (
            "sign in to that account or name its profile in AWS_PROFILE, and repeat `detcloud "
            f"deploy check {cloud} --team {team}`"
        )
    elif subject.startswith("network"):
        remedy = "name subnets and a security group of that account in detcloud:otherClouds"
    return Finding(level, subject, problem, remedy)


def _caller_problems(roles: RemoteRoles, clients: Clients) -> Iterator[str]:
    """Yield a problem if the credentials belong to another account. Raise the SDK's errors."""
    account = clients("sts").get_caller_identity()["Account"]
    if account != roles.names.account:
        yield f"{_NOT_CHECKED}: the credentials belong to the account {account}"


def _launcher_problems(roles: RemoteRoles, clients: Clients) -> Iterator[str]:
    """Yield a problem if the role `launcher` is missing, of another cluster, or outdated.

    The cluster's function launches instances with this role. The trust policy and the permissions
    are compared with those of the present release. Raise the SDK's errors.
    """
    iam, role = clients("iam"), roles.names.role("launcher")
    found = _find(lambda: iam.get_role(RoleName=role)["Role"])
    if found is None:
        yield f"the role {role} is missing"
        return
    home = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}.get(HOME_TAG, "")
    if home != roles.home:
        yield f"{_NAMESAKE}, in {home or 'an account that its tags do not name'}"
        return
    if _generalize(found["AssumeRolePolicyDocument"]) != roles.trust:
        yield f"the trust of the role {role} differs from the expected one"
    name = roles.names.part("launcher")
    policy = _find(lambda: iam.get_role_policy(RoleName=role, PolicyName=name))
    if policy is None or policy["PolicyDocument"] != roles.policy:
        yield f"the policy {name} of the role {role} is missing or differs"


def _instance_problems(roles: RemoteRoles, clients: Clients) -> Iterator[str]:
    """Yield a problem if the instance profile is missing or lacks the role or the permissions.

    Raise the SDK's errors.
    """
    iam, role = clients("iam"), roles.names.role("instance")
    found = _find(lambda: iam.get_instance_profile(InstanceProfileName=role)["InstanceProfile"])
    if found is None or role not in [item["RoleName"] for item in found["Roles"]]:
        yield f"the instance profile {role} is missing, or lacks the role {role}"
    name = roles.names.part("instance")
    policy = _find(lambda: iam.get_role_policy(RoleName=role, PolicyName=name))
    if roles.instance_policy and (policy or {}).get("PolicyDocument") != roles.instance_policy:
        yield f"the policy {name} of the role {role} is missing or differs"


def _network_problems(roles: RemoteRoles, clients: Clients) -> Iterator[str]:
    """Yield a problem for each missing or misplaced subnet and a missing security group.

    Raise the SDK's errors.
    """
    ec2, network = clients("ec2"), roles.network
    for zone, subnet in network.subnets.items():
        found = _find(partial(_describe_subnet, ec2, subnet))
        if not found or found[0]["AvailabilityZone"] != zone:
            yield f"the subnet {subnet} is missing, or not in {zone}"
    group = network.security_group
    if not _find(lambda: ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]):
        yield f"the security group {group} is missing"


def _describe_subnet(ec2: Any, subnet: str) -> Any:
    """Return a list of EC2's description of a subnet. Raise the SDK's errors, also if missing."""
    return ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]


def _find(read: Callable[[], Any]) -> Any:
    """Return the result of `read`, or None if AWS answers that the resource does not exist.

    Raise the SDK's other errors.
    """
    try:
        return read()
    except sdk.ClientError as error:
        if error.response["Error"].get("Code") not in _MISSING:
            raise
        return None


def _generalize(trust: object) -> Any:
    """Return a copy of the trust policy with SUBJECT in place of the service account's number."""
    return json.loads(re.sub(r'"[0-9]{15,30}"', f'"{SUBJECT}"', json.dumps(trust)))
