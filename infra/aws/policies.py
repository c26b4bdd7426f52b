"""IAM policies of the stack's roles and resources, as plain data built from names. Pure."""

from collections.abc import Sequence

from control_plane.rows import fleet_rows
from infra.aws.launch_policies import instance_management
from infra.aws.names import INVOKED_BY_TICK, Names, bucket_arn
from infra.aws.policy_statements import Document, Statement, make_document, make_statement
from infra.aws.settings import Network

STORAGE_SECONDS_MAX = 3600
# The permissions of AWS's own policy AWSCloud9SSMInstanceProfile, which is for sessions only. The
# usual AmazonSSMManagedInstanceCore also allows to read every parameter of the account.
SESSION_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)

_READ_ROWS = ("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query")
# DynamoDB authorizes a transaction by the permissions of the single operations.
_WRITE_ROWS = ("dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem")


def service_trust(service: str) -> Document:
    """Return the trust policy of a role that only the AWS service `service` may assume.

    `service` is the service's domain name, such as `lambda.amazonaws.com`.
    """
    return make_document(
        make_statement("Trust", ["sts:AssumeRole"], Principal={"Service": service})
    )


def storage_trust(names: Names) -> Document:
    """Return the trust policy of the role for trials' storage: only the API may assume it.

    The API restricts each session to one trial.
    """
    return make_document(
        make_statement("Trust", ["sts:AssumeRole"], Principal={"AWS": names.role_arn("api")})
    )


# The keys of checkpoints that users upload: epoch 0, which no run of a trial has.
UPLOADED = "*/*/0/*"


def api(names: Names) -> Document:
    """Return the API's permissions.

    The API may read and write rows, model code and logs, read checkpoints, upload users'
    checkpoints, and assume the role of trials' storage.
    """
    return make_document(
        *_rows(names),
        *_objects(
            "Objects", names.objects, "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"
        ),
        *_objects("Checkpoints", names.checkpoints, "s3:GetObject"),
        make_statement(
            "StoreUploads",
            ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"],
            [bucket_arn(f"{names.checkpoints}/{UPLOADED}")],
        ),
        make_statement(
            "Uploads", ["s3:ListBucketMultipartUploads"], [bucket_arn(names.checkpoints)]
        ),
        make_statement("VendStorage", ["sts:AssumeRole"], [names.role_arn("storage")]),
    )


def advance(names: Names) -> Document:
    """Return the permissions of `advance`: reading and writing rows, reading the stream.

    Failed records may be sent to the dead-letter queue.
    """
    return make_document(*_rows(names), *_stream(names))


def tick(names: Names, network: Network | None, reservations: Sequence[str] = ()) -> Document:
    """Return the permissions of the tick, which `wake` shares.

    The functions may read and write rows, read the stream, the configuration and model code, store
    the code of agents, invoke INVOKED_BY_TICK, and publish notifications of alarms. Submissions of
    schedules need the model code. Failed records and events may be sent to the dead-letter queue.
    The functions may launch and terminate this cluster's instances, with all that
    `instance_management` allows. `network` is the existing network of instances; None for the
    stack's own network. `reservations` are the capacity reservations of the pools, by id or by the
    ARN of a group.
    """
    return make_document(
        *_rows(names),
        *_stream(names),
        *_objects("Objects", names.objects, "s3:GetObject", below=("config/", "model-code/")),
        make_statement(
            "KeepAgentCode", ["s3:PutObject"], [bucket_arn(f"{names.objects}/agent-code/*")]
        ),
        make_statement(
            "Wake", ["lambda:InvokeFunction"], [*map(names.live_function_arn, INVOKED_BY_TICK)]
        ),
        make_statement("NotifyOfAlarms", ["sns:Publish"], [names.alarms_arn]),
        *instance_management(names, network, reservations),
    )


def launcher(names: Names, network: Network, reservations: Sequence[str] = ()) -> Document:
    """Return the permissions of the role with which a function in another cloud launches instances.

    The role may launch and terminate this cluster's instances in `network`, with all that
    `instance_management` allows, and nothing else. `reservations` are as in `tick`.
    """
    return make_document(*instance_management(names, network, reservations))


def google_trust(subject: str, audience: str) -> Document:
    """Return the trust policy that lets a single Google service account assume a role.

    `subject` is the service account's number, and `audience` the audience of its identity tokens.
    AWS compares its key `aud` with the token's requester (the service account), and its key `oaud`
    with the token's audience.
    """
    google = "accounts.google.com"
    condition = {
        "StringEquals": {
            f"{google}:aud": subject,
            f"{google}:oaud": audience,
            f"{google}:sub": subject,
        }
    }
    who = {"Federated": google}
    action = ["sts:AssumeRoleWithWebIdentity"]
    return make_document(make_statement("Trust", action, condition=condition, Principal=who))


def principal_trust(principal: str) -> Document:
    """Return the trust policy that lets an IAM user or role assume a role.

    `principal` is the ARN of the user or role.
    """
    statement = make_statement("Trust", ["sts:AssumeRole"], Principal={"AWS": principal})
    return make_document(statement)


def spot_notice(names: Names) -> Document:
    """Return the permissions of `spot_notice`: write notices, read fleets and instances.

    Failed events may be sent to the dead-letter queue.
    """
    table = [names.table_arn]
    read = [fleet_rows.FLEET.partition, f"{fleet_rows.INSTANCE.partition}*"]
    return make_document(
        make_statement(
            "WriteNotices",
            ["dynamodb:PutItem"],
            table,
            {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [fleet_rows.NOTICE.partition]}},
        ),
        make_statement(
            "ReadBooks",
            ["dynamodb:GetItem", "dynamodb:Query"],
            table,
            {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": read}},
        ),
        *_dead_letters(names),
    )


def checkpoint_gc(names: Names, *, purges: bool = False) -> Document:
    """Return the permissions of `checkpoint_gc`.

    The function may read and write rows, read, list and delete objects in both buckets, and find
    and abort unfinished uploads of checkpoints. With `purges`, the function may also delete
    versions of checkpoints, which nobody can restore.
    """
    return make_document(
        *_rows(names),
        *_objects("Objects", names.objects, "s3:GetObject", "s3:DeleteObject"),
        *_objects(
            "Checkpoints",
            names.checkpoints,
            "s3:GetObject",
            "s3:DeleteObject",
            "s3:AbortMultipartUpload",
        ),
        make_statement(
            "Uploads", ["s3:ListBucketMultipartUploads"], [bucket_arn(names.checkpoints)]
        ),
        *(_version_deletion(names) if purges else []),
    )


def _version_deletion(names: Names) -> list[Statement]:
    """Return the statements for listing and deleting versions in the bucket of checkpoints."""
    bucket = bucket_arn(names.checkpoints)
    return [
        make_statement("Purge", ["s3:DeleteObjectVersion"], [f"{bucket}/*"]),
        make_statement("PurgeList", ["s3:ListBucketVersions"], [bucket]),
    ]


def suggest(names: Names) -> Document:
    """Return the permissions of `suggest`: reading and writing rows."""
    return make_document(*_rows(names))


def storage(names: Names) -> Document:
    """Return the upper bound of a trial's permissions.

    The bound allows to list the bucket of checkpoints, to read and write all checkpoints and to
    abort uploads, but never to delete.
    """
    return make_document(
        *_objects(
            "Checkpoints",
            names.checkpoints,
            "s3:GetObject",
            "s3:PutObject",
            "s3:AbortMultipartUpload",
        )
    )


def instance(names: Names) -> Document:
    """Return the permissions of instances: only to fetch the agent's code.

    Agents use the API for everything else.
    """
    code = [bucket_arn(f"{names.objects}/agent-code/*")]
    return make_document(make_statement("FetchCode", ["s3:GetObject"], code))


def sessions() -> Statement:
    """Return the statement that lets an instance's agent of Systems Manager open sessions."""
    # The channels accept no resource in a policy, and an instance's id is unknown here.
    return make_statement("Sessions", SESSION_ACTIONS, ["*"])


def logs(names: Names, functions: Sequence[str], *, is_traced: bool) -> list[Statement]:
    """Return the statements for writing functions' logs, and X-Ray traces if `is_traced`."""
    groups = [f"{names.log_group_arn(function)}:*" for function in functions]
    log = make_statement("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], groups)
    # These actions accept no resource in a policy.
    actions = ["xray:PutTelemetryRecords", "xray:PutTraceSegments"]
    return [log, *([make_statement("Trace", actions, ["*"])] if is_traced else [])]


def journal(names: Names, groups: Sequence[str]) -> Statement:
    """Return the statement that lets instances write agents' journals to the log groups.

    `groups` are names of log groups in the stack's account and region.
    """
    arns = [names.any_log_group_arn(group) for group in groups]
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    return make_statement("Journal", actions, [f"{arn}:*" for arn in arns])


def journals(names: Names, groups: Sequence[str]) -> Document:
    """Return the permissions of instances in a remote account: only to write journals.

    These instances fetch the agent's code from the API.
    """
    return make_document(journal(names, groups))


def tls_only(bucket: str) -> Document:
    """Return a bucket policy that denies all requests without TLS, from anybody."""
    arns = [bucket_arn(bucket), bucket_arn(f"{bucket}/*")]
    unsafe = {"Bool": {"aws:SecureTransport": "false"}}
    return make_document(
        make_statement("TlsOnly", ["s3:*"], arns, unsafe, Effect="Deny", Principal={"AWS": "*"})
    )


def alarms(names: Names) -> Document:
    """Return the policy that lets this account's alarms and budgets publish to the topic."""
    services = {"Service": ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]}
    own = {"StringEquals": {"aws:SourceAccount": names.account}}
    return make_document(
        make_statement("Tell", ["sns:Publish"], [names.alarms_arn], own, Principal=services)
    )


def dead_letters(names: Names, rules: Sequence[str]) -> Document:
    """Return the queue policy that lets the EventBridge rules `rules` send undeliverable events."""
    arns = [names.rule_arn(rule) for rule in rules]
    return make_document(
        make_statement(
            "KeepEvents",
            ["sqs:SendMessage"],
            [names.dead_letters_arn],
            {"ArnEquals": {"aws:SourceArn": arns}},
            Principal={"Service": "events.amazonaws.com"},
        )
    )


def _rows(names: Names) -> list[Statement]:
    """Return the statements for reading and writing rows and for reading the index of due rows."""
    rows = make_statement("Rows", [*_READ_ROWS, *_WRITE_ROWS], [names.table_arn])
    due = make_statement("Due", ["dynamodb:Query"], [f"{names.table_arn}/index/due"])
    return [rows, due]


def _stream(names: Names) -> list[Statement]:
    """Return the statements for reading the table's stream and for sending to the dead letters."""
    # The stream's name contains the creation time, which is unknown here.
    actions = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    streams = [f"{names.table_arn}/stream/*"]
    read = make_statement("Stream", [f"dynamodb:{name}" for name in actions], streams)
    return [read, *_dead_letters(names)]


def _dead_letters(names: Names) -> list[Statement]:
    """Return a list of the statement for sending to the dead-letter queue."""
    return [make_statement("DeadLetters", ["sqs:SendMessage"], [names.dead_letters_arn])]


def _objects(sid: str, bucket: str, *actions: str, below: Sequence[str] = ("",)) -> list[Statement]:
    """Return statements that allow `actions` on keys below folders, and listing the bucket.

    `below` has the folders; "" stands for the whole bucket. The whole bucket may be
    listed, not only the folders. Without this permission, S3 would answer 403 instead of 404 for
    missing objects.
    """
    return [
        make_statement(sid, actions, [bucket_arn(f"{bucket}/{folder}*") for folder in below]),
        make_statement(f"{sid}List", ["s3:ListBucket"], [bucket_arn(bucket)]),
    ]
