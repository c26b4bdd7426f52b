"""The role of whoever deploys to Google Cloud: what the stack's resources need, and no more."""

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


def test_the_file_is_the_role() -> None:
    assert ROLE_FILE.read_text() == render_role(), "run python -m infra.gcp.deployer"


def test_each_type_of_the_stacks_says_what_it_needs(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph, gcp_bank: GcpGraph
) -> None:
    graphs = (gcp_vision, gcp_speech, gcp_bank)
    types = {
        resource.type
        for graph in graphs
        for resource in graph.resources
        if resource.type.startswith("gcp:")
    }
    assert types == set(NEEDS)


def test_it_is_a_role_that_gcloud_takes() -> None:
    role = yaml.safe_load(render_role())
    permissions = role["includedPermissions"]
    assert all(PERMISSION.fullmatch(permission) for permission in permissions)
    assert permissions == sorted(set(permissions))
    # A role of one's own has at most 3,000 permissions.
    assert len(permissions) < 3000
    for needs in (need for kind, need in NEEDS.items() if kind != "gcp:billing/budget:Budget"):
        assert set(split_permissions(needs)) <= set(permissions)


def test_an_alarm_on_lines_of_the_log_needs_a_rule_of_the_log_too() -> None:
    rules = {f"logging.notificationRules.{name}" for name in ("create", "delete", "get", "list")}
    assert rules | {"logging.notificationRules.update"} <= permissions_needed()


def test_calls_may_be_counted_against_the_project() -> None:
    assert "serviceusage.services.use" in permissions_needed()


def test_it_may_read_nothing_that_the_cluster_stores() -> None:
    rows = {name for name in permissions_needed() if name.startswith("datastore.entities.")}
    assert rows == set()
    assert "iam.serviceAccounts.getAccessToken" not in permissions_needed()
    assert "iam.serviceAccountKeys.create" not in permissions_needed()


def test_the_binding_of_a_key_names_the_services() -> None:
    texts = {name.removeprefix("detcloud:"): word for name, word in BANK.items()}
    settings = parse_settings("bank", {**texts, "clusterConfig": "pools.yaml"})
    text = render_key_binding(settings)
    # Google makes some of the members when it is asked for them, and no policy takes others.
    for command in (
        "gcloud beta services identity create --service=firestore.googleapis.com --project=acme-ml",
        "gcloud storage service-agent --project=acme-ml",
    ):
        assert f"# {command}\n" in text
    [binding] = yaml.safe_load(text)["bindings"]
    assert binding["role"] == "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    assert len(binding["members"]) == 5
