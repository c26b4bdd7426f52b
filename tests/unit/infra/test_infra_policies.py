"""The functions' policies on AWS: the exact statements and their combined effect."""

from typing import Any

import pytest

from control_plane.agents.storage_credentials import StorageAccess
from control_plane.aws.storage_credentials import session_policy
from control_plane.checkpoint_gc.upload_sessions import UPLOADS_EPOCH
from control_plane.fleet.records import IntentRow, Market, Offering
from infra.aws import policies
from infra.aws.names import ROLE_FUNCTIONS, Names
from infra.aws.settings import Network
from provisioner.clouds.aws.ec2_api import Ec2Api
from provisioner.clouds.aws.launch_request import Ec2Settings, Subnet, fleet_request
from tests.emulators.policy_reader import allows

NAMES = Names("vision", "111111111111", "us-east-1")
OTHER = Names("speech", "111111111111", "us-east-1")
NETWORK = Network({"us-east-1a": "subnet-a"}, "sg-1")
EC2 = "arn:aws:ec2:us-east-1:111111111111"
TAG = "detcloud-cluster"
ASKED = {f"aws:RequestTag/{TAG}": "detcloud-vision"}
OWNED = {f"ec2:ResourceTag/{TAG}": "detcloud-vision"}
OTHERS = {f"ec2:ResourceTag/{TAG}": "detcloud-speech"}

ROWS = {
    "Rows": "dynamodb:BatchGetItem dynamodb:GetItem dynamodb:Query dynamodb:ConditionCheckItem "
    "dynamodb:DeleteItem dynamodb:PutItem",
    "Due": "dynamodb:Query",
}
STREAM = {
    "Stream": "dynamodb:DescribeStream dynamodb:GetRecords dynamodb:GetShardIterator "
    "dynamodb:ListStreams",
    "DeadLetters": "sqs:SendMessage",
}
LAUNCH = "ec2:CreateFleet ec2:RunInstances"

DOCUMENTS = {
    "api": policies.api(NAMES),
    "advance": policies.advance(NAMES),
    "tick": policies.tick(NAMES, None),
    "tick in a given network": policies.tick(NAMES, NETWORK),
    "spot_notice": policies.spot_notice(NAMES),
    "checkpoint_gc": policies.checkpoint_gc(NAMES),
    "purging checkpoint_gc": policies.checkpoint_gc(NAMES, purges=True),
    "suggest": policies.suggest(NAMES),
    "storage": policies.storage(NAMES),
    "logs": {"Statement": policies.logs(NAMES, ["api"], is_traced=True)},
}
TICK = {
    **ROWS,
    **STREAM,
    "Objects": "s3:GetObject",
    "ObjectsList": "s3:ListBucket",
    "KeepAgentCode": "s3:PutObject",
    "Wake": "lambda:InvokeFunction",
    "NotifyOfAlarms": "sns:Publish",
    "Look": "ec2:DescribeCapacityReservations ec2:DescribeImages ec2:DescribeInstanceTypes "
    "ec2:DescribeInstances "
    "ec2:DescribeLaunchTemplates ec2:DescribeSpotInstanceRequests ec2:DescribeSpotPriceHistory "
    "ec2:DescribeSubnets pricing:GetProducts",
    "LaunchTagged": LAUNCH,
    "LaunchFromOwnTemplates": LAUNCH,
    "LaunchWith": LAUNCH,
    "MakeTemplates": "ec2:CreateLaunchTemplate",
    "TagWhatIsMade": "ec2:CreateTags",
    "End": "ec2:DeleteLaunchTemplate ec2:TerminateInstances",
    "ReadConsoles": "ec2:GetConsoleOutput",
    "GiveInstancesTheirRole": "iam:PassRole",
    "FindImages": "ssm:GetParameters",
    "StartWithSpot": "iam:CreateServiceLinkedRole",
}
COLLECTOR = {
    **ROWS,
    "Objects": "s3:GetObject s3:DeleteObject",
    "ObjectsList": "s3:ListBucket",
    "Checkpoints": "s3:GetObject s3:DeleteObject s3:AbortMultipartUpload",
    "CheckpointsList": "s3:ListBucket",
    "Uploads": "s3:ListBucketMultipartUploads",
}
STATEMENTS = {
    "api": {
        **ROWS,
        "Objects": "s3:GetObject s3:PutObject s3:AbortMultipartUpload",
        "ObjectsList": "s3:ListBucket",
        "Checkpoints": "s3:GetObject",
        "CheckpointsList": "s3:ListBucket",
        "StoreUploads": "s3:PutObject s3:AbortMultipartUpload s3:ListMultipartUploadParts",
        "Uploads": "s3:ListBucketMultipartUploads",
        "VendStorage": "sts:AssumeRole",
    },
    "advance": {**ROWS, **STREAM},
    "tick": {**TICK, "LaunchInOwnNetwork": LAUNCH},
    "tick in a given network": {**TICK, "LaunchInGivenNetwork": LAUNCH},
    "spot_notice": {
        "WriteNotices": "dynamodb:PutItem",
        "ReadBooks": "dynamodb:GetItem dynamodb:Query",
        "DeadLetters": "sqs:SendMessage",
    },
    "checkpoint_gc": COLLECTOR,
    "purging checkpoint_gc": {
        **COLLECTOR,
        "Purge": "s3:DeleteObjectVersion",
        "PurgeList": "s3:ListBucketVersions",
    },
    "suggest": ROWS,
    "storage": {
        "Checkpoints": "s3:GetObject s3:PutObject s3:AbortMultipartUpload",
        "CheckpointsList": "s3:ListBucket",
    },
    "logs": {
        "Log": "logs:CreateLogStream logs:PutLogEvents",
        "Trace": "xray:PutTelemetryRecords xray:PutTraceSegments",
    },
}
# Statements about actions that have no nameable resource.
ABOUT_NOTHING = {"Look", "Trace"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_statement_actions_are_exact(name: str) -> None:
    statements = DOCUMENTS[name]["Statement"]
    actions = {statement["Sid"]: " ".join(statement["Action"]) for statement in statements}
    assert actions == STATEMENTS[name]
    assert len(actions) == len(statements)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_wildcards_are_limited_to_resources_of_unnamed_actions(name: str) -> None:
    for statement in DOCUMENTS[name]["Statement"]:
        assert not any("*" in action for action in statement["Action"]), statement
        assert ("*" in statement["Resource"]) == (statement["Sid"] in ABOUT_NOTHING), statement


@pytest.mark.parametrize("name", DOCUMENTS)
def test_all_resources_belong_to_the_team_or_need_the_tag(name: str) -> None:
    public = {"LaunchWith", "FindImages", "StartWithSpot", *ABOUT_NOTHING}
    for statement in DOCUMENTS[name]["Statement"]:
        bound = "detcloud-vision" in str(statement.get("Condition"))
        given = all(arn.endswith(("/subnet-a", "/sg-1")) for arn in statement["Resource"])
        named = all("detcloud-vision" in arn for arn in statement["Resource"])
        assert bound or named or given or statement["Sid"] in public, statement


def test_launches_need_the_clusters_tag() -> None:
    tick = policies.tick(NAMES, None)
    for action in LAUNCH.split():
        for made in ("instance/*", "volume/*", "fleet/*"):
            assert allows(tick, action, f"{EC2}:{made}", ASKED)
            assert not allows(tick, action, f"{EC2}:{made}")
            other = {f"aws:RequestTag/{TAG}": "detcloud-speech"}
            assert not allows(tick, action, f"{EC2}:{made}", other)


def test_tick_may_not_terminate_foreign_instances() -> None:
    tick = policies.tick(NAMES, None)
    instance = f"{EC2}:instance/i-1"
    assert allows(tick, "ec2:TerminateInstances", instance, OWNED)
    assert not allows(tick, "ec2:TerminateInstances", instance, OTHERS)
    assert not allows(tick, "ec2:TerminateInstances", instance)


def test_tags_may_be_set_only_at_creation() -> None:
    tick = policies.tick(NAMES, None)
    instance = f"{EC2}:instance/i-1"
    for context in (OWNED, OTHERS, ASKED, {**OWNED, **ASKED}, {}):
        assert not allows(tick, "ec2:CreateTags", instance, context)
    created = {**ASKED, "ec2:CreateAction": "RunInstances"}
    assert allows(tick, "ec2:CreateTags", instance, created)


def test_tick_may_not_use_or_delete_foreign_templates() -> None:
    tick = policies.tick(NAMES, None)
    template = f"{EC2}:launch-template/lt-1"
    for action in ("ec2:RunInstances", "ec2:CreateFleet", "ec2:DeleteLaunchTemplate"):
        assert allows(tick, action, template, OWNED)
        assert not allows(tick, action, template, OTHERS)
    assert allows(tick, "ec2:CreateLaunchTemplate", template, ASKED)
    assert not allows(tick, "ec2:CreateLaunchTemplate", template)


@pytest.mark.parametrize(
    ("network", "place", "context", "is_allowed"),
    [
        (None, "subnet/subnet-a", OWNED, True),
        (None, "subnet/subnet-a", OTHERS, False),
        (None, "security-group/sg-1", {}, False),
        (NETWORK, "subnet/subnet-a", {}, True),
        (NETWORK, "security-group/sg-1", {}, True),
        (NETWORK, "subnet/subnet-b", OWNED, False),
        (NETWORK, "security-group/sg-2", OWNED, False),
    ],
)
def test_launches_are_limited_to_the_teams_network(
    network: Network | None, place: str, context: dict[str, str], is_allowed: bool
) -> None:
    tick = policies.tick(NAMES, network)
    assert allows(tick, "ec2:RunInstances", f"{EC2}:{place}", context) is is_allowed


def test_shared_subnets_and_reservations_may_be_used() -> None:
    # A company's subnets and reservations often belong to a separate account. Ids of subnets and
    # reservations are globally unique, and the owner decides about sharing.
    theirs = "arn:aws:ec2:us-east-1:222222222222"
    tick = policies.tick(NAMES, NETWORK, ["cr-1"])
    for place in ("subnet/subnet-a", "security-group/sg-1", "capacity-reservation/cr-1"):
        assert allows(tick, "ec2:RunInstances", f"{theirs}:{place}")
        assert allows(tick, "ec2:CreateFleet", f"{theirs}:{place}")
    for place in ("subnet/subnet-b", "instance/i-1", "key-pair/ops"):
        assert not allows(tick, "ec2:RunInstances", f"{theirs}:{place}", OWNED)


def test_launches_use_only_the_reservations_of_the_pools() -> None:
    group = "arn:aws:resource-groups:us-east-1:111111111111:group/gpus"
    reserved = f"{EC2}:capacity-reservation/cr-"
    for given, may_use in (
        ((), {"1": False, "2": False}),
        (("cr-1",), {"1": True, "2": False}),
        # EC2 chooses a reservation from a group.
        ((group,), {"1": True, "2": True}),
    ):
        tick = policies.tick(NAMES, None, given)
        for name, is_allowed in may_use.items():
            assert allows(tick, "ec2:RunInstances", f"{reserved}{name}") is is_allowed
        assert allows(tick, "ec2:RunInstances", group) is (group in given)


def test_tick_ec2_actions_match_the_providers_calls() -> None:
    called = {_camel(name) for name in vars(Ec2Api) if not name.startswith("_")}
    statements = policies.tick(NAMES, None)["Statement"]
    actions = {
        name for statement in statements for name in statement["Action"] if name.startswith("ec2:")
    }
    # CreateFleet needs RunInstances, and creation with tags needs CreateTags.
    assert actions == {f"ec2:{name}" for name in called | {"RunInstances", "CreateTags"}}


def _camel(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))


def test_launch_request_tags_all_bound_resources() -> None:
    offering = Offering("g5.xlarge/spot", "g5.xlarge", "", Market.SPOT, 1)
    row = IntentRow("1", NAMES.cluster, "gpus", offering, 1, "token", 0)
    request = fleet_request(row, Ec2Settings(), "template", [Subnet("subnet-a", "us-east-1a")])
    tagged = {
        tag_specification["ResourceType"]
        for tag_specification in request["TagSpecifications"]
        if {"Key": TAG, "Value": "detcloud-vision"} in tag_specification["Tags"]
    }
    [bound] = [
        item for item in policies.tick(NAMES, None)["Statement"] if item["Sid"] == "LaunchTagged"
    ]
    assert {f"{EC2}:{kind}/*" for kind in tagged} == set(bound["Resource"])


def test_storage_role_covers_the_trial_session_policy() -> None:
    most = policies.storage(NAMES)
    access = StorageAccess(NAMES.checkpoints, ("1/2/3", "tensorboard/1/2"), ("1/2", "4/5"))
    for statement in session_policy(access)["Statement"]:
        actions, arns = statement["Action"], statement["Resource"]
        for action in [actions] if isinstance(actions, str) else actions:
            for arn in [arns] if isinstance(arns, str) else arns:
                assert allows(most, action, arn)


def test_tick_passes_only_the_instance_role_to_ec2() -> None:
    tick = policies.tick(NAMES, None)
    to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert allows(tick, "iam:PassRole", NAMES.role_arn("instance"), to_ec2)
    assert not allows(tick, "iam:PassRole", NAMES.role_arn("instance"))
    for role in (*ROLE_FUNCTIONS, "storage"):
        assert not allows(tick, "iam:PassRole", NAMES.role_arn(role), to_ec2)


def test_tick_reads_the_configuration_and_model_code() -> None:
    [reads] = [one for one in policies.tick(NAMES, None)["Statement"] if one["Sid"] == "Objects"]
    bucket = f"arn:aws:s3:::{NAMES.objects}"
    assert reads["Resource"] == [f"{bucket}/config/*", f"{bucket}/model-code/*"]


def test_spot_notice_may_only_write_notices() -> None:
    notice = policies.spot_notice(NAMES)

    def may(action: str, *keys: str) -> bool:
        return allows(notice, f"dynamodb:{action}", NAMES.table_arn, {"dynamodb:LeadingKeys": keys})

    assert may("PutItem", "notices")
    assert may("Query", "fleets")
    assert may("GetItem", "instances#gpus")
    assert not may("Query", "past-instances#gpus")
    assert not may("PutItem", "notices", "experiment#1")
    assert not may("PutItem", "instances#gpus")
    assert not may("GetItem", "experiment#1")
    assert not may("DeleteItem", "notices")


def test_api_may_write_uploads_but_no_trial_checkpoints() -> None:
    api, bucket = policies.api(NAMES), f"arn:aws:s3:::{NAMES.checkpoints}"
    assert allows(api, "s3:PutObject", f"{bucket}/3/4/{UPLOADS_EPOCH}/uuid/deep/weights")
    assert not allows(api, "s3:PutObject", f"{bucket}/3/4/1/uuid/weights")
    assert not allows(api, "s3:DeleteObject", f"{bucket}/3/4/{UPLOADS_EPOCH}/uuid/weights")


def test_trial_storage_may_not_delete_checkpoints() -> None:
    storage = policies.storage(NAMES)
    checkpoint = f"arn:aws:s3:::{NAMES.checkpoints}/1/2/3/file"
    assert allows(storage, "s3:PutObject", checkpoint)
    assert not allows(storage, "s3:DeleteObject", checkpoint)
    assert not allows(storage, "s3:GetObject", f"arn:aws:s3:::{NAMES.objects}/models/1")
    assert not allows(storage, "s3:GetObject", f"arn:aws:s3:::{OTHER.checkpoints}/1/2/3/file")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_functions_reach_no_foreign_resources(name: str) -> None:
    document = DOCUMENTS[name]
    reached = [
        ("dynamodb:PutItem", OTHER.table_arn),
        ("dynamodb:GetRecords", f"{OTHER.table_arn}/stream/1"),
        ("s3:GetObject", f"arn:aws:s3:::{OTHER.objects}/config/cluster.yaml"),
        ("s3:ListBucket", f"arn:aws:s3:::{OTHER.checkpoints}"),
        ("sts:AssumeRole", OTHER.role_arn("storage")),
        ("lambda:InvokeFunction", OTHER.function_arn("checkpoint_gc")),
        ("sqs:SendMessage", OTHER.dead_letters_arn),
        ("sns:Publish", OTHER.alarms_arn),
        ("logs:PutLogEvents", f"{OTHER.log_group_arn('api')}:log-stream:1"),
    ]
    assert [what for what in reached if allows(document, *what)] == []


def principals(document: dict[str, Any]) -> list[Any]:
    return [statement["Principal"] for statement in document["Statement"]]


def test_role_trusts_name_the_right_principals() -> None:
    assert principals(policies.storage_trust(NAMES)) == [{"AWS": NAMES.role_arn("api")}]
    trust = policies.service_trust("lambda.amazonaws.com")
    assert principals(trust) == [{"Service": "lambda.amazonaws.com"}]


def test_bucket_policy_refuses_requests_without_tls() -> None:
    [statement] = policies.tls_only("b")["Statement"]
    assert statement == {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": {"AWS": "*"},
        "Action": ["s3:*"],
        "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def test_topic_accepts_only_alarms_of_the_own_account() -> None:
    document = policies.alarms(NAMES)
    own, other = {"aws:SourceAccount": "111111111111"}, {"aws:SourceAccount": "222222222222"}
    assert allows(document, "sns:Publish", NAMES.alarms_arn, own)
    assert not allows(document, "sns:Publish", NAMES.alarms_arn, other)
