"""The deployer's role on Google Cloud: exactly the permissions that the stack's resources need."""

import re

import yaml

from infra.gcp.deployer import (
    NEEDS,
    ROLE_FILE,
    permissions_needed,
    render_key_binding,
    render_role,
    split_permissions,
)
from infra.gcp.settings import parse_settings
from tests.unit.infra.gcp_graphs import BANK, GcpGraph

PERMISSION = re.compile(r"[a-z]+\.[a-zA-Z]+\.[a-zA-Z]+")


def test_role_file_is_current() -> None:
    assert ROLE_FILE.read_text() == render_role(), "run python -m infra.gcp.deployer"


def test_all_gcp_resource_types_have_needed_permissions(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph, gcp_bank: GcpGraph, gcp_copied: GcpGraph
) -> None:
    graphs = (gcp_vision, gcp_speech, gcp_bank, gcp_copied)
    types = {
        resource.type
        for graph in graphs
        for resource in graph.resources
        if resource.type.startswith("gcp:")
    }
    assert types == set(NEEDS)


def test_role_has_sorted_valid_permissions_below_the_limit() -> None:
    role = yaml.safe_load(render_role())
    permissions = role["includedPermissions"]
    assert all(PERMISSION.fullmatch(permission) for permission in permissions)
    assert permissions == sorted(set(permissions))
    # A custom role has at most 3,000 permissions.
    assert len(permissions) < 3000
    for needs in (need for kind, need in NEEDS.items() if kind != "gcp:billing/budget:Budget"):
        assert set(split_permissions(needs)) <= set(permissions)


def test_role_may_manage_log_notification_rules() -> None:
    rules = {f"logging.notificationRules.{name}" for name in ("create", "delete", "get", "list")}
    assert rules | {"logging.notificationRules.update"} <= permissions_needed()


def test_role_may_use_the_projects_quota() -> None:
    assert "serviceusage.services.use" in permissions_needed()


def test_role_may_not_read_stored_rows_or_make_credentials() -> None:
    rows = {name for name in permissions_needed() if name.startswith("datastore.entities.")}
    assert rows == set()
    assert "iam.serviceAccounts.getAccessToken" not in permissions_needed()
    assert "iam.serviceAccountKeys.create" not in permissions_needed()


def test_key_binding_names_the_service_agents() -> None:
    texts = {name.removeprefix("detcloud:"): word for name, word in BANK.items()}
    settings = parse_settings("bank", {**texts, "clusterConfig": "pools.yaml"})
    text = render_key_binding(settings)
    # Google creates some of the members on demand, and a policy refuses missing members.
    for command in (
        *(
            f"gcloud beta services identity create --service={service}.googleapis.com "
            "--project=acme-ml"
            for service in ("firestore", "secretmanager")
        ),
        "gcloud storage service-agent --project=acme-ml",
    ):
        assert f"# {command}\n" in text
    [binding] = yaml.safe_load(text)["bindings"]
    assert binding["role"] == "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    assert len(binding["members"]) == 6
