"""The relay of tunnels: a task of Fargate, which the API starts on demand (decision 0143).

None of these resources costs money while no task runs.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pulumi
import pulumi_aws as aws

from control_plane.aws.relay_tasks import CONTAINER
from infra.aws import key_policies, relay_policies
from infra.aws.network import ANYWHERE, Vpc
from infra.aws.policy_statements import add_statements
from infra.aws.roles import make_policy, make_role
from infra.aws.scope import Scope
from lambdas.aws import relay_boot

# Docker's official image in AWS's public registry, which limits no pulls from AWS.
IMAGE: Final = "public.ecr.aws/docker/library/python:3.13-slim-bookworm"
LOG_DAYS: Final = 7
CPU_UNITS: Final = 256
MEMORY_MB: Final = 512
_PROCESSORS: Final = {"arm64": "ARM64", "x86_64": "X86_64"}
# The capabilities of Docker's containers, except the capabilities to open the port and to become
# another user.
_DROPPED_CAPABILITIES: Final = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_RAW"),
    *("SETFCAP", "SETPCAP", "SYS_CHROOT"),
)


def make_relay(scope: Scope, vpc: Vpc, bucket: Any, table: Any) -> pulumi.Output[str]:
    """Create everything that the relay's task needs, and no task.

    Return the JSON of the API's variable DETCLOUD_RELAY. Raise OSError if the functions' archive
    cannot be read.

    Args:
        vpc: the stack's own VPC, in whose public subnets the task runs.
        bucket: the bucket of objects, which gets the task's code.
        table: the state table.
    """
    _put_code(scope, bucket)
    group = _make_security_group(scope, vpc)
    cluster = aws.ecs.Cluster(
        "relay",
        name=scope.names.part("relay"),
        # Container Insights would cost more than the task.
        settings=[{"name": "containerInsights", "value": "disabled"}],
        tags=scope.tags(),
        opts=scope.options(),
    )
    definition = _make_definition(scope, table)
    return pulumi.Output.json_dumps(
        {
            "cluster": cluster.name,
            "definition": definition.family,
            "subnets": list(vpc.public_subnets),
            "group": group.id,
        }
    )


def _put_code(scope: Scope, bucket: Any) -> None:
    """Store the functions' archive in the bucket, from which a task fetches the code."""
    archive = scope.settings.archive
    aws.s3.BucketObjectv2(
        "relay-code",
        bucket=bucket.id,
        key=relay_boot.CODE_KEY,
        source=pulumi.FileArchive(archive),
        source_hash=hashlib.sha256(Path(archive).read_bytes()).hexdigest(),
        content_type="application/zip",
        opts=scope.options(),
    )


def _make_security_group(scope: Scope, vpc: Vpc) -> Any:
    """Create and return the group of the task: only HTTPS, in both directions."""
    group = aws.ec2.SecurityGroup(
        "relay",
        name=scope.names.part("relay"),
        description="The relay of tunnels: HTTPS in, and HTTPS to AWS out",
        vpc_id=vpc.id,
        tags=scope.tags("relay"),
        opts=scope.options(),
    )
    common = {
        "security_group_id": group.id,
        "cidr_ipv4": ANYWHERE,
        "ip_protocol": "tcp",
        "from_port": relay_boot.HTTPS_PORT,
        "to_port": relay_boot.HTTPS_PORT,
        "opts": scope.options(),
    }
    aws.vpc.SecurityGroupIngressRule("relay", tags=scope.tags("relay"), **common)
    aws.vpc.SecurityGroupEgressRule("relay", tags=scope.tags("relay"), **common)
    return group


def _make_definition(scope: Scope, table: Any) -> Any:
    """Create the task's roles, log group and definition, and return the definition."""
    names, settings, key = scope.names, scope.settings, scope.settings.kms_key
    trust = relay_policies.trust(names)
    role = make_role(scope, relay_policies.TASK_ROLE, trust)
    keys = key_policies.key_use(names, key) if key else []
    own = add_statements(relay_policies.task(names), keys)
    start = make_role(scope, relay_policies.START_ROLE, trust)
    granted = [
        make_policy(scope, relay_policies.TASK_ROLE, role, own),
        make_policy(scope, relay_policies.START_ROLE, start, relay_policies.start(names)),
    ]
    log = aws.cloudwatch.LogGroup(
        "relay",
        name=names.relay_log_group,
        retention_in_days=LOG_DAYS,
        kms_key_id=key or None,
        tags=scope.tags(),
        opts=scope.options(),
    )
    return aws.ecs.TaskDefinition(
        "relay",
        family=names.part("relay"),
        cpu=str(CPU_UNITS),
        memory=str(MEMORY_MB),
        network_mode="awsvpc",
        requires_compatibilities=["FARGATE"],
        runtime_platform={
            "operating_system_family": "LINUX",
            "cpu_architecture": _PROCESSORS[settings.architecture],
        },
        execution_role_arn=start.arn,
        task_role_arn=role.arn,
        container_definitions=table.name.apply(
            lambda name: json.dumps([_container(scope, name)], sort_keys=True)
        ),
        tags=scope.tags(),
        opts=scope.options([*granted, log]),
    )


def _container(scope: Scope, table: str) -> dict[str, Any]:
    """Return the definition of the task's container. `table` is the state table's name."""
    region = scope.names.region
    variables = {
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "PYTHONUNBUFFERED": "1",
        relay_boot.TABLE: table,
        relay_boot.PORT: str(relay_boot.HTTPS_PORT),
        relay_boot.USER: str(relay_boot.NOBODY),
    }
    return {
        "name": CONTAINER,
        "image": IMAGE,
        "essential": True,
        "command": list(relay_boot.COMMAND),
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
        "linuxParameters": {"capabilities": {"drop": list(_DROPPED_CAPABILITIES)}},
        "portMappings": [{"containerPort": relay_boot.HTTPS_PORT, "protocol": "tcp"}],
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": scope.names.relay_log_group,
                "awslogs-region": region,
                "awslogs-stream-prefix": "relay",
            },
        },
    }
