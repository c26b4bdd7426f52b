"""Names on AWS that the launch of instances needs: roles, instance profile and tag."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class InstanceNames:
    """Names and ARNs of a cluster's roles and instances, known before the resources exist."""

    team: str
    """The team's name, from which all names are derived."""
    account: str
    """The account's id of 12 digits."""
    region: str
    iam_path: str = "/"
    """The path of roles and of the instance profile."""
    iam_prefix: str = ""
    """The start of the names of roles and of the instance profile."""
    cluster_id: str = ""
    """The cluster's id if different from `cluster`; otherwise ""."""

    @property
    def cluster(self) -> str:
        """The cluster's name, with which the names of resources begin."""
        return f"detcloud-{self.team}"

    @property
    def tag(self) -> str:
        """The value of the tag of the cluster's instances: the cluster's id."""
        return self.cluster_id or self.cluster

    def part(self, name: str) -> str:
        """Return the name of a function, queue or other part: cluster, hyphen, name.

        Underscores of `name` become hyphens.
        """
        return f"{self.cluster}-{name.replace('_', '-')}"

    def role(self, name: str) -> str:
        """Return the name of a role or instance profile: IAM prefix, cluster, hyphen, name.

        Underscores of `name` become hyphens.
        """
        return f"{self.iam_prefix}{self.part(name)}"

    def role_arn(self, name: str) -> str:
        """Return the ARN of the role `name`, with the IAM path."""
        return f"arn:aws:iam::{self.account}:role{self.iam_path}{self.role(name)}"

    @property
    def instance_profile_arn(self) -> str:
        """The ARN of the profile of instances, which contains the role `instance`."""
        name = f"{self.iam_path}{self.role('instance')}"
        return f"arn:aws:iam::{self.account}:instance-profile{name}"


def describe_remote(
    names: InstanceNames, subnets: Mapping[str, str], security_group: str, *, has_launcher: bool
) -> dict[str, Any]:
    """Return the description of a remote account for `lambdas.aws.other_pools`.

    The keys are `region`, `launcher` and `instance` (ARNs of roles) and `network` (`subnets` by
    zone, `security_group`, `instance_profile`). The result is ready for JSON.

    Args:
        names: the names of the cluster's resources in the account.
        subnets: the id of a subnet for each zone.
        security_group: the id of the instances' security group.
        has_launcher: whether the account has a role for launches. Without this role, `launcher` is
            "".
    """
    return {
        "region": names.region,
        "launcher": names.role_arn("launcher") if has_launcher else "",
        "instance": names.role_arn("instance"),
        "network": {
            "subnets": dict(subnets),
            "security_group": security_group,
            "instance_profile": names.instance_profile_arn,
        },
    }
