"""A team's stack on the emulator: the resources match the request, and the API answers."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ParamValidationError
from pulumi_aws import iam, kms, sqs

from control_plane.alarms.notifications import AlarmNotification
from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.state.table import Expect, Key, Put
from infra.aws.events import INTENTS, MAIL
from infra.aws.program import run
from lambdas.aws.alarm_topic import SnsNotifier
from tests.emulators.materialise import EmulatorMaker, materialise
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.integration.team_stack import team_config
from tests.patience import ANSWER_SECONDS_MAX, poll_until

ARRIVES_SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def outputs(aws: Ministack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return materialise(
        run, "vision", team_config(tmp_path_factory.mktemp("team")), EmulatorMaker(aws)
    )


def test_table_has_the_definition_that_the_state_needs(
    aws: Ministack, outputs: dict[str, Any]
) -> None:
    dynamodb = aws.client("dynamodb")
    table = dynamodb.describe_table(TableName=outputs["table"])["Table"]
    wanted = table_definition(outputs["table"])
    assert table["KeySchema"] == wanted["KeySchema"]
    assert table["StreamSpecification"] == wanted["StreamSpecification"]
    assert table["AttributeDefinitions"] == wanted["AttributeDefinitions"]
    [index], [asked] = table["GlobalSecondaryIndexes"], wanted["GlobalSecondaryIndexes"]
    assert {name: index[name] for name in asked} == asked
    assert table["BillingModeSummary"]["BillingMode"] == wanted["BillingMode"]


def test_stream_of_the_functions_is_filtered(aws: Ministack, outputs: dict[str, Any]) -> None:
    found = aws.client("lambda").list_event_source_mappings()["EventSourceMappings"]
    mappings = {
        item["FunctionArn"].rpartition("-")[2].removesuffix(":live"): item for item in found
    }
    for name, pattern in (("advance", MAIL), ("wake", INTENTS)):
        [only] = mappings[name]["FilterCriteria"]["Filters"]
        assert json.loads(only["Pattern"]) == pattern
    mail = mappings["advance"]
    assert mail["DestinationConfig"]["OnFailure"]["Destination"].endswith("-vision-dead-letters")
    assert (mail["BisectBatchOnFunctionError"], mail["MaximumRetryAttempts"]) == (True, 5)
    intents = mappings["wake"]
    assert intents["DestinationConfig"] == mail["DestinationConfig"]


def test_request_reaches_the_function_of_the_api(outputs: dict[str, Any]) -> None:
    with urllib.request.urlopen(f"{outputs['url']}/health", timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.read().endswith(b"/health")


def test_only_new_messages_and_intents_invoke_functions(
    aws: Ministack, outputs: dict[str, Any]
) -> None:
    table = DynamoDbTable(aws.client("dynamodb"), outputs["table"])
    mail, other = Key("trial#1", "M#1#a"), Key("trial#1", "head")
    intents = {Key("jobs#gpus", "1"), Key("notices", "i-1#end"), Key("suggestions", "1")}
    intents.add(Key("events#experiment#1", "0000000000000001"))
    for key in (other, mail, *intents):
        table.commit((Put(key, 1, b"x", Expect.ABSENT),))
    table.commit((Put(mail, 2, b"y", 1),))
    assert _wait_for_rows(aws, "advance", lambda keys: mail in keys) == [mail]
    found = _wait_for_rows(aws, "wake", lambda keys: intents <= set(keys))
    assert sorted(found) == sorted(intents)


def test_topic_of_the_stack_delivers_alarms(aws: Ministack, outputs: dict[str, Any]) -> None:
    sns, sqs = aws.client("sns"), aws.client("sqs")
    queue = sqs.create_queue(QueueName="mail")["QueueUrl"]
    asked = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    arn = asked["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=outputs["alarms"], Protocol="sqs", Endpoint=arn)
    raised = AlarmNotification("detcloud-vision", "lag", "", "raised", "late", 1, "runbook/lag.md")
    SnsNotifier(sns, outputs["alarms"]).notify(raised)
    [message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert json.loads(message["Body"])["Subject"] == "detcloud-vision: alarm lag raised"


def test_dashboard_names_resources_of_the_stack(aws: Ministack, outputs: dict[str, Any]) -> None:
    cloudwatch = aws.client("cloudwatch")
    body = json.loads(cloudwatch.get_dashboard(DashboardName="detcloud-vision")["DashboardBody"])
    widgets = [widget["properties"] for widget in body["widgets"]]
    dimensions = {metric[-2] for widget in widgets for metric in widget.get("metrics", ())}
    [api_id] = [
        item["ApiId"]
        for item in aws.client("apigatewayv2").get_apis()["Items"]
        if item["Name"] == "detcloud-vision"
    ]
    assert {outputs["table"], api_id, "detcloud-vision-dead-letters"} <= dimensions
    alarms = cloudwatch.describe_alarms(AlarmNamePrefix="detcloud-vision-")["MetricAlarms"]
    assert set(widgets[0]["alarms"]) == {alarm["AlarmArn"] for alarm in alarms}


def test_configuration_is_stored_at_the_place_that_functions_read(
    aws: Ministack, outputs: dict[str, Any]
) -> None:
    request = {"Bucket": outputs["objects"], "Key": "config/cluster.yaml"}
    content = aws.client("s3").get_object(**request)["Body"].read()
    assert content == b"resource_pools:\n  - pool_name: default\n"


def test_buckets_block_public_access(aws: Ministack, outputs: dict[str, Any]) -> None:
    s3 = aws.client("s3")
    for bucket in (outputs["objects"], outputs["checkpoints"]):
        closed = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
        assert set(closed.values()) == {True}
        policy = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])
        assert policy["Statement"][0]["Effect"] == "Deny"


@pytest.mark.parametrize(
    ("role", "action", "resource", "decision"),
    [
        ("advance", "dynamodb:PutItem", "table/detcloud-vision", "allowed"),
        ("advance", "dynamodb:PutItem", "table/detcloud-speech", "implicitDeny"),
        ("advance", "dynamodb:DeleteTable", "table/detcloud-vision", "implicitDeny"),
        ("instance", "dynamodb:GetItem", "table/detcloud-vision", "implicitDeny"),
    ],
)
def test_roles_have_the_rights_of_their_policies(
    role: str, action: str, resource: str, decision: str, aws: Ministack, outputs: dict[str, Any]
) -> None:
    assert outputs["cluster"] == "detcloud-vision"
    answer = aws.client("iam").simulate_principal_policy(
        PolicySourceArn=f"arn:aws:iam::{ACCOUNT}:role/detcloud-vision-{role}",
        ActionNames=[action],
        ResourceArns=[f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:{resource}"],
    )
    assert [
        evaluation_result["EvalDecision"] for evaluation_result in answer["EvaluationResults"]
    ] == [decision]


def test_two_teams_share_an_account(
    aws: Ministack, outputs: dict[str, Any], tmp_path: Path
) -> None:
    second = materialise(run, "speech", team_config(tmp_path), EmulatorMaker(aws))
    assert not {outputs[name] for name in ("url", "table", "objects")} & set(second.values())
    with urllib.request.urlopen(f"{second['url']}/", timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.read().startswith(b"detcloud-speech")


REFUSED: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (
        ParamValidationError,
        "ForceDetachPolicies",
        lambda: iam.Role("a", name="a", assume_role_policy="", tags={}, force_detach_policies=True),
    ),
    (KeyError, "delaySeconds", lambda: sqs.Queue("a", name="a", tags={}, delay_seconds=5)),
    (KeyError, "no recipe for aws:kms/key:Key", lambda: kms.Key("a")),
]


@pytest.mark.parametrize(("error", "message", "registers"), REFUSED)
def test_resource_that_cannot_be_created_as_declared_is_refused(
    error: type[Exception], message: str, registers: Callable[[], object], aws: Ministack
) -> None:
    def program() -> None:
        registers()

    with pytest.raises(error, match=message):
        materialise(program, "team", {}, EmulatorMaker(aws))


def _wait_for_rows(aws: Ministack, name: str, is_all: Callable[[list[Key]], bool]) -> list[Key]:
    """Return the rows for which the function was called, once `is_all` accepts the list.

    The rows are parsed from the function's log.
    """
    logs, group = aws.client("logs"), f"/aws/lambda/detcloud-vision-{name}"
    keys: list[Key] = []

    def have_all_come() -> bool:
        events = logs.filter_log_events(logGroupName=group)["events"]
        keys[:] = [key for event in events for key in _keys(event["message"])]
        return is_all(keys)

    poll_until(have_all_come, ARRIVES_SECONDS_MAX, lambda: f"more than {keys}", pause_seconds=0.1)
    return keys


def _keys(line: str) -> list[Key]:
    try:
        records = json.loads(line).get("Records", ())
    except (ValueError, AttributeError):
        return []
    keys = (record["dynamodb"]["Keys"] for record in records)
    return [Key(key["p"]["S"], key["s"]["S"]) for key in keys]
