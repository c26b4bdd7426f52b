"""Who may do what, as policy documents: plain data from plain names.

Whatever launches is bound to the cluster's tag: a function can neither make an instance without it
nor touch one of another cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from infra.aws.names import WOKEN, Names, bucket_arn
from infra.aws.settings import Network
from provisioner.clouds.provider import CLUSTER_TAG

Document = dict[str, Any]
Statement = dict[str, Any]
Condition = Mapping[str, Mapping[str, object]]

VERSION = "2012-10-17"
STORAGE_SECONDS_MAX = 3600

_ROWS_READ = ("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query")
# What a transaction may do is what its operations may do.
_ROWS_WRITTEN = ("dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem")


def trusted_by_service(service: str) -> Document:
    """Who may have a role: the service, for what it runs."""
    return _document(_statement("Trust", ["sts:AssumeRole"], Principal={"Service": service}))


def storage_trust(names: Names) -> Document:
    """Who may have the role of trials' storage: the API, which narrows it for each trial."""
    return _document(
        _statement("Trust", ["sts:AssumeRole"], Principal={"AWS": names.role_arn("api")})
    )


def api(names: Names) -> Document:
    """Rows, model code and logs, what checkpoints are there, and storage for trials."""
    return _document(
        *_rows(names),
        *_objects(
            "Objects", names.objects, "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"
        ),
        *_objects("Checkpoints", names.checkpoints, "s3:GetObject"),
        _statement("VendStorage", ["sts:AssumeRole"], [names.role_arn("storage")]),
    )


def advance(names: Names) -> Document:
    """Rows, and the stream behind which it is."""
    return _document(*_rows(names), *_stream(names))


def tick(names: Names, network: Network | None) -> Document:
    """Rows, the stream, instances of this cluster, and whom it wakes."""
    return _document(
        *_rows(names),
        *_stream(names),
        *_objects("Objects", names.objects, "s3:GetObject", below="config/"),
        _statement("Wake", ["lambda:InvokeFunction"], [*map(names.function_arn, WOKEN)]),
        *_instances(names, network),
    )


def spot_notice(names: Names) -> Document:
    """The notices it writes, and the books of instances, by their fleets."""
    table = [names.table_arn]
    return _document(
        _statement(
            "WriteNotices",
            ["dynamodb:PutItem"],
            table,
            {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["notices"]}},
        ),
        _statement(
            "ReadBooks",
            ["dynamodb:GetItem", "dynamodb:Query"],
            table,
            {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["fleets", "instances#*"]}},
        ),
        *_dead_letters(names),
    )


def checkpoint_gc(names: Names) -> Document:
    """Rows, and the end of what is stored."""
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
        _statement("Uploads", ["s3:ListBucketMultipartUploads"], [bucket_arn(names.checkpoints)]),
    )


def suggest(names: Names) -> Document:
    """Rows: those of searches, and of whom an answer concerns."""
    return _document(*_rows(names))


def storage(names: Names) -> Document:
    """The most that a trial may be given: to read and write checkpoints, never to delete them."""
    return _document(
        *_objects(
            "Checkpoints",
            names.checkpoints,
            "s3:GetObject",
            "s3:PutObject",
            "s3:AbortMultipartUpload",
        )
    )


def logs(names: Names, function: str, *, is_traced: bool) -> list[Statement]:
    """What each function needs to be heard."""
    group = names.log_group_arn(function)
    said = _statement("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], [f"{group}:*"])
    # Neither action is about a resource.
    actions = ["xray:PutTelemetryRecords", "xray:PutTraceSegments"]
    return [said, *([_statement("Trace", actions, ["*"])] if is_traced else [])]


def tls_only(bucket: str) -> Document:
    """Nobody speaks to the bucket where others can listen."""
    arns = [bucket_arn(bucket), bucket_arn(f"{bucket}/*")]
    unsafe = {"Bool": {"aws:SecureTransport": "false"}}
    return _document(
        _statement("TlsOnly", ["s3:*"], arns, unsafe, Effect="Deny", Principal={"AWS": "*"})
    )


def alarms(names: Names) -> Document:
    """Who may tell the alarms' topic: this account's alarms and budgets."""
    services = {"Service": ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]}
    own = {"StringEquals": {"aws:SourceAccount": names.account}}
    return _document(
        _statement("Tell", ["sns:Publish"], [names.alarms_arn], own, Principal=services)
    )


def with_statements(document: Document, more: Sequence[Statement]) -> Document:
    """The document with more that is allowed."""
    return {**document, "Statement": [*document["Statement"], *more]}


def _document(*statements: Statement) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def _statement(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str] = (),
    condition: Condition | None = None,
    **more: object,
) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        **({"Resource": list(resources)} if resources else {}),
        **({"Condition": condition} if condition else {}),
        **more,
    }


def _rows(names: Names) -> list[Statement]:
    rows = _statement("Rows", [*_ROWS_READ, *_ROWS_WRITTEN], [names.table_arn])
    due = _statement("Due", ["dynamodb:Query"], [f"{names.table_arn}/index/due"])
    return [rows, due]


def _stream(names: Names) -> list[Statement]:
    # A stream is named by the time at which it began.
    actions = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    streams = [f"{names.table_arn}/stream/*"]
    read = _statement("Stream", [f"dynamodb:{name}" for name in actions], streams)
    return [read, *_dead_letters(names)]


def _dead_letters(names: Names) -> list[Statement]:
    return [_statement("DeadLetters", ["sqs:SendMessage"], [names.dead_letters_arn])]


def _objects(sid: str, bucket: str, *actions: str, below: str = "") -> list[Statement]:
    """Objects of a bucket. Who may not list it hears `forbidden` of whatever is missing."""
    return [
        _statement(sid, actions, [bucket_arn(f"{bucket}/{below}*")]),
        _statement(f"{sid}List", ["s3:ListBucket"], [bucket_arn(bucket)]),
    ]


def _instances(names: Names, network: Network | None) -> list[Statement]:
    asked = {"StringEquals": {f"aws:RequestTag/{CLUSTER_TAG}": names.cluster}}
    owned = {"StringEquals": {f"ec2:ResourceTag/{CLUSTER_TAG}": names.cluster}}
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    made = _arns(names, "fleet/*", "instance/*", "volume/*")
    templates = _arns(names, "launch-template/*")
    creators = {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}
    return [
        _statement("Look", _LOOKS, ["*"]),
        _statement("LaunchTagged", launch, made, asked),
        _statement("LaunchFromOwnTemplates", launch, templates, owned),
        _statement("LaunchWith", launch, _used(names)),
        _place(names, network, launch, owned),
        _statement("MakeTemplates", ["ec2:CreateLaunchTemplate"], templates, asked),
        _statement(
            "TagWhatIsMade",
            ["ec2:CreateTags"],
            [*made, *templates],
            {"StringEquals": {**asked["StringEquals"], **creators}},
        ),
        _statement(
            "End",
            ["ec2:DeleteLaunchTemplate", "ec2:TerminateInstances"],
            [*_arns(names, "instance/*"), *templates],
            owned,
        ),
        _statement(
            "GiveInstancesTheirRole",
            ["iam:PassRole"],
            [names.role_arn("instance")],
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        _statement(
            "FindImages",
            ["ssm:GetParameters"],
            [f"arn:aws:ssm:{names.region}::parameter/aws/service/*"],
        ),
        *_spot_roles(names),
    ]


# None of them is about a resource.
_LOOKS = (
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
)


def _used(names: Names) -> list[str]:
    """What an instance is made with, which costs and changes nothing by itself."""
    public = [f"arn:aws:ec2:{names.region}::{kind}/*" for kind in ("image", "snapshot")]
    own = ("key-pair/*", "network-interface/*", "spot-instances-request/*")
    return [*public, *_arns(names, *own)]


def _place(
    names: Names, network: Network | None, launch: Sequence[str], owned: Condition
) -> Statement:
    """The subnets and the security group that instances may be in: the stack's, by their tag."""
    if network is None:
        return _statement(
            "LaunchInOwnNetwork", launch, _arns(names, "security-group/*", "subnet/*"), owned
        )
    subnets = [f"subnet/{subnet}" for subnet in network.subnets.values()]
    places = _arns(names, f"security-group/{network.security_group}", *subnets)
    return _statement("LaunchInGivenNetwork", launch, places)


def _spot_roles(names: Names) -> list[Statement]:
    """The account's first spot instance, or fleet, makes the role of its service."""
    roles = {"spot": "AWSServiceRoleForEC2Spot", "ec2fleet": "AWSServiceRoleForEC2Fleet"}
    arns = [
        f"arn:aws:iam::{names.account}:role/aws-service-role/{service}.amazonaws.com/{role}"
        for service, role in roles.items()
    ]
    return [_statement("StartWithSpot", ["iam:CreateServiceLinkedRole"], arns)]


def _arns(names: Names, *resources: str) -> list[str]:
    return [names.ec2_arn(resource) for resource in resources]
