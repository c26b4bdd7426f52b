"""The reader of a project's facts from Google's answers."""

from collections.abc import Callable
from typing import Any

from control_plane.config.pools import check_cluster
from infra.findings import Unknown
from infra.gcp.account_facts import Policy, Project, TypeFacts
from infra.gcp.account_reader import SERVICES, read_project
from infra.gcp.deployer import permissions_needed
from infra.gcp.google_api import GoogleError
from infra.gcp.machine_catalog import GoogleCatalog
from tests.emulators.gce.serving import GceServer
from tests.unit.infra.google_answers import Answer, Answers
from tests.unit.infra.test_infra_gcp_account_checks import POOLS, ZONES, settings


def google(**more: Answer) -> Answers:
    """Return a complete project without the permission run.services.create and Eventarc."""
    wanted = permissions_needed()

    def test_permissions(body: Any) -> dict[str, Any]:
        assert len(body["permissions"]) <= 100
        assert set(body["permissions"]) <= wanted
        granted = [
            permission for permission in body["permissions"] if permission != "run.services.create"
        ]
        return {"permissions": granted}

    enabled = [
        {"name": f"projects/1/services/{service}.googleapis.com", "state": "ENABLED"}
        for service in SERVICES
    ]
    enabled[SERVICES.index("eventarc")]["state"] = "DISABLED"
    policies: dict[str, Any] = {
        "compute.vmExternalIpAccess": {"spec": {"rules": [{"denyAll": True}]}},
        "run.managed.requireInvokerIam": {"spec": {"rules": [{"enforce": True}]}},
        "gcp.resourceLocations": {
            "spec": {
                "rules": [
                    {"values": {"allowedValues": ["in:us-locations"]}},
                    # A rule for tagged resources is only noted.
                    {"values": {"deniedValues": ["us-central1"]}, "condition": {"expression": "x"}},
                ]
            }
        },
    }
    table: dict[tuple[str, str], Answer] = {
        ("GET", "v1/projects/acme-ml/billingInfo"): {"billingEnabled": True},
        ("POST", "v1/projects/acme-ml:testIamPermissions"): test_permissions,
        ("GET", "services:batchGet"): {"services": enabled},
        ("GET", "compute/v1/projects/acme-ml"): {
            "quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 100.0, "usage": 1.0}]
        },
        ("GET", "regions/us-central1"): {
            "quotas": [{"metric": "NVIDIA_T4_GPUS", "limit": 6.0, "usage": 0.0}]
        },
        ("POST", "v1/projects/acme-ml:getAncestry"): {
            "ancestor": [{"resourceId": {"type": "project", "id": "acme-ml"}}]
        },
        **{
            ("GET", f"policies/{name}:getEffectivePolicy"): policy
            for name, policy in policies.items()
        },
        ("GET", "v1/projects/acme-ml"): {
            "projectNumber": "123456789012",
            "lifecycleState": "ACTIVE",
        },
    }
    return Answers(table)


def test_reads_all_facts_of_a_project(compute_engine: GceServer, catalog: GoogleCatalog) -> None:
    api, project = google(), compute_engine.project
    project.not_offered = {
        *(("a2-highgpu-4g", zone) for zone in ("us-central1-b", *project.zones["europe-west4"])),
    }
    facts = read_project(settings(), check_cluster(POOLS), api, catalog)
    assert facts.project == Project("123456789012", is_active=True)
    assert facts.is_billed is True
    assert facts.disabled_services == ("eventarc", "secretmanager")
    assert facts.denied == ("run.services.create",)
    assert facts.quotas == {
        "": {"GPUS_ALL_REGIONS": 100.0},
        "us-central1": {"NVIDIA_T4_GPUS": 6.0},
    }
    assert isinstance(facts.types, dict)
    assert set(facts.types) == {
        ("us-central1", "a2-highgpu-4g"),
        ("us-central1", "n1-standard-8"),
        ("europe-west4", "n1-standard-8"),
    }
    assert facts.types["us-central1", "a2-highgpu-4g"] == TypeFacts(
        48, 348160, ZONES, 4, "nvidia-tesla-a100", "X86_64"
    )
    assert isinstance(facts.accelerators, dict)
    assert facts.accelerators["nvidia-tesla-t4"].number_max == 4
    assert facts.names == {}
    assert facts.policies["compute.vmExternalIpAccess"] == Policy(denies_all=True)
    assert facts.policies["run.managed.requireInvokerIam"] == Policy(is_enforced=True)
    locations = facts.policies["gcp.resourceLocations"]
    assert locations == Policy(allowed=frozenset({"in:us-locations"}), has_conditions=True)
    # An unset constraint refuses nothing.
    assert facts.policies["run.allowedIngress"] == Policy()
    assert {method for method, _, _ in api.calls} == {"GET", "POST"}


def test_budget_needs_the_billing_budgets_service(catalog: GoogleCatalog) -> None:
    budget = {"monthlyBudget": "5", "billingAccount": "01AB23-45CD67-89EF01"}
    given = settings(alarmEmail="a@b.example", **budget)
    facts = read_project(given, check_cluster(POOLS), google(), catalog)
    assert facts.disabled_services == ("eventarc", "billingbudgets", "secretmanager")


def test_fact_that_google_refuses_is_unknown(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    def refuse(status: int) -> Callable[[Any], Any]:
        return lambda body: GoogleError(status, "no")

    api = google()
    api.table["GET", "regions/us-central1"] = refuse(403)
    api.table["GET", "v1/projects/acme-ml"] = refuse(401)
    compute_engine.project.fail("listMachineTypes", 403, "forbidden", "Required permission")
    facts = read_project(settings(), check_cluster(POOLS), api, catalog)
    assert facts.types == Unknown("compute.machineTypes.list", "Required permission")
    assert facts.quotas["us-central1"] == Unknown("compute.regions.get", "no")
    assert facts.project == Unknown("resourcemanager.projects.get", "no", is_login=True)
