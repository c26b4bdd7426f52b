"""A stack on Google Cloud as Terraform's JSON."""

import argparse
import json
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.deploy import _stack_config
from infra.gcp.program import PROGRAM, run_export
from infra.gcp.terraform import PROVIDER
from infra.terraform.export import FILE, export
from tests.emulators.gcp_stack_files import gcp_files
from tests.unit.infra.gcp_graphs import SPEECH, VISION, GcpGraph


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("exported")
    export(run_export, PROVIDER, "speech", {**SPEECH, **gcp_files(folder)}, folder / "out")
    parsed: dict[str, Any] = json.loads((folder / "out" / FILE).read_text())
    return parsed


def test_export_has_all_resources_of_the_gcp_program(
    document: dict[str, Any], gcp_speech: GcpGraph
) -> None:
    exported = sum(map(len, document["resource"].values()))
    assert exported == len(
        [resource for resource in gcp_speech.resources if resource.type.startswith("gcp:")]
    )


def test_provider_uses_the_project_for_quota(document: dict[str, Any]) -> None:
    # Budgets require that calls with people's credentials count against the project's quota.
    assert document["provider"]["google"] == {
        "project": "acme-ml",
        "region": "us-central1",
        "billing_project": "acme-ml",
        "user_project_override": True,
    }
    assert document["terraform"]["required_providers"]["google"]["source"] == "hashicorp/google"


def test_export_uses_the_names_of_terraforms_google_provider(document: dict[str, Any]) -> None:
    resources = document["resource"]
    service = resources["google_cloud_run_v2_service"]["tick"]
    [template] = service["template"]
    [container] = template["containers"]
    assert {item["name"] for item in container["env"]} >= {"DETCLOUD_FUNCTION", "DETCLOUD_NETWORK"}
    assert service["traffic"][0]["percent"] == 100
    [trigger] = [resources["google_eventarc_trigger"]["mail"]]
    assert len(trigger["matching_criteria"]) == 3
    bucket = resources["google_storage_bucket"]["objects"]
    assert bucket["lifecycle_rule"][1]["condition"][0]["matches_prefix"] == ["function-sources/"]
    assert resources["google_project_iam_custom_role"]["rows"]["role_id"] == "detcloud_speech_rows"


def test_inputs_become_references_to_google_resources(document: dict[str, Any]) -> None:
    resources = document["resource"]
    member = resources["google_storage_bucket_iam_member"]["api_write_objects_objects"]
    assert member["role"] == "${google_project_iam_custom_role.write_objects.name}"
    assert member["member"] == "${google_service_account.api.member}"
    job = resources["google_cloud_scheduler_job"]["minute"]
    assert job["http_target"][0]["uri"] == "${google_cloud_run_v2_service.tick.uri}"
    assert (
        "google_project_iam_member.tick_rows"
        in (resources["google_cloud_run_v2_service"]["tick"]["depends_on"])
    )


def test_export_with_prebuilt_images_builds_no_archives(tmp_path: Path) -> None:
    given = {**SPEECH, **gcp_files(tmp_path)}
    del given["detcloud:archive"], given["detcloud:suggestArchive"]
    options = argparse.Namespace(team="speech")
    assert _stack_config(PROGRAM, options, tmp_path / "out", given) == given
    assert not (tmp_path / "out").exists()


def test_export_needs_prebuilt_images(tmp_path: Path) -> None:
    with pytest.raises(pulumi.RunError, match="detcloud:image is missing: Terraform builds none"):
        export(run_export, PROVIDER, "vision", {**VISION, **gcp_files(tmp_path)}, tmp_path / "out")
