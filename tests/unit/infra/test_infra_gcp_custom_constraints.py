"""Custom constraints of an organization that are enforced for a project."""

from typing import Any

from infra.findings import Level, Unknown
from infra.gcp.account_facts import CustomConstraint, CustomConstraints
from infra.gcp.custom_constraints import check_custom_constraints, read_custom_constraints
from infra.gcp.google_api import GoogleError
from tests.unit.infra.google_answers import Answer, Answers

ORGANIZATION = "organizations/7"
DENIED = GoogleError(403, "permission denied")


def ancestry(*kinds: str) -> dict[str, Any]:
    ids = {"project": "acme-ml", "folder": "5", "organization": "7"}
    return {"ancestor": [{"resourceId": {"type": kind, "id": ids[kind]}} for kind in kinds]}


def answers(**changes: Answer) -> Answers:
    """Return the answers of a project with a constraint of the folder and one of the organization.

    `changes` replace answers: `ancestry`, `folder`, `effective`, `definition`.
    """
    folder = {"policies": [{"name": "folders/5/policies/custom.noGpus"}]}
    definition = {
        "actionType": "DENY",
        "condition": "resource.machineType.contains('a2')",
        "resourceTypes": ["compute.googleapis.com/Instance"],
    }
    table: dict[tuple[str, str], Answer] = {
        ("POST", ":getAncestry"): ancestry("project", "folder", "organization"),
        ("GET", "v2/projects/acme-ml/policies"): {},
        ("GET", "v2/folders/5/policies"): changes.get("folder", folder),
        ("GET", "v2/organizations/7/policies"): {
            "policies": [
                {"name": "organizations/7/policies/custom.off"},
                {"name": "organizations/7/policies/compute.requireOsLogin"},
            ]
        },
        ("GET", "projects/acme-ml/policies/custom.noGpus:getEffectivePolicy"): changes.get(
            "effective", {"spec": {"rules": [{"enforce": True}]}}
        ),
        ("GET", "projects/acme-ml/policies/custom.off:getEffectivePolicy"): {
            "spec": {"rules": [{"enforce": False}]}
        },
        ("GET", "organizations/7/customConstraints/custom.noGpus"): changes.get(
            "definition", definition
        ),
    }
    if "ancestry" in changes:
        table["POST", ":getAncestry"] = changes["ancestry"]
    return Answers(table)


def test_reads_enforced_constraints_of_all_ancestors() -> None:
    assert read_custom_constraints("acme-ml", answers()) == CustomConstraints(
        (
            CustomConstraint(
                "custom.noGpus",
                ("compute.googleapis.com/Instance",),
                "DENY if resource.machineType.contains('a2')",
            ),
        )
    )


def test_project_without_an_organization_has_none() -> None:
    api = answers(ancestry=ancestry("project"))
    assert read_custom_constraints("acme-ml", api) == CustomConstraints()
    assert api.urls_of("GET") == []


def test_unreadable_parts_are_noted() -> None:
    assert read_custom_constraints("acme-ml", answers(folder=DENIED)) == CustomConstraints(
        (), {"folders/5": Unknown("orgpolicy.policies.list on folders/5", "permission denied")}
    )
    assert read_custom_constraints("acme-ml", answers(effective=DENIED)) == CustomConstraints(
        (), {"custom.noGpus": Unknown("orgpolicy.policy.get", "permission denied")}
    )
    assert read_custom_constraints("acme-ml", answers(definition=DENIED)) == CustomConstraints(
        (CustomConstraint("custom.noGpus"),)
    )
    assert read_custom_constraints("acme-ml", answers(ancestry=DENIED)) == Unknown(
        "resourcemanager.projects.get", "permission denied"
    )


def test_constraints_on_other_services_are_left_out() -> None:
    clusters = CustomConstraint("custom.a", ("container.googleapis.com/Cluster",), "DENY if x")
    buckets = CustomConstraint("custom.b", ("storage.googleapis.com/Bucket",), "ALLOW if y")
    unknown = CustomConstraint("custom.c")
    custom = CustomConstraints((clusters, buckets, unknown))
    found = list(check_custom_constraints(custom, ("compute", "storage")))
    assert [(finding.level, finding.subject) for finding in found] == [
        (Level.WARNING, "policy custom.b"),
        (Level.WARNING, "policy custom.c"),
    ]
    assert "(storage.googleapis.com/Bucket: ALLOW if y)" in found[0].text
    assert "(unknown resources)" in found[1].text
