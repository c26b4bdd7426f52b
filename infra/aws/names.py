"""The names of the resources in a team's stack.

All names contain the cluster's name, so that the stacks of two teams in one account never collide.
"""

from dataclasses import dataclass

from provisioner.clouds.aws.instance_names import InstanceNames

FUNCTIONS = ("api", "advance", "tick", "wake", "spot_notice", "checkpoint_gc", "suggest")
# Functions that run the code of another function, and therefore with its role.
ROLE_OF = {"wake": "tick"}
# Functions with a role of their own.
ROLE_FUNCTIONS = tuple(name for name in FUNCTIONS if name not in ROLE_OF)
# Functions that the tick invokes on demand.
INVOKED_BY_TICK = ("checkpoint_gc", "suggest")
# The alias through which each function is invoked; `detcloud deploy rollback` moves the alias.
LIVE = "live"


@dataclass(frozen=True)
class Names(InstanceNames):
    """Names and ARNs of a team's resources, known before the resources exist."""

    @property
    def objects(self) -> str:
        """The name of the bucket of model code, logs and journals; includes the account's id.

        Names of buckets must be unique worldwide.
        """
        return f"{self.cluster}-objects-{self.account}"

    @property
    def checkpoints(self) -> str:
        """The name of the bucket of checkpoints."""
        return f"{self.cluster}-checkpoints-{self.account}"

    @property
    def state_copy(self) -> str:
        """The name of the bucket of exports of the state, in another region."""
        return f"{self.cluster}-state-{self.account}-copy"

    def copy(self, bucket: str) -> str:
        """Return the name of the copy of a bucket, `objects` or `checkpoints`."""
        return f"{self.cluster}-{bucket}-{self.account}-copy"

    @property
    def relay_log_group(self) -> str:
        """The name of the relay's log group."""
        return f"/aws/ecs/{self.part('relay')}"

    @property
    def relay_cluster_arn(self) -> str:
        """The ARN of the ECS cluster in which the relay's task runs."""
        return self._regional_arn("ecs", f"cluster/{self.part('relay')}")

    @property
    def relay_definition_arns(self) -> str:
        """The ARN pattern of all revisions of the relay's task definition."""
        return self._regional_arn("ecs", f"task-definition/{self.part('relay')}:*")

    @property
    def relay_task_arns(self) -> str:
        """The ARN pattern of the relay's tasks."""
        return self._regional_arn("ecs", f"task/{self.part('relay')}/*")

    def log_group(self, function: str) -> str:
        """Return the name of a function's log group."""
        return f"/aws/lambda/{self.part(function)}"

    @property
    def table_arn(self) -> str:
        """The ARN of the state table."""
        return self._regional_arn("dynamodb", f"table/{self.cluster}")

    @property
    def dead_letters_arn(self) -> str:
        """The ARN of the queue for events that functions failed to process."""
        return self._regional_arn("sqs", self.part("dead_letters"))

    def alarm_arn(self, name: str) -> str:
        """Return the ARN of the alarm `name`, which AWS evaluates."""
        return self._regional_arn("cloudwatch", f"alarm:{self.part(name)}")

    @property
    def dashboard_arn(self) -> str:
        """The ARN of the dashboard, which belongs to no region."""
        return f"arn:aws:cloudwatch::{self.account}:dashboard/{self.cluster}"

    @property
    def alarms_arn(self) -> str:
        """The ARN of the topic for notifications of alarms."""
        return self._regional_arn("sns", self.part("alarms"))

    def mail_identity_arn(self, identity: str) -> str:
        """Return the ARN of an identity of SES, which is an address or a domain."""
        return self._regional_arn("ses", f"identity/{identity}")

    def rule_arn(self, name: str) -> str:
        """Return the ARN of the EventBridge rule `name`."""
        return self._regional_arn("events", f"rule/{self.part(name)}")

    def function_arn(self, function: str) -> str:
        """Return the ARN of a function, without version and alias."""
        return self._regional_arn("lambda", f"function:{self.part(function)}")

    def live_function(self, function: str) -> str:
        """Return the name for invoking a function: `NAME:ALIAS` with the alias LIVE."""
        return f"{self.part(function)}:{LIVE}"

    def live_function_arn(self, function: str) -> str:
        """Return the ARN of a function's alias LIVE."""
        return f"{self.function_arn(function)}:{LIVE}"

    def log_group_arn(self, function: str) -> str:
        """Return the ARN of a function's log group."""
        return self.any_log_group_arn(self.log_group(function))

    def any_log_group_arn(self, group: str) -> str:
        """Return the ARN of the log group `group` in the stack's account and region."""
        return self._regional_arn("logs", f"log-group:{group}")

    def ec2_arn(self, resource: str) -> str:
        """Return the ARN of an EC2 resource of this account; `resource` is like `subnet/*`."""
        return self._regional_arn("ec2", resource)

    def shared_ec2_arn(self, resource: str) -> str:
        """Return the ARN pattern of an EC2 resource that any account may own and share."""
        return f"arn:aws:ec2:{self.region}:*:{resource}"

    def _regional_arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource in the stack's account and region."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"


def bucket_arn(bucket: str) -> str:
    """Return the ARN of a bucket, or with `bucket` like `NAME/PREFIX*` of objects in a bucket."""
    return f"arn:aws:s3:::{bucket}"
