"""Copies of a stack on AWS in another region."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws.copy_checks import check_copies, monthly_cost
from infra.aws.deployer import deployer_policy
from infra.aws.program import run_export
from infra.aws.restore_policy import restore_document
from infra.aws.settings import Settings, parse_settings
from infra.copy_settings import Copies
from infra.findings import Level
from infra.stack_program import SettingsInvalid
from infra.terraform.recorder import run_program
from tests.unit.infra.graphs import COPIED, KEY, VISION, Graph, files, graph

COPIES = COPIED["detcloud:copies"]


def settings(**more: str) -> Settings:
    texts = {name.removeprefix("detcloud:"): text for name, text in VISION.items()}
    return parse_settings("vision", {**texts, "clusterConfig": "pools.yaml", **more})


def test_stack_without_the_setting_makes_no_copies(vision: Graph) -> None:
    assert not vision.inputs_of("Schedule")
    assert set(vision.inputs_of("BucketVersioning")) == {"checkpoints"}
    assert set(vision.inputs_of("Bucket")) == {"objects", "checkpoints"}


def test_state_is_exported_by_a_schedule(copied_stack: Graph) -> None:
    (schedule,) = copied_stack.inputs_of("Schedule").values()
    assert schedule["scheduleExpression"] == "rate(6 hours)"
    target = schedule["target"]
    assert target["arn"] == "arn:aws:scheduler:::aws-sdk:dynamodb:exportTableToPointInTime"
    assert json.loads(target["input"]) == {
        "TableArn": "arn:aws:dynamodb:us-east-1:111111111111:table/detcloud-vision",
        "S3Bucket": "detcloud-vision-state-111111111111-copy",
        "S3BucketOwner": "111111111111",
        "S3SseAlgorithm": "AES256",
        "ExportFormat": "DYNAMODB_JSON",
    }
    assert target["deadLetterConfig"]["arn"]


def test_buckets_are_replicated_into_the_other_region(copied_stack: Graph) -> None:
    buckets = copied_stack.inputs_of("Bucket")
    abroad = {name for name, made in buckets.items() if made.get("region") == "us-west-2"}
    assert abroad == {"state-copy", "objects-copy", "checkpoints-copy"}
    assert set(copied_stack.inputs_of("BucketReplicationConfig")) == {"objects", "checkpoints"}
    for name in ("objects", "checkpoints"):
        after = copied_stack.predecessors_of("BucketReplicationConfig", name)
        assert set(after) == {
            ("BucketVersioning", name),
            ("BucketVersioning", f"{name}-copy"),
        }


def test_deleted_objects_do_not_cost_storage_for_ever(copied_stack: Graph) -> None:
    lifecycles = copied_stack.inputs_of("BucketLifecycleConfiguration")
    for name in ("objects", "checkpoints", "objects-copy", "checkpoints-copy"):
        assert any("noncurrentVersionExpiration" in rule for rule in lifecycles[name]["rules"])


def test_collector_of_replicated_checkpoints_deletes_no_versions(copied_stack: Graph) -> None:
    """S3 replicates a deletion, but not the deletion of a version."""
    assert (
        "DeleteObjectVersion" not in copied_stack.inputs_of("RolePolicy")["checkpoint_gc"]["policy"]
    )


def test_copies_are_private_and_need_tls(copied_stack: Graph) -> None:
    for kind in ("BucketPublicAccessBlock", "BucketPolicy", "BucketOwnershipControls"):
        made = copied_stack.inputs_of(kind)
        assert {"state-copy", "objects-copy", "checkpoints-copy"} <= set(made)
        assert all(made[f"{name}-copy"]["region"] == "us-west-2" for name in ("state", "objects"))


def test_replication_role_reads_sources_and_writes_copies_only(copied_stack: Graph) -> None:
    policy = json.loads(copied_stack.inputs_of("RolePolicy")["copies"]["policy"])
    by_sid = {statement["Sid"]: statement for statement in policy["Statement"]}
    assert by_sid["Write"]["Resource"] == [
        "arn:aws:s3:::detcloud-vision-objects-111111111111-copy/*",
        "arn:aws:s3:::detcloud-vision-checkpoints-111111111111-copy/*",
    ]
    assert not any("Put" in action or "DeleteO" in action for action in by_sid["Read"]["Action"])


def test_checkpoints_may_be_left_out(tmp_path: Path) -> None:
    given = {"detcloud:copies": '{"region": "us-west-2", "checkpoints": false}'}
    made = graph("vision", {**VISION, **given}, tmp_path)
    assert set(made.inputs_of("BucketReplicationConfig")) == {"objects"}
    assert "checkpoints-copy" not in made.inputs_of("Bucket")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"copies": "us-west-2"}, "expected a map like"),
        ({"copies": '{"hours": 3}'}, "expected a map like"),
        ({"copies": '{"region": "us-west-2", "hours": 0}'}, "from 1 to 168"),
        ({"copies": '{"region": "us-west-2", "hours": true}'}, "from 1 to 168"),
        ({"copies": '{"region": "us-west-2", "days": 1}'}, "expected a map like"),
        ({"copies": '{"region": "us-east-1"}'}, "the region of the stack: expected another"),
        ({"copies": COPIES, "kmsKey": KEY}, "detcloud:copies and detcloud:kmsKey exclude"),
    ],
)
def test_refuses_wrong_copies(given: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsInvalid, match=expected):
        settings(**given)


def test_deployer_of_copies_needs_more_than_others() -> None:
    def actions(given: Settings) -> set[str]:
        statements = deployer_policy(given)["Statement"]
        return {action for statement in statements for action in statement["Action"]}

    assert actions(settings(copies=COPIES)) - actions(settings()) == {
        "s3:PutReplicationConfiguration",
        "scheduler:CreateSchedule",
        "scheduler:DeleteSchedule",
        "scheduler:GetSchedule",
        "scheduler:UpdateSchedule",
    }


def test_export_refuses_copies(tmp_path: Path) -> None:
    config = {**VISION, **files(tmp_path / "stack"), "detcloud:copies": COPIES}
    with pytest.raises(Exception, match="detcloud:copies cannot be exported"):
        run_program(run_export, "vision", config, Graph())


def test_restore_may_not_delete_the_table() -> None:
    statements = restore_document(settings())["Statement"]
    table = "arn:aws:dynamodb:us-east-1:111111111111:table/detcloud-vision"
    deleting = [item for item in statements if "dynamodb:DeleteTable" in item["Action"]]
    assert [item["Resource"][0] for item in deleting] == [f"{table}-restoring-*"]


def test_cost_counts_exports_traffic_and_storage() -> None:
    # 730 / 24 exports of 0.1 GB for 0.12 $ a GB, and 14 of them kept for 0.023 $ a GB.
    expected = 730 / 24 * 0.1 * 0.12 + 14 * 0.1 * 0.023
    assert monthly_cost(Copies("us-west-2"), 10**8) == pytest.approx(expected)


class Aws:
    """An account with a table of 100 MB and an export, at `exported` if any."""

    def __init__(self, exported: datetime | None, *, is_refused: bool = False) -> None:
        self.exported = exported
        self.is_refused = is_refused

    def __call__(self, service: str) -> Any:
        if self.is_refused:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "Call")
        return self

    def describe_table(self, TableName: str) -> Any:
        return {"Table": {"TableSizeBytes": 10**8}}

    def get_paginator(self, name: str) -> "Aws":
        return self

    def paginate(self, **asked: str) -> Any:
        key = "AWSDynamoDB/01-a/manifest-summary.json"
        return [{"Contents": [{"Key": key}] if self.exported else []}]

    def get_object(self, **asked: str) -> Any:
        assert self.exported
        summary = {
            "exportTime": self.exported.isoformat(),
            "itemCount": 1,
            "outputFormat": "DYNAMODB_JSON",
        }
        return {"Body": self, "summary": summary}

    def read(self) -> bytes:
        return json.dumps(self.get_object()["summary"]).encode()


def test_check_shows_the_cost_and_the_age_of_the_newest_export() -> None:
    recent = datetime.now(UTC) - timedelta(hours=1)
    cost, age = check_copies(settings(copies=COPIES), Aws(recent))
    assert cost.text.startswith(
        "an export of the state (100 MB) to us-west-2 every 6 h costs about"
    )
    assert (cost.level, age.level) == (Level.FINE, Level.FINE)
    assert check_copies(settings(), Aws(recent)) == []


def test_check_warns_of_missing_and_old_exports() -> None:
    old = datetime.now(UTC) - timedelta(hours=13)
    _, age = check_copies(settings(copies=COPIES), Aws(old))
    assert (age.level, age.text) == (
        Level.WARNING,
        "the newest export of the state is 13 h old",
    )
    _, age = check_copies(settings(copies=COPIES), Aws(None))
    assert age.text == "no export of the state has been made in us-west-2 yet"


def test_check_names_what_it_could_not_read() -> None:
    found = check_copies(settings(copies=COPIES), Aws(None, is_refused=True))
    assert [finding.level for finding in found] == [Level.WARNING] * 2
    assert found[0].remedy == "the check needs dynamodb:DescribeTable"
