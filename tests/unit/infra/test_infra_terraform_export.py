"""Stacks as Terraform's JSON."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest

from infra.aws.program import run
from infra.aws.terraform import PROVIDER
from infra.terraform.export import FILE, NoCounterpart, export, plural
from infra.terraform.schema import slim_schema
from tests.unit.infra.graphs import POOLS, VISION, Graph, files, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    config = {**VISION, **files(folder / "given")}
    export(run, PROVIDER, "vision", config, folder / "out")
    parsed: dict[str, Any] = json.loads((folder / "out" / FILE).read_text())
    return parsed


def test_export_has_all_resources_of_the_program(document: dict[str, Any], vision: Graph) -> None:
    exported = sum(map(len, document["resource"].values()))
    assert exported == len(
        [resource for resource in vision.resources if resource.type.startswith("aws:")]
    )


def test_export_allows_only_the_stacks_account(document: dict[str, Any]) -> None:
    provider = document["provider"]["aws"]
    assert (provider["region"], provider["allowed_account_ids"]) == ("us-east-1", ["111111111111"])


def test_inputs_become_references(document: dict[str, Any]) -> None:
    mapping = document["resource"]["aws_lambda_event_source_mapping"]["mail"]
    assert mapping["event_source_arn"] == "${aws_dynamodb_table.table.stream_arn}"
    assert mapping["destination_config"] == [
        {"on_failure": [{"destination_arn": "${aws_sqs_queue.dead_letters.arn}"}]}
    ]
    assert mapping["depends_on"] == ["aws_iam_role_policy.advance"]
    tick = document["resource"]["aws_lambda_function"]["tick"]
    [environment] = tick["environment"]
    network = json.loads(environment["variables"]["DETCLOUD_NETWORK"])
    assert network["security_group"] == "${aws_security_group.instances.id}"
    assert document["output"]["dead_letters"] == {"value": "${aws_sqs_queue.dead_letters.url}"}


def test_export_uses_terraforms_names(document: dict[str, Any]) -> None:
    resources = document["resource"]
    table = resources["aws_dynamodb_table"]["table"]
    assert [item["name"] for item in table["attribute"]] == ["p", "s", "h", "d"]
    assert table["global_secondary_index"][0]["hash_key"] == "h"
    assert resources["aws_lambda_function"]["api"]["function_name"] == "detcloud-vision-api"
    assert resources["aws_lambda_permission"]["minute"]["function_name"] == (
        "${aws_lambda_alias.tick.function_name}"
    )
    assert resources["aws_cloudwatch_metric_alarm"]["api"]["alarm_name"] == "detcloud-vision-api"
    assert set(resources["aws_subnet"]) == {"us_east_1a", "us_east_1b"}


def test_text_that_looks_like_a_reference_is_escaped(document: dict[str, Any]) -> None:
    content = document["resource"]["aws_s3_object"]["cluster_configuration"]["content"]
    assert content == POOLS.replace("${", "$${").replace("%{", "%%{")


def test_archives_are_copied_with_digests(document: dict[str, Any], folder: Path) -> None:
    digests = {}
    for name in ("functions.zip", "suggest.zip"):
        copied = (folder / "out" / name).read_bytes()
        assert copied == (folder / "given" / name).read_bytes()
        digests[name] = base64.b64encode(hashlib.sha256(copied).digest()).decode()
    for name, function in document["resource"]["aws_lambda_function"].items():
        file = "suggest.zip" if name == "suggest" else "functions.zip"
        assert (function["filename"], function["source_code_hash"]) == (file, digests[file])


def test_export_contains_no_placeholder_references(document: dict[str, Any]) -> None:
    assert not [text for text in texts(document) if "<<" in text or "given" in text]


def test_export_is_reproducible(document: dict[str, Any], folder: Path) -> None:
    assert document
    config = {**VISION, **files(folder / "given")}
    export(run, PROVIDER, "vision", config, folder / "again")
    assert (folder / "again" / FILE).read_bytes() == (folder / "out" / FILE).read_bytes()


def test_refuses_properties_and_types_without_a_counterpart(tmp_path: Path) -> None:
    def program_with_typo() -> None:
        aws.iam.Role("a", assume_role_policy="{}", tags={}, inline_policies=[{"nmae": "b"}])

    with pytest.raises(NoCounterpart, match=r"aws_iam_role.a.inline_policy: .* no 'nmae' there"):
        export(program_with_typo, PROVIDER, "team", {}, tmp_path)

    def unknown() -> None:
        aws.kms.Key("key")

    with pytest.raises(NoCounterpart, match="the schema has no aws:kms/key:Key"):
        export(unknown, PROVIDER, "team", {}, tmp_path)


def test_refuses_archives_that_are_not_files(tmp_path: Path) -> None:
    def program() -> None:
        code = pulumi.AssetArchive({"a.py": pulumi.StringAsset("")})
        aws.lambda_.Function("a", role="r", code=code)

    with pytest.raises(NoCounterpart, match="only a file"):
        export(program, PROVIDER, "team", {}, tmp_path)


@pytest.mark.parametrize(
    ("singular", "plural_name"),
    [
        ("rule", "rules"),
        ("metric_query", "metric_queries"),
        ("global_secondary_index", "global_secondary_indexes"),
        ("gateway", "gateways"),
        ("tags", "tags"),
        ("match", "matches"),
    ],
)
def test_plural_of_block_names(singular: str, plural_name: str) -> None:
    assert plural(singular) == plural_name


def test_type_names_are_tried_by_likelihood() -> None:
    assert PROVIDER.type_names("aws:ec2/routeTable:RouteTable") == (
        "aws_ec2_route_table",
        "aws_route_table",
    )
    assert PROVIDER.type_names("aws:s3/bucket:Bucket") == ("aws_s3_bucket", "aws_bucket")
    assert PROVIDER.type_names("aws:s3/bucketObjectv2:BucketObjectv2") == ("aws_s3_object",)


def test_slim_schema_keeps_settable_and_text_fields() -> None:
    block = {
        "attributes": {
            "name": {"type": "string", "required": True},
            "arn": {"type": "string", "computed": True},
            "size": {"type": "number", "optional": True, "computed": True},
            "old": {"type": "number", "optional": True, "deprecated": True},
        },
        "block_types": {
            "rule": {"nesting_mode": "list", "block": {"attributes": {}}},
            "timeouts": {"block": {"attributes": {"create": {"optional": True}}}},
        },
    }
    assert slim_schema(block) == {
        "settable": ["name", "size"],
        "text": ["name", "arn"],
        "blocks": {"rule": {"settable": [], "text": [], "blocks": {}}},
    }
