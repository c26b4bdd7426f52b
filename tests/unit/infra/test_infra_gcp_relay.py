"""The relay of tunnels in the stack on Google Cloud: service, secret and grants."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.conftest import require

require("pulumi_gcp")

from infra.gcp.policies import (  # noqa: E402
    ROLES,
    SETTING_ROLES,
    list_grants,
    list_relay_grants,
)
from infra.gcp.program import run_export  # noqa: E402
from infra.gcp.settings import parse_settings  # noqa: E402
from infra.gcp.terraform import PROVIDER  # noqa: E402
from infra.terraform.export import FILE, export  # noqa: E402
from tests.emulators.gcp_stack_files import gcp_files  # noqa: E402
from tests.unit.infra.gcp_graphs import (  # noqa: E402
    KEY,
    SPEECH,
    VISION,
    GcpGraph,
    environments,
    gcp_graph,
)


def test_each_grant_is_made_once_with_its_condition(gcp_vision: GcpGraph) -> None:
    settings = parse_settings(
        "vision",
        {
            name.removeprefix("detcloud:"): text
            for name, text in {**VISION, "detcloud:clusterConfig": "pools.yaml"}.items()
        },
    )
    wanted = sorted(
        (
            f"Account.{grant.account}.member",
            f"IAMCustomRole.{grant.role}.name",
            grant.condition,
        )
        for grant in (
            *list_grants(settings.names, settings.subnetwork_regions, logs_instances=False),
            *list_relay_grants(),
        )
    )
    made = [
        resource.inputs
        for resource in gcp_vision.resources
        if resource.type.lower().endswith("iammember")
    ]
    assert wanted == sorted(
        (item["member"], item["role"], item.get("condition", {}).get("expression", ""))
        for item in made
    )
    wanted_roles = ({*ROLES} - {*SETTING_ROLES}) | {"read_secret"}
    roles = gcp_vision.inputs_of("projects/iAMCustomRole")
    assert {name: role["permissions"] for name, role in roles.items()} == {
        name: list(permissions) for name, permissions in ROLES.items() if name in wanted_roles
    }


def test_relay_may_read_only_its_secret() -> None:
    grants = [grant for grant in list_relay_grants() if grant.account == "relay"]
    assert [(grant.role, grant.place.kind) for grant in grants] == [("read_secret", "secret")]
    assert ROLES["read_secret"] == ("secretmanager.versions.access",)


def test_secret_has_32_random_bytes_that_later_deployments_keep(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    values = set()
    for graph in (gcp_vision, gcp_speech):
        [version] = [one for one in graph.resources if one.type.endswith(":SecretVersion")]
        assert version.ignored == ("secretData",)
        values.add(version.inputs["secretData"])
        assert len(base64.b64decode(version.inputs["secretData"])) == 32
    assert len(values) == 2


def test_only_relay_and_api_get_the_secret(gcp_vision: GcpGraph) -> None:
    having = {
        name
        for name, variables in environments(gcp_vision).items()
        if "DETCLOUD_RELAY_SECRET" in variables
    }
    assert having == {"api", "relay"}
    before = gcp_vision.predecessors_of("cloudrunv2/service", "relay")
    assert "relay-read_secret-relay" in before


def test_companys_key_encrypts_the_secret_in_the_stacks_region(gcp_bank: GcpGraph) -> None:
    replication = gcp_bank.inputs_of("secretmanager/secret")["relay"]["replication"]
    [replica] = replication["userManaged"]["replicas"]
    assert replica["location"] == "us-central1"
    assert replica["customerManagedEncryption"] == {"kmsKeyName": KEY}


def test_stack_without_a_relay_has_no_part_of_it(tmp_path: Path) -> None:
    graph = gcp_graph("vision", {**VISION, "detcloud:relay": "false"}, tmp_path)
    assert not graph.inputs_of("secretmanager/secret")
    assert "relay" not in graph.inputs_of("cloudrunv2/service")
    assert "relay" not in graph.inputs_of("serviceaccount/account")
    assert not {"DETCLOUD_RELAY_URL", "DETCLOUD_RELAY_SECRET"} & set(environments(graph)["api"])


@pytest.fixture(scope="module")
def document_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exported")
    export(run_export, PROVIDER, "speech", {**SPEECH, **gcp_files(folder)}, folder / "out")
    return (folder / "out" / FILE).read_text()


def test_export_lets_terraform_make_the_secret(document_text: str) -> None:
    version = json.loads(document_text)["resource"]["google_secret_manager_secret_version"]["relay"]
    assert version["secret_data"] == '${base64sha256(join("", [uuid(), uuid()]))}'
    assert version["lifecycle"] == [{"ignore_changes": ["secret_data"]}]
    services = json.loads(document_text)["resource"]["google_cloud_run_v2_service"]
    [container] = services["relay"]["template"][0]["containers"]
    [entry] = [item for item in container["env"] if item["name"] == "DETCLOUD_RELAY_SECRET"]
    [source] = entry["value_source"]
    assert source["secret_key_ref"] == [
        {
            "secret": "${google_secret_manager_secret.relay.secret_id}",
            "version": "${google_secret_manager_secret_version.relay.version}",
        }
    ]
