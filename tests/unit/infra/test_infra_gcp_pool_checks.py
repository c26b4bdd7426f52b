"""The check of pools on Google Cloud against the stack, and of subnetworks of a host project."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.config.pools import check_cluster
from infra.findings import Finding, Level, Unknown
from infra.gcp.account_reader import read_project
from infra.gcp.machine_catalog import GoogleCatalog
from infra.gcp.pool_checks import find_pool_problems
from tests.unit.infra.google_answers import Answers
from tests.unit.infra.test_infra_gcp_account_checks import FINE, POOLS, findings, settings

POOL_PROBLEMS = [
    ("project: other", "provider.project is other: expected acme-ml"),
    ("name_prefix: mine", "expected none, for the tick may end instances alone whose names begin"),
    ("service_account: {email: a@b.c}", "provider.service_account.email is a@b.c: expected none"),
    ("zone: europe-west4-a", "to be in europe-west4: expected one of us-central1"),
    ("region: europe-west4", "add it to detcloud:regions"),
]


@pytest.mark.parametrize(("line", "expected"), POOL_PROBLEMS)
def test_refuses_pools_that_cannot_run_in_the_stack(line: str, expected: str) -> None:
    pools = POOLS.replace("      max_instances: 3", f"      max_instances: 3\n      {line}")
    [problem] = find_pool_problems(settings(), check_cluster(pools))
    assert problem.startswith("pools.yaml: pool gpus: ")
    assert expected in problem


def test_accepts_a_pool_in_a_configured_region() -> None:
    pools = POOLS.replace("      max_instances: 3", "      zone: us-west1-b")
    given = settings(regions='["us-central1", "us-west1"]')
    assert find_pool_problems(given, check_cluster(pools)) == []


HOST = "projects/net-host/regions/us-central1/subnetworks/gpus"
SHARED = '{"network": "projects/net-host/global/networks/n", "subnetworks": {"us-central1": "%s"}}'


def test_reads_missing_permissions_on_a_host_projects_subnetwork(
    catalog: GoogleCatalog,
) -> None:
    queries: list[Any] = []

    def answer(body: Any) -> Any:
        queries.append(body["permissions"])
        return {"permissions": ["compute.subnetworks.getIamPolicy"]}

    api = Answers({("POST", f"{HOST}/testIamPermissions"): answer})
    shared = settings(network=SHARED % HOST)
    facts = read_project(shared, check_cluster(POOLS), api, catalog)
    assert queries == [
        [f"compute.subnetworks.{name}" for name in ("use", "getIamPolicy", "setIamPolicy")]
    ]
    missing = ("compute.subnetworks.use", "compute.subnetworks.setIamPolicy")
    assert facts.denied_at == {HOST: missing}
    # Permissions on the project's own subnetworks are read with the project.
    own = settings(network=SHARED % "gpus")
    assert read_project(own, check_cluster(POOLS), Answers({}), catalog).denied_at == {}


def test_missing_subnetwork_permission_names_role_and_project() -> None:
    def finding_without(*denied: str) -> Finding:
        [finding] = findings(replace(FINE, denied_at={HOST: denied})).values()
        return finding

    use = finding_without("compute.subnetworks.use")
    assert (use.level, use.subject) == (Level.WARNING, f"subnetwork {HOST}")
    assert "the host project net-host to grant roles/compute.networkUser" in use.remedy
    assert "--project net-host --region us-central1" in use.remedy
    assert "dc-vision-tick@acme-ml.iam.gserviceaccount.com" in use.remedy
    # The stack needs setIamPolicy to give its tick the subnetwork.
    policy = finding_without("compute.subnetworks.use", "compute.subnetworks.setIamPolicy")
    assert policy.level is Level.ERROR
    assert "compute.subnetworks.getIamPolicy, compute.subnetworks.setIamPolicy" in policy.remedy
    unseen = replace(FINE, denied_at={HOST: Unknown("to see the subnetwork", "not found")})
    [finding] = findings(unseen).values()
    assert (finding.level, finding.text) == (Level.WARNING, "could not be checked: not found")
