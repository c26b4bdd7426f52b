"""IAM policies of the relay of tunnels, as plain data built from names. Pure."""

from control_plane.rows import cluster_rows
from infra.aws.names import Names
from infra.aws.policy_statements import Document, Statement, make_document, make_statement

TASK_ROLE = "relay"
"""The name of the role of the relay's code."""
START_ROLE = "relay-start"
"""The name of the role with which ECS writes the relay's log."""
SERVICE = "ecs-tasks.amazonaws.com"


def trust(names: Names) -> Document:
    """Return the trust policy of both roles: only tasks of this account and region."""
    own = {
        "StringEquals": {"aws:SourceAccount": names.account},
        "ArnLike": {"aws:SourceArn": f"arn:aws:ecs:{names.region}:{names.account}:*"},
    }
    return make_document(
        make_statement("Trust", ["sts:AssumeRole"], condition=own, Principal={"Service": SERVICE})
    )


def starts(names: Names) -> list[Statement]:
    """Return the statements that let the API start, look up and stop the relay's task.

    The API may pass the two roles of the task, and no other role, to ECS.
    """
    in_cluster = {"ArnEquals": {"ecs:cluster": names.relay_cluster_arn}}
    to_tasks = {"StringEquals": {"iam:PassedToService": SERVICE}}
    at_start = {"StringEquals": {"ecs:CreateAction": "RunTask"}}
    roles = [names.role_arn(TASK_ROLE), names.role_arn(START_ROLE)]
    tasks = [names.relay_task_arns]
    return [
        make_statement("StartRelay", ["ecs:RunTask"], [names.relay_definition_arns], in_cluster),
        make_statement("GiveRelayRoles", ["iam:PassRole"], roles, to_tasks),
        make_statement("TagRelay", ["ecs:TagResource"], tasks, at_start),
        make_statement("WatchRelay", ["ecs:DescribeTasks", "ecs:StopTask"], tasks),
    ]


def task(names: Names) -> Document:
    """Return the permissions of the relay: to write the row of the relay, and nothing else."""
    own = {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [cluster_rows.RELAY.partition]}}
    return make_document(
        make_statement("WriteOwnRow", ["dynamodb:PutItem"], [names.table_arn], own)
    )


def start(names: Names) -> Document:
    """Return the permissions with which ECS starts the relay: to write the relay's log.

    The image is public, and the code has a signed URL.
    """
    log = f"{names.any_log_group_arn(names.relay_log_group)}:*"
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    return make_document(make_statement("Log", actions, [log]))
