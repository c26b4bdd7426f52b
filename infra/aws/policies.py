"""Permissions as policy documents: plain data from plain names.

Whatever launches is bound to the cluster's tag: a function can neither make an instance without it
nor touch one of another cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from infra.aws.names import INVOKED_BY_TICK, Names, bucket_arn
from infra.aws.settings import Network
from provisioner.clouds.provider import CLUSTER_TAG

Document = dict[str, Any]
Statement = dict[str, Any]
Condition = Mapping[str, Mapping[str, object]]

VERSION = "2012-10-17"
STORAGE_SECONDS_MAX = 3600
SESSION_MANAGER = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"

# With a customer's own key: DynamoDB and S3 use it in the name of their caller, EC2 in that of the
# launcher, EC2's spot market by a grant, and CloudWatch by the key's policy.
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
# A transaction needs the permissions of its operations.
_WRITE_ROWS = ("dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem")


def service_trust(service: str) -> Document:
    """Return the trust policy of a role that an AWS service may assume."""
    return _document(make_statement("Trust", ["sts:AssumeRole"], Principal={"Service": service}))


def storage_trust(names: Names) -> Document:
    """Return the trust of the role of trials' storage: the API's, which narrows it for each
    trial.
    """
    return _document(
        make_statement("Trust", ["sts:AssumeRole"], Principal={"AWS": names.role_arn("api")})
    )


# The keys of what users upload: those of the epoch that no run of a trial has.
UPLOADED = "*/*/0/*"


def api(names: Names) -> Document:
    """Return the API's permissions: rows, model code and logs, reading checkpoints, what users
    upload as such, and storage for trials.
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
    """Return the permissions of `advance`: rows and the stream."""
    return _document(*_rows(names), *_stream(names))


def tick(names: Names, network: Network | None) -> Document:
    """Return the tick's permissions: rows, the stream, instances of this cluster, and the functions
    that it invokes.
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
    """Return the permissions of what launches from another cloud: instances of this cluster."""
    return _document(*_instances(names, network))


def google_trust(subject: str, audience: str) -> Document:
    """Return the trust of a role in one service account of Google's, by its number, with identity
    tokens that were made for an audience. What AWS calls `aud` is the account, where Google says
    who asked for a token; `oaud` is the audience.
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
    """Return the permissions of `spot_notice`: to write notices, and look for rows."""
    table = [names.table_arn]
    return _document(
        make_statement(
            "WriteNotices",
            ["dynamodb:PutItem"],
            table,
            {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["notices"]}},
        ),
        make_statement(
            "ReadBooks",
            ["dynamodb:GetItem", "dynamodb:Query"],
            table,
            {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["fleets", "instances#*"]}},
        ),
        *_dead_letters(names),
    )


def checkpoint_gc(names: Names) -> Document:
    """Return the permissions of `checkpoint_gc`: rows, and deleting stored objects."""
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
    """Return the permissions of `suggest`: rows."""
    return _document(*_rows(names))


def storage(names: Names) -> Document:
    """Return all that a trial may be allowed: to read and write checkpoints, never to delete
    them.
    """
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
    """Return what instances may do: fetch the agent's code. Everything else they ask of the API."""
    code = [bucket_arn(f"{names.objects}/agent-code/*")]
    return _document(make_statement("FetchCode", ["s3:GetObject"], code))


def logs(names: Names, function: str, *, is_traced: bool) -> list[Statement]:
    """Return what a function needs to write logs and traces."""
    group = names.log_group_arn(function)
    log = make_statement("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], [f"{group}:*"])
    # Neither action is about a resource.
    actions = ["xray:PutTelemetryRecords", "xray:PutTraceSegments"]
    return [log, *([make_statement("Trace", actions, ["*"])] if is_traced else [])]


def journal(names: Names, groups: Sequence[str]) -> Statement:
    """Return what instances need to write the journals of their agents to these groups."""
    arns = [names.any_log_group_arn(group) for group in groups]
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    return make_statement("Journal", actions, [f"{arn}:*" for arn in arns])


def journals(names: Names, groups: Sequence[str]) -> Document:
    """Return what instances that fetch their code elsewhere may do: write journals."""
    return _document(journal(names, groups))


def key_use(names: Names, key: str) -> list[Statement]:
    """Return what a role needs for rows and objects that a key of one's own encrypts, which the
    table and the buckets use in the caller's name.
    """
    through = [f"{service}.{names.region}.amazonaws.com" for service in ("dynamodb", "s3")]
    condition = {"StringEquals": {"kms:ViaService": through}}
    return [make_statement("Key", KEY_ACTIONS, [key], condition)]


def disk_encryption(names: Names, key: str) -> list[Statement]:
    """Return what the launcher of instances needs for disks that the key encrypts."""
    through = {"kms:ViaService": f"ec2.{names.region}.amazonaws.com"}
    resource = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [
        make_statement("DiskKey", DISK_KEY_ACTIONS, [key], {"StringEquals": through}),
        make_statement("DiskKeyGrants", ["kms:CreateGrant"], [key], resource),
    ]


def log_key(names: Names) -> Statement:
    """Return the statement that the policy of a key needs before logs can be encrypted with it: a
    service of AWS that no grant can be made for.
    """
    groups = f"arn:aws:logs:{names.region}:{names.account}:log-group:*{names.cluster}-*"
    context = {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}}
    service = {"Service": f"logs.{names.region}.amazonaws.com"}
    return make_statement("DetcloudLogs", LOG_KEY_ACTIONS, ["*"], context, Principal=service)


def tls_only(bucket: str) -> Document:
    """Return a policy that denies requests to the bucket without TLS."""
    arns = [bucket_arn(bucket), bucket_arn(f"{bucket}/*")]
    unsafe = {"Bool": {"aws:SecureTransport": "false"}}
    return _document(
        make_statement("TlsOnly", ["s3:*"], arns, unsafe, Effect="Deny", Principal={"AWS": "*"})
    )


def alarms(names: Names) -> Document:
    """Return the policy of the alarms' topic: this account's alarms and budgets may publish."""
    services = {"Service": ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]}
    own = {"StringEquals": {"aws:SourceAccount": names.account}}
    return _document(
        make_statement("Tell", ["sns:Publish"], [names.alarms_arn], own, Principal=services)
    )


def add_statements(document: Document, statements: Sequence[Statement]) -> Document:
    """Return the document with more statements."""
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
    """Return a statement that allows the actions, unless `more` says otherwise."""
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
    # A stream is named by the time at which it began.
    actions = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    streams = [f"{names.table_arn}/stream/*"]
    read = make_statement("Stream", [f"dynamodb:{name}" for name in actions], streams)
    return [read, *_dead_letters(names)]


def _dead_letters(names: Names) -> list[Statement]:
    return [make_statement("DeadLetters", ["sqs:SendMessage"], [names.dead_letters_arn])]


def _objects(sid: str, bucket: str, *actions: str, below: str = "") -> list[Statement]:
    """Return statements on objects of a bucket, and on listing it: without that S3 answers
    `forbidden` for an object that is missing.
    """
    return [
        make_statement(sid, actions, [bucket_arn(f"{bucket}/{below}*")]),
        make_statement(f"{sid}List", ["s3:ListBucket"], [bucket_arn(bucket)]),
    ]


def _instances(names: Names, network: Network | None) -> list[Statement]:
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
            # What one wrote whose boot failed.
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


# Actions that no resource can be named for.
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
    """Return the resources that an instance is launched with, which cost and change nothing."""
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
    """Return the statement on the subnets and security group that instances may be in: the stack's
    own, by their tag, or those of `network`.
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
    """Return the statement on the roles that the account's first spot instance, or fleet,
    creates.
    """
    arns = [service_role_arn(names, service) for service in _SPOT_ROLES]
    return [make_statement("StartWithSpot", ["iam:CreateServiceLinkedRole"], arns)]


def service_role_arn(names: Names, service: str) -> str:
    """Return the ARN of the role of EC2's spot market, `spot`, or of its fleets, `ec2fleet`."""
    path = f"aws-service-role/{service}.amazonaws.com/{_SPOT_ROLES[service]}"
    return f"arn:aws:iam::{names.account}:role/{path}"


def _arns(names: Names, *resources: str) -> list[str]:
    return [names.ec2_arn(resource) for resource in resources]
