"""Stacks with a company's rules: own key, bounded roles, tags, private subnets, domain."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.storage_credentials import StorageAccess
from control_plane.aws.storage_credentials import session_policy
from control_plane.fleet.records import IntentRow, Market, Offering
from infra.aws.key_policies import log_key
from infra.aws.names import ROLE_FUNCTIONS, Names
from infra.aws.program import run
from infra.aws.settings import parse_settings
from infra.aws.terraform import PROVIDER
from infra.stack_program import SettingsInvalid
from infra.terraform.export import export
from lambdas.aws.adapters import AwsAdapters
from lambdas.aws.ec2_clouds import DeployedPlace, complete_network
from provisioner.clouds.aws.launch_request import (
    Ec2Settings,
    Tag,
    instance_tags,
    launch_template_data,
)
from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import BANK, KEY, Graph, files
from tests.unit.infra.test_infra_stack import TAG, UNTAGGED

NAMES = Names("vision", "111111111111", "us-east-1")
SPOT_ROLE = (
    "arn:aws:iam::111111111111:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
)
LEAST = {
    "account": "111111111111",
    "region": "us-east-1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}


def document_of(bank: Graph, role: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bank.inputs_of("RolePolicy")[role]["policy"])
    return document


def test_key_encrypts_table_buckets_and_logs(bank: Graph) -> None:
    table = bank.inputs_of("Table")["table"]
    assert table["serverSideEncryption"] == {"enabled": True, "kmsKeyArn": KEY}
    for rules in bank.inputs_of("BucketServerSideEncryptionConfiguration").values():
        assert rules["rules"] == [
            {
                "applyServerSideEncryptionByDefault": {
                    "sseAlgorithm": "aws:kms",
                    "kmsMasterKeyId": KEY,
                },
                "bucketKeyEnabled": True,
            }
        ]
    assert {item["kmsKeyId"] for item in bank.inputs_of("LogGroup").values()} == {KEY}


def test_spot_service_role_gets_a_grant_for_disks(bank: Graph) -> None:
    grant = bank.inputs_of("Grant")["spot"]
    assert (grant["keyId"], grant["granteePrincipal"]) == (KEY, SPOT_ROLE)
    assert {"CreateGrant", "Decrypt", "GenerateDataKeyWithoutPlaintext"} <= set(grant["operations"])


@pytest.mark.parametrize("role", [*ROLE_FUNCTIONS, "storage"])
def test_each_role_uses_the_key_only_through_the_stores(bank: Graph, role: str) -> None:
    document = document_of(bank, role)
    for service, is_allowed in (("dynamodb", True), ("s3", True), ("ec2", role == "tick")):
        context = {"kms:ViaService": f"{service}.us-east-1.amazonaws.com"}
        assert allows(document, "kms:Decrypt", KEY, context) is is_allowed
    assert not allows(document, "kms:Decrypt", KEY)
    assert not allows(document, "kms:ScheduleKeyDeletion", KEY, {"kms:ViaService": "s3"})


def test_only_the_tick_may_grant_the_key_and_only_to_aws(bank: Graph) -> None:
    for role in ROLE_FUNCTIONS:
        document, resource = document_of(bank, role), {"kms:GrantIsForAWSResource": "true"}
        assert allows(document, "kms:CreateGrant", KEY, resource) is (role == "tick")
        assert not allows(document, "kms:CreateGrant", KEY)


def test_trial_session_may_use_the_key() -> None:
    access = StorageAccess("bucket", writes=("1/2/3",), reads=("1",))
    assert "kms" not in json.dumps(session_policy(access))
    *_, statement = session_policy(access, KEY)["Statement"]
    assert statement["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    assert statement["Resource"] == KEY


def test_key_policy_statement_covers_the_teams_logs() -> None:
    statement = log_key(NAMES)
    assert statement["Principal"] == {"Service": "logs.us-east-1.amazonaws.com"}
    [pattern] = statement["Condition"]["ArnLike"].values()
    # /aws/lambda/detcloud-vision-api and /aws/vendedlogs/detcloud-vision-access
    assert pattern == "arn:aws:logs:us-east-1:111111111111:log-group:*detcloud-vision-*"


def test_roles_have_the_companys_boundary_path_and_prefix(bank: Graph) -> None:
    roles = bank.inputs_of("Role")
    assert set(roles) == {*ROLE_FUNCTIONS, "storage", "instance"}
    for role in roles.values():
        assert role["name"].startswith("corp-detcloud-bank-")
        assert len(role["name"]) <= 64
        assert role["path"] == "/teams/"
        assert role["permissionsBoundary"] == BANK["detcloud:permissionsBoundary"]
    profile = bank.inputs_of("InstanceProfile")["instance"]
    assert (profile["name"], profile["path"]) == ("corp-detcloud-bank-instance", "/teams/")
    instance = "arn:aws:iam::111111111111:role/teams/corp-detcloud-bank-instance"
    launching = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert allows(document_of(bank, "tick"), "iam:PassRole", instance, launching)
    storage = "arn:aws:iam::111111111111:role/teams/corp-detcloud-bank-storage"
    assert allows(document_of(bank, "api"), "sts:AssumeRole", storage)


def test_longest_role_names_fit_64_characters() -> None:
    names = Names("a" * 20, "111111111111", "us-east-1", iam_prefix="b" * 20)
    roles = (*ROLE_FUNCTIONS, "storage", "instance", "relay", "relay-start")
    assert max(len(names.role(name)) for name in roles) <= 64


def test_all_resources_have_the_companys_tags(bank: Graph) -> None:
    for resource in bank.resources:
        kind = resource.type.rpartition(":")[2]
        if kind not in UNTAGGED:
            assert resource.inputs["tags"]["cost-center"] == "42", resource
            assert resource.inputs["tags"][TAG] == "detcloud-bank"


def test_instances_are_private_encrypted_and_tagged_by_the_company(bank: Graph) -> None:
    environment = bank.inputs_of("Function")["tick"]["environment"]["variables"]
    pool = Ec2Settings(custom_tags=(Tag("cost-center", "43"), Tag("ours", "yes")))
    place = DeployedPlace("us-east-1", json.loads(environment["DETCLOUD_NETWORK"]))
    settings = complete_network(pool, place)
    offering = Offering("g5.xlarge/spot", "g5.xlarge", "", Market.SPOT, 1)
    intent = IntentRow("1", "detcloud-bank", "gpus", offering, 1, "t", 0)
    data = launch_template_data(intent, settings, b"", "/dev/sda1")
    assert data["NetworkInterfaces"][0]["AssociatePublicIpAddress"] is False
    assert data["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"] == KEY
    # A pool's tag takes precedence over the stack's tag.
    tags = instance_tags(intent, settings)
    assert (tags["cost-center"], tags["ours"]) == ("43", "yes")


def test_private_subnets_share_a_nat_gateway(bank: Graph) -> None:
    subnets = bank.inputs_of("Subnet")
    public = {name for name, subnet in subnets.items() if subnet["mapPublicIpOnLaunch"]}
    assert public == {"way-out"}
    # A zone has the block of its letter, of sixteen; the NAT gateway has the last, 15 x 16 = 240.
    assert {name: subnet["cidrBlock"] for name, subnet in subnets.items()} == {
        "us-east-1a": "10.77.0.0/20",
        "us-east-1b": "10.77.16.0/20",
        "way-out": "10.77.240.0/20",
    }
    routes = bank.inputs_of("Route")
    assert routes["out"]["natGatewayId"] == "NatGateway.way-out.id"
    assert routes["public-routes"]["gatewayId"] == "InternetGateway.gateway.id"
    joined = {
        name: item["routeTableId"] for name, item in bank.inputs_of("RouteTableAssociation").items()
    }
    assert joined == {
        "us-east-1a": "RouteTable.routes.id",
        "us-east-1b": "RouteTable.routes.id",
        "way-out": "RouteTable.public-routes.id",
    }
    network = bank.inputs_of("Function")["tick"]["environment"]["variables"]["DETCLOUD_NETWORK"]
    assert set(json.loads(network)["subnets"]) == {"us-east-1a", "us-east-1b"}


def test_vpc_endpoints_are_in_all_private_subnets(bank: Graph) -> None:
    endpoints = bank.inputs_of("VpcEndpoint")
    assert set(endpoints) == {"s3", "ecr.api", "ecr.dkr"}
    for name in ("ecr.api", "ecr.dkr"):
        made = endpoints[name]
        assert made["serviceName"] == f"com.amazonaws.us-east-1.{name}"
        assert made["subnetIds"] == ["Subnet.us-east-1a.id", "Subnet.us-east-1b.id"]
        assert made["privateDnsEnabled"] is True


def test_cluster_uses_the_domain_and_keeps_the_former_address(bank: Graph) -> None:
    assert bank.exported["url"] == "https://ml.example.com"
    assert bank.exported["domainTarget"] == "DomainName.domain.targetDomainName"
    for function in bank.inputs_of("Function").values():
        variables = function["environment"]["variables"]
        assert variables["DETCLOUD_API_URL"] == "https://ml.example.com"
        assert variables["DETCLOUD_API_FORMER_URL"] == "Api.api.apiEndpoint"
    configuration = bank.inputs_of("DomainName")["domain"]["domainNameConfiguration"]
    assert configuration["securityPolicy"] == "TLS_1_2"
    mapping = bank.inputs_of("ApiMapping")["domain"]
    assert mapping["stage"] == "Stage.api.id"
    [alias] = bank.inputs_of("Record")["domain"]["aliases"]
    assert alias["name"] == "DomainName.domain.targetDomainName"


def test_api_accepts_the_domain_and_the_former_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DETCLOUD_API_URL", "https://ml.example.com")
    assert AwsAdapters().api_hosts == {"ml.example.com"}
    monkeypatch.setenv("DETCLOUD_API_FORMER_URL", "https://a1.execute-api.us-east-1.amazonaws.com")
    assert AwsAdapters().api_hosts == {
        "ml.example.com",
        "a1.execute-api.us-east-1.amazonaws.com",
    }


def test_terraform_export_has_the_companys_resources(tmp_path: Path) -> None:
    document = export(run, PROVIDER, "bank", {**BANK, **files(tmp_path / "given")}, tmp_path)
    [alias] = document["resource"]["aws_route53_record"]["domain"]["alias"]
    place = "aws_apigatewayv2_domain_name.domain.domain_name_configuration[0]"
    assert alias["name"] == f"${{{place}.target_domain_name}}"
    assert document["resource"]["aws_nat_gateway"]["way_out"]["allocation_id"] == (
        "${aws_eip.way_out.id}"
    )


def test_company_settings_are_parsed() -> None:
    given = {name.partition(":")[2]: text for name, text in BANK.items()}
    settings = parse_settings("bank", {**LEAST, **given})
    assert settings.tags == {"cost-center": "42"}
    assert (settings.iam_path, settings.iam_prefix) == ("/teams/", "corp-")
    assert settings.names.instance_profile_arn == (
        "arn:aws:iam::111111111111:instance-profile/teams/corp-detcloud-bank-instance"
    )


OTHERS_KEY = KEY.replace("1" * 12, "2" * 12)
NETWORK = '{"subnets": {"us-east-1a": "subnet-1"}, "securityGroup": "sg-1"}'
DOMAIN = {"domain": "a.example.com", "certificate": BANK["detcloud:certificate"]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kmsKey": "alias/ours"}, "the ARN of a key, arn:aws:kms:REGION:ACCOUNT:key/..., and no"),
        ({"kmsKey": OTHERS_KEY}, "expected one of account 111111111111 and region us-east-1"),
        ({"permissionsBoundary": "boundary"}, "the ARN of a policy"),
        ({"iamPath": "teams"}, "a path that begins and ends with /"),
        ({"iamPrefix": "a" * 21}, "1 to 20 letters"),
        ({"tags": "[]"}, "a map of at most 20 tags"),
        ({"tags": '{"aws:a": "b"}'}, "neither with aws: nor with detcloud-"),
        ({"tags": '{"detcloud-cluster": "b"}'}, "neither with aws: nor with detcloud-"),
        ({"tags": '{"a": 1}'}, "values of at most 256"),
        ({"endpoints": '["execute-api"]', "privateSubnets": "true"}, "no execute-api: HTTP APIs"),
        ({"endpoints": '["ecs"]', "privateSubnets": "true"}, "a list of some of ecr.api"),
        ({"endpoints": '["ecr.api"]'}, "set detcloud:privateSubnets too"),
        ({"privateSubnets": "true", "network": NETWORK}, "public_ip: false in the pools"),
        ({"domain": "a.example.com"}, "must be set together"),
        (
            {"domain": "A.example.com", "certificate": DOMAIN["certificate"]},
            "a lowercase host name",
        ),
        ({"hostedZone": "Z1"}, "detcloud:domain is missing"),
        (
            {**DOMAIN, "certificate": DOMAIN["certificate"].replace("us-east-1", "eu-west-1")},
            "expected one of account 111111111111 and region us-east-1",
        ),
    ],
)
def test_refuses_wrong_company_settings_and_names_the_expected_value(
    given: dict[str, str], expected: str
) -> None:
    with pytest.raises(SettingsInvalid, match=expected.replace("[", r"\[")):
        parse_settings("vision", {**LEAST, **given})
