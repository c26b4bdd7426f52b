"""The names of a team's stack: all begin with the cluster's name, so that two teams share nothing,
also where names are an account's or the world's.
"""

from dataclasses import dataclass

FUNCTIONS = ("api", "advance", "tick", "spot_notice", "checkpoint_gc", "suggest")
# Functions that the tick invokes when there is something for them to do.
INVOKED_BY_TICK = ("checkpoint_gc", "suggest")
# The alias of each function that everybody calls it by; `detcloud deploy rollback` moves it.
LIVE = "live"


@dataclass(frozen=True)
class Names:
    """Names and ARNs of a team, which are known before there is anything that has them."""

    team: str
    account: str
    region: str
    iam_path: str = "/"
    iam_prefix: str = ""

    @property
    def cluster(self) -> str:
        """The cluster's id, which is also the value of the tag on all of its resources."""
        return f"detcloud-{self.team}"

    @property
    def objects(self) -> str:
        """The bucket of model code, logs and journals. A bucket's name is the world's."""
        return f"{self.cluster}-objects-{self.account}"

    @property
    def checkpoints(self) -> str:
        """The bucket of checkpoints."""
        return f"{self.cluster}-checkpoints-{self.account}"

    def part(self, name: str) -> str:
        """Return the name of a part: a function, a role, a queue."""
        return f"{self.cluster}-{name.replace('_', '-')}"

    def log_group(self, function: str) -> str:
        """Return the log group of a function."""
        return f"/aws/lambda/{self.part(function)}"

    @property
    def table_arn(self) -> str:
        return self._regional_arn("dynamodb", f"table/{self.cluster}")

    @property
    def dead_letters_arn(self) -> str:
        return self._regional_arn("sqs", self.part("dead_letters"))

    @property
    def alarms_arn(self) -> str:
        return self._regional_arn("sns", self.part("alarms"))

    def function_arn(self, function: str) -> str:
        return self._regional_arn("lambda", f"function:{self.part(function)}")

    def live_function(self, function: str) -> str:
        """Return what a function is invoked by: its name and the alias."""
        return f"{self.part(function)}:{LIVE}"

    def live_function_arn(self, function: str) -> str:
        return f"{self.function_arn(function)}:{LIVE}"

    def log_group_arn(self, function: str) -> str:
        return self.any_log_group_arn(self.log_group(function))

    def any_log_group_arn(self, group: str) -> str:
        """Return the ARN of a log group, the stack's or another one of its account."""
        return self._regional_arn("logs", f"log-group:{group}")

    def role(self, name: str) -> str:
        """Return the name of a role or an instance profile."""
        return f"{self.iam_prefix}{self.part(name)}"

    def role_arn(self, name: str) -> str:
        return f"arn:aws:iam::{self.account}:role{self.iam_path}{self.role(name)}"

    @property
    def instance_profile_arn(self) -> str:
        """The profile of instances, with the role `instance`."""
        name = f"{self.iam_path}{self.role('instance')}"
        return f"arn:aws:iam::{self.account}:instance-profile{name}"

    def ec2_arn(self, resource: str) -> str:
        """Return the ARN of a `resource` like `subnet/subnet-1`."""
        return self._regional_arn("ec2", resource)

    def shared_ec2_arn(self, resource: str) -> str:
        """Return the ARN of a `resource` that another account may own and share with this one."""
        return f"arn:aws:ec2:{self.region}:*:{resource}"

    def _regional_arn(self, service: str, resource: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"


def bucket_arn(bucket: str) -> str:
    """Return the ARN of a bucket, or of objects in it: `bucket/prefix*`."""
    return f"arn:aws:s3:::{bucket}"
