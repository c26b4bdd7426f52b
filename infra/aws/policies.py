"""IAM policies of the stack's roles, as plain data built from names. Pure.

Launch permissions depend on the cluster's tag: a function can neither launch an instance without
this tag nor change an instance of another cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from control_plane.rows import fleet_rows
from infra.aws.names import INVOKED_BY_TICK, Names, bucket_arn
from infra.aws.settings import Network
from provisioner.clouds.provider import CLUSTER_TAG

Document = dict[str, Any]
Statement = dict[str, Any]
Condition = Mapping[str, Mapping[str, object]]

VERSION = "2012-10-17"
STORAGE_SECONDS_MAX = 3600
SESSION_MANAGER = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"

# A customer-managed key is used by DynamoDB and S3 with the caller's permissions, by EC2 with the
# launcher's, by EC2's spot market through a grant, and by CloudWatch through the key's own policy.
KEY_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
DISK_KEY_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
SPOT_GRANT = (
    "CreateGrant",
    "Decrypt",
    "DescribeKey",
    "Encrypt",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "ReEncryptFrom",
    "ReEncryptTo",
)
LOG_KEY_ACTIONS = (
    "kms:Decrypt*",
    "kms:Describe*",
    "kms:Encrypt*",
    "kms:GenerateDataKey*",
    "kms:ReEncrypt*",
)
_SPOT_ROLES = {"spot": "AWSServiceRoleForEC2Spot", "ec2fleet": "AWSServiceRoleForEC2Fleet"}

_READ_ROWS = ("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query")
# DynamoDB authorizes a transaction by the permissions of the single operations.
_WRITE_ROWS = ("dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem")


def service_trust(service: str) -> Document:
    """Return the trust policy of a role that an AWS service may assume."""
    return _document(make_statement("Trust", ["sts:AssumeRole"], Principal={"Service": service}))


def storage_trust(names: Names) -> Document:
    """Return the trust policy of the role for trials' storage: only the API may assume it.

    The API restricts each session to one trial.
    """
    return _document(
        make_statement("Trust", ["sts:AssumeRole"], Principal={"AWS": names.role_arn("api")})
    )


# The keys of checkpoints that users upload: epoch 0, which no run of a trial has.
UPLOADED = "*/*/0/*"


def api(names: Names) -> Document:
    """Return the API's permissions.

    The API may read and write rows, model code and logs, read checkpoints, upload users'
    checkpoints, and assume the role of trials' storage.
    """
    return _document(
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
    return _document(*_rows(names), *_stream(names))


def tick(names: Names, network: Network | None) -> Document:
    """Return the tick's permissions.

    The tick may read and write rows, read the stream and the configuration, store the code of
    agents, and invoke INVOKED_BY_TICK. Failed records may be sent to the dead-letter queue. The
    tick may manage this cluster's instances; see `_instances`.
    """
    return _document(
        *_rows(names),
        *_stream(names),
        *_objects("Objects", names.objects, "s3:GetObject", below="config/"),
        make_statement(
            "KeepAgentCode", ["s3:PutObject"], [bucket_arn(f"{names.objects}/agent-code/*")]
        ),
        make_statement(
            "Wake", ["lambda:InvokeFunction"], [*map(names.live_function_arn, INVOKED_BY_TICK)]
        ),
        *_instances(names, network),
    )


def launcher(names: Names, network: Network) -> Document:
    """Return the permissions of a launcher in another cloud.

    The launcher may manage this cluster's instances in `network`; see `_instances`.
    """
    return _document(*_instances(names, network))


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
    return _document(make_statement("Trust", action, condition=condition, Principal=who))


def spot_notice(names: Names) -> Document:
    """Return the permissions of `spot_notice`: write notices, read fleets and instances.

    Failed events may be sent to the dead-letter queue.
    """
    table = [names.table_arn]
    read = [fleet_rows.FLEET.partition, f"{fleet_rows.INSTANCE.partition}*"]
    return _document(
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


def checkpoint_gc(names: Names) -> Document:
    """Return the permissions of `checkpoint_gc`: rows, and reading and deleting in both buckets."""
    return _document(
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
    )


def suggest(names: Names) -> Document:
    """Return the permissions of `suggest`: reading and writing rows."""
    return _document(*_rows(names))


def storage(names: Names) -> Document:
    """Return the upper bound of a trial's permissions: read and write checkpoints, never delete."""
    return _document(
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
    return _document(make_statement("FetchCode", ["s3:GetObject"], code))


def logs(names: Names, function: str, *, is_traced: bool) -> list[Statement]:
    """Return the statements for writing a function's logs, and traces if `is_traced`."""
    group = names.log_group_arn(function)
    log = make_statement("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], [f"{group}:*"])
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
    return _document(journal(names, groups))


def key_use(names: Names, key: str) -> list[Statement]:
    """Return a list of the statement that lets a role use rows and objects encrypted with the key.

    `key` is the ARN of a customer-managed key, which DynamoDB and S3 use with their caller's
    permissions.
    """
    through = [f"{service}.{names.region}.amazonaws.com" for service in ("dynamodb", "s3")]
    condition = {"StringEquals": {"kms:ViaService": through}}
    return [make_statement("Key", KEY_ACTIONS, [key], condition)]


def disk_encryption(names: Names, key: str) -> list[Statement]:
    """Return the statements that let a launcher encrypt the instances' disks with the key."""
    through = {"kms:ViaService": f"ec2.{names.region}.amazonaws.com"}
    resource = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [
        make_statement("DiskKey", DISK_KEY_ACTIONS, [key], {"StringEquals": through}),
        make_statement("DiskKeyGrants", ["kms:CreateGrant"], [key], resource),
    ]


def log_key(names: Names) -> Statement:
    """Return the statement that a key's own policy needs before CloudWatch can encrypt logs.

    KMS grants cannot be made for CloudWatch, so only the key's policy can allow the use.
    """
    groups = f"arn:aws:logs:{names.region}:{names.account}:log-group:*{names.cluster}-*"
    context = {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}}
    service = {"Service": f"logs.{names.region}.amazonaws.com"}
    return make_statement("DetcloudLogs", LOG_KEY_ACTIONS, ["*"], context, Principal=service)


def tls_only(bucket: str) -> Document:
    """Return a bucket policy that denies all requests without TLS."""
    arns = [bucket_arn(bucket), bucket_arn(f"{bucket}/*")]
    unsafe = {"Bool": {"aws:SecureTransport": "false"}}
    return _document(
        make_statement("TlsOnly", ["s3:*"], arns, unsafe, Effect="Deny", Principal={"AWS": "*"})
    )


def alarms(names: Names) -> Document:
    """Return the policy that lets this account's alarms and budgets publish to the topic."""
    services = {"Service": ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]}
    own = {"StringEquals": {"aws:SourceAccount": names.account}}
    return _document(
        make_statement("Tell", ["sns:Publish"], [names.alarms_arn], own, Principal=services)
    )


def add_statements(document: Document, statements: Sequence[Statement]) -> Document:
    """Return a copy of the document with `statements` appended."""
    return {**document, "Statement": [*document["Statement"], *statements]}


def _document(*statements: Statement) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def make_statement(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str] = (),
    condition: Condition | None = None,
    **more: object,
) -> Statement:
    """Return a policy statement that allows the actions on the resources.

    `sid` is the statement's name. Empty `resources` and `condition` are left out. `more` adds
    keys such as Principal, or replaces Effect.
    """
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        **({"Resource": list(resources)} if resources else {}),
        **({"Condition": condition} if condition else {}),
        **more,
    }


def _rows(names: Names) -> list[Statement]:
    rows = make_statement("Rows", [*_READ_ROWS, *_WRITE_ROWS], [names.table_arn])
    due = make_statement("Due", ["dynamodb:Query"], [f"{names.table_arn}/index/due"])
    return [rows, due]


def _stream(names: Names) -> list[Statement]:
    # The stream's name contains the creation time, which is unknown here.
    actions = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    streams = [f"{names.table_arn}/stream/*"]
    read = make_statement("Stream", [f"dynamodb:{name}" for name in actions], streams)
    return [read, *_dead_letters(names)]


def _dead_letters(names: Names) -> list[Statement]:
    return [make_statement("DeadLetters", ["sqs:SendMessage"], [names.dead_letters_arn])]


def _objects(sid: str, bucket: str, *actions: str, below: str = "") -> list[Statement]:
    """Return statements that allow `actions` on keys starting with `below`, and listing the bucket.

    Without the permission to list, S3 would answer 403 instead of 404 for missing objects.
    """
    return [
        make_statement(sid, actions, [bucket_arn(f"{bucket}/{below}*")]),
        make_statement(f"{sid}List", ["s3:ListBucket"], [bucket_arn(bucket)]),
    ]


def _instances(names: Names, network: Network | None) -> list[Statement]:
    """Return the statements for managing the cluster's instances.

    - Launch and terminate instances with the cluster's tag, in `network`, or if None in the stack's
      own network.
    - Create, tag and delete the cluster's launch templates.
    - Read EC2's lists and prices, the consoles of the cluster's instances, and AWS's public
      parameters with the ids of images.
    - Pass the instances' role to EC2, and let AWS create its service-linked roles for spot
      instances and fleets.
    """
    requested = {"StringEquals": {f"aws:RequestTag/{CLUSTER_TAG}": names.cluster}}
    owned = {"StringEquals": {f"ec2:ResourceTag/{CLUSTER_TAG}": names.cluster}}
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    created = _arns(names, "fleet/*", "instance/*", "volume/*")
    templates = _arns(names, "launch-template/*")
    creators = {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}
    return [
        make_statement("Look", _DESCRIBE, ["*"]),
        make_statement("LaunchTagged", launch, created, requested),
        make_statement("LaunchFromOwnTemplates", launch, templates, owned),
        make_statement("LaunchWith", launch, _launch_resources(names)),
        _network_statement(names, network, launch, owned),
        make_statement("MakeTemplates", ["ec2:CreateLaunchTemplate"], templates, requested),
        make_statement(
            "TagWhatIsMade",
            ["ec2:CreateTags"],
            [*created, *templates],
            {"StringEquals": {**requested["StringEquals"], **creators}},
        ),
        make_statement(
            "End",
            ["ec2:DeleteLaunchTemplate", "ec2:TerminateInstances"],
            [*_arns(names, "instance/*"), *templates],
            owned,
        ),
        make_statement(
            # The console shows why an instance did not boot.
            "ReadConsoles",
            ["ec2:GetConsoleOutput"],
            _arns(names, "instance/*"),
            owned,
        ),
        make_statement(
            "GiveInstancesTheirRole",
            ["iam:PassRole"],
            [names.role_arn("instance")],
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        make_statement(
            "FindImages",
            ["ssm:GetParameters"],
            [f"arn:aws:ssm:{names.region}::parameter/aws/service/*"],
        ),
        *_spot_roles(names),
    ]


# Actions that accept no resource in a policy.
_DESCRIBE = (
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "pricing:GetProducts",
)


def _launch_resources(names: Names) -> list[str]:
    """Return ARN patterns of resources that a launch refers to, like images and key pairs.

    Using these resources neither costs anything nor changes them.
    """
    public = [f"arn:aws:ec2:{names.region}::{kind}/*" for kind in ("image", "snapshot")]
    own = (
        "key-pair/*",
        "network-interface/*",
        "spot-instances-request/*",
        f"placement-group/{names.cluster}-gangs-*",
    )
    reservations = f"arn:aws:resource-groups:{names.region}:{names.account}:group/*"
    shared = names.shared_ec2_arn("capacity-reservation/*")
    return [*public, *_arns(names, *own), shared, reservations]


def _network_statement(
    names: Names, network: Network | None, launch: Sequence[str], owned: Condition
) -> Statement:
    """Return the statement that allows `launch` in subnets and security groups.

    If `network` is None, allow all subnets and groups that fulfil the condition `owned`. Otherwise
    allow only the subnets and the group of `network`.
    """
    if network is None:
        return make_statement(
            "LaunchInOwnNetwork", launch, _arns(names, "security-group/*", "subnet/*"), owned
        )
    subnets = [f"subnet/{subnet}" for subnet in network.subnets.values()]
    places = [f"security-group/{network.security_group}", *subnets]
    arns = [names.shared_ec2_arn(place) for place in places]
    return make_statement("LaunchInGivenNetwork", launch, arns)


def _spot_roles(names: Names) -> list[Statement]:
    """Return the statement that allows creating EC2's service roles for spot and fleets.

    The account's first spot instance and its first fleet create these roles.
    """
    arns = [service_role_arn(names, service) for service in _SPOT_ROLES]
    return [make_statement("StartWithSpot", ["iam:CreateServiceLinkedRole"], arns)]


def service_role_arn(names: Names, service: str) -> str:
    """Return the ARN of the account's service role for EC2; `service` is `spot` or `ec2fleet`.

    Raise KeyError for any other service.
    """
    path = f"aws-service-role/{service}.amazonaws.com/{_SPOT_ROLES[service]}"
    return f"arn:aws:iam::{names.account}:role/{path}"


def _arns(names: Names, *resources: str) -> list[str]:
    return [names.ec2_arn(resource) for resource in resources]
