"""Copies of a stack on Google Cloud in another region."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.copy_settings import Copies
from infra.findings import Level
from infra.gcp.copies import COPY_ROLES, SOURCE_ROLES
from infra.gcp.copy_checks import check_copies, monthly_cost
from infra.gcp.google_api import GoogleError
from infra.gcp.policies import ROLES
from infra.gcp.program import make_stack, run_export
from infra.gcp.settings import Settings, parse_settings
from infra.stack_program import SettingsInvalid
from infra.terraform.recorder import run_program
from tests.emulators.gcp_stack_files import gcp_files
from tests.unit.infra.gcp_graphs import COPIED, KEY, VISION, GcpGraph, environments, gcp_graph
from tests.unit.infra.google_answers import Answers

COPIES = COPIED["detcloud:copies"]
AGENT = "serviceAccount:project-123456789012@storage-transfer-service.iam.gserviceaccount.com"


def settings(**more: str) -> Settings:
    texts = {name.removeprefix("detcloud:"): text for name, text in VISION.items()}
    return parse_settings("vision", {**texts, "clusterConfig": "pools.yaml", **more})


def test_gcp_stack_without_the_setting_makes_no_copies(gcp_vision: GcpGraph) -> None:
    assert set(gcp_vision.inputs_of("storage/bucket")) == {"objects", "checkpoints"}
    assert set(gcp_vision.inputs_of("cloudscheduler/job")) == {"minute"}
    assert not gcp_vision.inputs_of("storage/transferJob")
    assert "DETCLOUD_STATE_COPY" not in environments(gcp_vision)["tick"]


def test_tick_is_called_for_exports(gcp_copied: GcpGraph) -> None:
    job = gcp_copied.inputs_of("cloudscheduler/job")["exports"]
    assert job["schedule"] == "every 6 hours"
    minute = gcp_copied.inputs_of("cloudscheduler/job")["minute"]["httpTarget"]
    assert job["httpTarget"] == {**minute, "headers": {"x-detcloud-export": "state"}}
    copy = "detcloud-vision-state-123456789012-copy"
    assert environments(gcp_copied)["tick"]["DETCLOUD_STATE_COPY"] == copy


def test_tick_may_export_into_the_copy_alone(gcp_copied: GcpGraph) -> None:
    grant = gcp_copied.inputs_of("projects/iAMMember")["tick-export_rows"]
    assert grant["condition"]["expression"] == (
        'resource.name == "projects/acme-ml/databases/detcloud-vision"'
    )
    written = gcp_copied.inputs_of("storage/bucketIAMMember")["tick-write_exports-state-copy"]
    assert written["bucket"] == "detcloud-vision-state-123456789012-copy"
    roles = gcp_copied.inputs_of("projects/iAMCustomRole")
    assert roles["export_rows"]["permissions"] == list(ROLES["export_rows"])


def test_buckets_are_transferred_into_the_other_region(gcp_copied: GcpGraph) -> None:
    buckets = gcp_copied.inputs_of("storage/bucket")
    abroad = {name for name, made in buckets.items() if made["location"] == "EUROPE-WEST4"}
    assert abroad == {"state-copy", "objects-copy", "checkpoints-copy"}
    jobs = gcp_copied.inputs_of("storage/transferJob")
    assert set(jobs) == {"objects", "checkpoints"}
    objects = jobs["objects"]
    assert objects["transferSpec"] == {
        "gcsDataSource": {"bucketName": "detcloud-vision-objects-123456789012"},
        "gcsDataSink": {"bucketName": "detcloud-vision-objects-123456789012-copy"},
        "transferOptions": {"deleteObjectsUniqueInSink": True},
    }
    # 6 hours in seconds.
    assert objects["schedule"]["repeatInterval"] == "21600s"


def test_transfers_begin_after_the_grants_to_the_agent(gcp_copied: GcpGraph) -> None:
    members = gcp_copied.inputs_of("storage/bucketIAMMember")
    after = gcp_copied.predecessors_of("storage/transferJob", "objects")
    given = {name for name, made in members.items() if made["member"] == AGENT}
    assert after == {name for name in given if name.startswith("transfer-objects-")}
    assert {members[name]["role"] for name in after} == {*SOURCE_ROLES, *COPY_ROLES}


def test_copies_on_gcp_are_private_and_keep_deleted_objects(gcp_copied: GcpGraph) -> None:
    buckets = gcp_copied.inputs_of("storage/bucket")
    for name in ("state-copy", "objects-copy", "checkpoints-copy"):
        made = buckets[name]
        assert made["uniformBucketLevelAccess"]
        assert made["publicAccessPrevention"] == "enforced"
        assert made["versioning"] == {"enabled": True}
        conditions = [rule["condition"] for rule in made["lifecycleRules"]]
        assert {"daysSinceNoncurrentTime": 7, "withState": "ARCHIVED"} in conditions
    ages = [rule["condition"].get("age") for rule in buckets["state-copy"]["lifecycleRules"]]
    # Exports are deleted after 14 days.
    assert 14 in ages


def test_gcp_checkpoints_may_be_left_out(tmp_path: Path) -> None:
    given = {"detcloud:copies": '{"region": "europe-west4", "checkpoints": false}'}
    made = gcp_graph("vision", {**VISION, **given}, tmp_path)
    assert set(made.inputs_of("storage/transferJob")) == {"objects"}
    assert "checkpoints-copy" not in made.inputs_of("storage/bucket")


def test_failed_export_calls_raise_the_alarm(gcp_copied: GcpGraph) -> None:
    [condition] = gcp_copied.inputs_of("monitoring/alertPolicy")["errors"]["conditions"]
    assert '"detcloud-vision-exports"' in condition["conditionMatchedLog"]["filter"]


def test_transfer_agent_is_created_before_the_stack(tmp_path: Path) -> None:
    asked: list[str] = []

    def run() -> None:
        make_stack(lambda build: None, lambda project, api: asked.append(project))

    config = {**COPIED, **gcp_files(tmp_path)}
    run_program(run, "vision", config, GcpGraph())
    assert asked == ["acme-ml"]

    def refuse(project: str, api: object) -> None:
        raise GoogleError(403, "the service is disabled")

    with pytest.raises(Exception, match="the service is disabled; enable storagetransfer"):
        run_program(lambda: make_stack(lambda build: None, refuse), "vision", config, GcpGraph())


def test_gcp_export_to_terraform_refuses_copies(tmp_path: Path) -> None:
    config = {**COPIED, **gcp_files(tmp_path)}
    with pytest.raises(Exception, match="detcloud:copies cannot be exported"):
        run_program(run_export, "vision", config, GcpGraph())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"copies": "europe-west4"}, 'expected a map like {"region": "europe-west4"'),
        ({"copies": '{"hours": 3}'}, "expected a map like"),
        ({"copies": '{"region": "us-west-2x"}'}, "expected a map like"),
        ({"copies": '{"region": "europe-west4", "hours": 0}'}, "from 1 to 168"),
        ({"copies": '{"region": "europe-west4", "days": 1}'}, "expected a map like"),
        ({"copies": '{"region": "us-central1"}'}, "the region of the stack: expected another"),
        ({"copies": COPIES, "kmsKey": KEY}, "detcloud:copies and detcloud:kmsKey exclude"),
    ],
)
def test_refuses_wrong_copies_on_gcp(given: dict[str, str], expected: str) -> None:
    more = {"regions": '["us-central1"]', **given}
    with pytest.raises(SettingsInvalid, match=expected):
        settings(**more)


def test_cost_on_gcp_counts_a_read_for_each_row() -> None:
    # 730 / 24 exports of 100,000 rows for 0.30 $ a million reads.
    expected = 730 / 24 * 100_000 * 0.30e-6
    assert monthly_cost(Copies("europe-west4"), 100_000) == pytest.approx(expected)


def answers(exported: datetime | None, status: str) -> Answers:
    """Return Google's answers with an export of a time, and with transfers of a status."""
    key = exported.strftime("%Y%m%dT%H%M%SZ") if exported else ""
    summary = {"name": f"{key}/{key}.overall_export_metadata", "size": "1"}
    run: Any = {"metadata": {"status": status}}
    return Answers(
        {
            ("GET", "-copy/o"): {"items": [summary] if exported else []},
            ("GET", "transferJobs/detcloud-vision-objects"): {"latestOperationName": "t/1"},
            ("GET", "/t/1"): run,
        }
    )


def test_check_on_gcp_shows_cost_export_and_transfers() -> None:
    recent = datetime.now(UTC) - timedelta(hours=1)
    cost, age, objects, checkpoints = check_copies(
        settings(copies=COPIES), answers(recent, "SUCCESS")
    )
    assert cost.text.startswith("exports of the state to europe-west4 every 6 h cost 3.65 $")
    assert [cost.level, age.level, objects.level] == [Level.FINE] * 3
    assert checkpoints.text == "the bucket of checkpoints has not been copied yet"
    assert check_copies(settings(), Answers({})) == []


def test_check_on_gcp_warns_of_old_exports_and_failed_transfers() -> None:
    old = datetime.now(UTC) - timedelta(hours=13)
    _, age, objects, _ = check_copies(settings(copies=COPIES), answers(old, "FAILED"))
    assert (age.level, age.text) == (Level.WARNING, "the newest export of the state is 13 h old")
    assert objects.text == "the latest transfer of the bucket of objects failed"
    _, age, _, _ = check_copies(settings(copies=COPIES), answers(None, "SUCCESS"))
    assert age.text == "no export of the state has been made in europe-west4 yet"


def test_check_on_gcp_names_what_it_could_not_read() -> None:
    refused = Answers({("GET", "-copy/o"): GoogleError(403, "denied")})
    _, age, *_ = check_copies(settings(copies=COPIES), refused)
    assert (age.level, age.remedy) == (
        Level.WARNING,
        "the check needs storage.objects.list on the copy of the state",
    )
