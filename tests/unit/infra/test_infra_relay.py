"""The relay of tunnels in the stack on AWS: resources, permissions and settings."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

require("pulumi_aws")

from control_plane.rows import cluster_rows  # noqa: E402
from infra.aws import relay_policies  # noqa: E402
from infra.aws.bundle import SERVICES  # noqa: E402
from infra.aws.names import Names  # noqa: E402
from infra.aws.settings import parse_settings  # noqa: E402
from infra.sources import REPOSITORY  # noqa: E402
from infra.stack_program import SettingsInvalid  # noqa: E402
from lambdas.aws import relay_boot  # noqa: E402
from tests.emulators.policy_reader import allows  # noqa: E402
from tests.unit.infra.graphs import BANK, SPEECH, VISION, Graph, graph  # noqa: E402

NAMES = Names("vision", "111111111111", "us-east-1")
OTHER = Names("speech", "111111111111", "us-east-1")


def settings_of(config: dict[str, str]) -> Any:
    texts = {name.removeprefix("detcloud:"): text for name, text in config.items()}
    return parse_settings("vision", {**texts, "clusterConfig": "pools.yaml"})


def container(stack: Graph) -> dict[str, Any]:
    definition = stack.inputs_of("TaskDefinition")["relay"]
    [found] = json.loads(definition["containerDefinitions"])
    parsed: dict[str, Any] = found
    return parsed


def test_task_is_the_smallest_of_fargate_with_its_own_two_roles(vision: Graph) -> None:
    definition = vision.inputs_of("TaskDefinition")["relay"]
    assert (definition["cpu"], definition["memory"]) == ("256", "512")
    assert definition["requiresCompatibilities"] == ["FARGATE"]
    assert definition["runtimePlatform"]["cpuArchitecture"] == "ARM64"
    assert definition["taskRoleArn"] == "Role.relay.arn"
    assert definition["executionRoleArn"] == "Role.relay-start.arn"
    # A task that started before its permissions would not find its row.
    before = set(vision.predecessors_of("TaskDefinition", "relay"))
    assert {("RolePolicy", "relay"), ("RolePolicy", "relay-start")} <= before


def test_container_fetches_the_code_and_drops_to_nobody(vision: Graph) -> None:
    found = container(vision)
    assert found["image"].startswith("public.ecr.aws/docker/library/python:3.13")
    program, option, script = found["command"]
    assert (program, option) == ("python3", "-c")
    ast.parse(script)
    variables = {item["name"]: item["value"] for item in found["environment"]}
    assert variables[relay_boot.TABLE] == "detcloud-vision"
    assert (variables[relay_boot.PORT], variables[relay_boot.USER]) == ("443", "65534")
    # The record with the secret, and the code's URL, are only in a task's overrides.
    assert not {relay_boot.CODE, relay_boot.RECORD} & set(variables)
    dropped = found["linuxParameters"]["capabilities"]["drop"]
    assert not {"NET_BIND_SERVICE", "SETUID", "SETGID"} & set(dropped)


def test_code_is_the_functions_archive(vision: Graph) -> None:
    code = vision.inputs_of("BucketObjectv2")["relay-code"]
    assert (code["bucket"], code["key"]) == ("Bucket.objects.id", relay_boot.CODE_KEY)
    assert Path(code["source"].path).name == "functions.zip"


def test_only_https_passes_the_security_group(vision: Graph) -> None:
    for kind in ("SecurityGroupIngressRule", "SecurityGroupEgressRule"):
        rules = [
            rule
            for rule in vision.inputs_of(kind).values()
            if rule["securityGroupId"] == "SecurityGroup.relay.id"
        ]
        assert [(rule["ipProtocol"], rule["fromPort"], rule["toPort"]) for rule in rules] == [
            ("tcp", 443, 443)
        ]


def test_logs_are_kept_for_seven_days(vision: Graph) -> None:
    group = vision.inputs_of("LogGroup")["relay"]
    assert (group["name"], group["retentionInDays"]) == ("/aws/ecs/detcloud-vision-relay", 7)
    assert container(vision)["logConfiguration"]["options"]["awslogs-group"] == group["name"]


def test_relay_may_write_its_own_row_and_read_nothing() -> None:
    document = relay_policies.task(NAMES)
    own = {"dynamodb:LeadingKeys": [cluster_rows.RELAY.partition]}
    assert allows(document, "dynamodb:PutItem", NAMES.table_arn, own)
    for partition in ("cluster", "users", "tokens"):
        context = {"dynamodb:LeadingKeys": [partition]}
        assert not allows(document, "dynamodb:PutItem", NAMES.table_arn, context)
    assert not allows(document, "dynamodb:PutItem", OTHER.table_arn, own)
    for action in ("GetItem", "Query", "Scan", "DeleteItem", "UpdateItem", "BatchGetItem"):
        assert not allows(document, f"dynamodb:{action}", NAMES.table_arn, own)
    [statement] = document["Statement"]
    assert statement["Action"] == ["dynamodb:PutItem"]


def test_no_other_row_is_in_the_relays_partition() -> None:
    from control_plane.rows.registry import ROW_TYPES

    partition = cluster_rows.RELAY.partition
    assert [row for row in ROW_TYPES if row.partition == partition] == [cluster_rows.RELAY]


def test_api_may_start_only_this_task_with_its_two_roles(vision: Graph) -> None:
    document = json.loads(vision.inputs_of("RolePolicy")["api"]["policy"])
    cluster = {"ecs:cluster": "arn:aws:ecs:us-east-1:111111111111:cluster/detcloud-vision-relay"}
    definition = "arn:aws:ecs:us-east-1:111111111111:task-definition/detcloud-vision-relay:7"
    statements = [item for item in document["Statement"] if "ecs:RunTask" in item["Action"]]
    [statement] = statements
    assert statement["Resource"] == [definition.replace(":7", ":*")]
    assert statement["Condition"] == {"ArnEquals": cluster}
    to_tasks = {"iam:PassedToService": "ecs-tasks.amazonaws.com"}
    for role in ("relay", "relay-start"):
        assert allows(document, "iam:PassRole", NAMES.role_arn(role), to_tasks)
    for role in ("tick", "api", "storage"):
        assert not allows(document, "iam:PassRole", NAMES.role_arn(role), to_tasks)
    task = "arn:aws:ecs:us-east-1:111111111111:task/detcloud-{}-relay/1f"
    for action in ("ecs:DescribeTasks", "ecs:StopTask"):
        assert allows(document, action, task.format("vision"))
        assert not allows(document, action, task.format("speech"))


def test_only_ecs_tasks_of_the_account_get_the_roles() -> None:
    [statement] = relay_policies.trust(NAMES)["Statement"]
    assert statement["Principal"] == {"Service": "ecs-tasks.amazonaws.com"}
    assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": "111111111111"}


@pytest.mark.parametrize(
    ("config", "has_relay"),
    [
        (VISION, True),
        ({**VISION, "detcloud:relay": "false"}, False),
        (SPEECH, False),
        (BANK, False),
        ({**BANK, "detcloud:relay": "true"}, True),
    ],
    ids=["own-network", "refused", "existing-network", "private", "private-with-relay"],
)
def test_networks_without_public_addresses_get_no_relay_by_default(
    config: dict[str, str], has_relay: bool
) -> None:
    assert settings_of(config).has_relay is has_relay


def test_existing_network_and_a_relay_exclude_each_other() -> None:
    with pytest.raises(SettingsInvalid) as refused:
        settings_of({**SPEECH, "detcloud:relay": "true"})
    [problem] = refused.value.problems
    assert "detcloud:relay needs a public subnet" in problem


def test_stack_without_a_relay_has_no_part_of_it(bank: Graph) -> None:
    assert not bank.inputs_of("TaskDefinition")
    assert "relay" not in bank.inputs_of("SecurityGroup")
    assert "relay-code" not in bank.inputs_of("BucketObjectv2")
    assert "DETCLOUD_RELAY" not in bank.inputs_of("Function")["api"]["environment"]["variables"]
    document = bank.inputs_of("RolePolicy")["api"]["policy"]
    assert "ecs:" not in document


def test_relay_of_private_subnets_uses_the_nat_gateways_subnet(tmp_path: Path) -> None:
    stack = graph("bank", {**BANK, "detcloud:relay": "true"}, tmp_path)
    variables = stack.inputs_of("Function")["api"]["environment"]["variables"]
    assert json.loads(variables["DETCLOUD_RELAY"])["subnets"] == ["Subnet.way-out.id"]
    document = json.loads(stack.inputs_of("RolePolicy")["relay"]["policy"])
    # The table is encrypted with the company's key.
    assert {item["Sid"] for item in document["Statement"]} == {"WriteOwnRow", "Key"}


def test_functions_keep_the_descriptions_of_all_services_that_they_call() -> None:
    texts = [path.read_text() for path in (REPOSITORY / "lambdas" / "aws").glob("*.py")]
    called = {name for text in texts for name in re.findall(r'lazy_client\("(\w+)"\)', text)}
    assert "ecs" in called
    assert called <= SERVICES
