"""The check of a project: facts become findings."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from control_plane.config.pools import check_cluster
from infra.findings import Finding, Level, Unknown
from infra.gcp.account_checks import check_facts
from infra.gcp.account_facts import (
    AcceleratorFacts,
    CustomConstraint,
    CustomConstraints,
    Policy,
    Project,
    ProjectFacts,
    TypeFacts,
)
from infra.gcp.account_reader import CONSTRAINTS
from infra.gcp.settings import Settings, parse_settings
from tests.unit.infra.gcp_graphs import KEY

POOLS = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: gpus}
resource_pools:
  - pool_name: gpus
    provider:
      type: gcp
      max_instances: 3
      offerings:
        - {instance_type: a2-highgpu-4g, market: spot}
        - {instance_type: n1-standard-8+nvidia-tesla-t4:2, market: on_demand}
"""
IMAGES = dict.fromkeys(("image", "suggestImage"), f"r.pkg.dev/i@sha256:{'a' * 64}")
ZONES = frozenset({"us-central1-a", "us-central1-c"})


def settings(**more: str) -> Settings:
    given = {
        "project": "acme-ml",
        "projectNumber": "123456789012",
        "region": "us-central1",
        "clusterConfig": "pools.yaml",
        "adminSha256": "a" * 64,
    }
    return parse_settings("vision", {**given, **more})


# Each of the 3 instances has a boot disk of 200 GB, a public address, and 48 vCPUs on the spot
# market or 8 on demand.
CPU_QUOTAS = {"PREEMPTIBLE_CPUS": 144.0, "CPUS": 24.0, "A2_CPUS": 144.0}
OTHER_QUOTAS = {"DISKS_TOTAL_GB": 600.0, "IN_USE_ADDRESSES": 3.0, **CPU_QUOTAS}
FINE = ProjectFacts(
    project=Project("123456789012", is_active=True),
    is_billed=True,
    disabled_services=(),
    denied=(),
    quotas={
        "": {"GPUS_ALL_REGIONS": 100},
        "us-central1": {"PREEMPTIBLE_NVIDIA_A100_GPUS": 12, "NVIDIA_T4_GPUS": 6, **OTHER_QUOTAS},
    },
    types={
        ("us-central1", "a2-highgpu-4g"): TypeFacts(48, 348160, ZONES, 4, "nvidia-tesla-a100"),
        ("us-central1", "n1-standard-8"): TypeFacts(8, 30720, ZONES | {"us-central1-b"}),
    },
    accelerators={
        "nvidia-tesla-a100": AcceleratorFacts(ZONES, 16),
        "nvidia-tesla-t4": AcceleratorFacts(frozenset({"us-central1-b"}), 4),
    },
    policies=dict.fromkeys(CONSTRAINTS, Policy()),
)


def findings(facts: ProjectFacts, **more: str) -> dict[str, Finding]:
    """Return the findings that are not fine, by subject."""
    results = check_facts(settings(**more), check_cluster(POOLS), facts)
    return {finding.subject: finding for finding in results if finding.level is not Level.FINE}


def check_finding(facts: ProjectFacts, subject: str, level: Level, text: str, remedy: str) -> None:
    """Check level, text and remedy of a finding. `text` and `remedy` may be parts."""
    finding = findings(facts)[subject]
    assert finding.level is level
    assert text in finding.text
    assert remedy in finding.remedy


def test_complete_project_has_only_fine_findings() -> None:
    results = check_facts(settings(), check_cluster(POOLS), FINE)
    assert {finding.level for finding in results} == {Level.FINE}
    texts = {finding.subject: finding.text for finding in results}
    assert texts["pool gpus, a2-highgpu-4g spot"] == (
        "offered in us-central1-a, us-central1-c: 4 GPUs (nvidia-tesla-a100), 48 vCPUs, 340 GiB "
        "of memory"
    )
    # At most 3 instances, with 4 GPUs or with 2.
    quota = texts["quota PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1"]
    assert quota == "12 GPUs, enough for the 12 of gpus"
    assert texts["quota NVIDIA_T4_GPUS in us-central1"] == "6 GPUs, enough for the 6 of gpus"
    # The pool has at most 3 instances of all types together.
    disks = texts["quota DISKS_TOTAL_GB in us-central1"]
    assert disks == "600 GB of disks, enough for the 600 of gpus"
    addresses = texts["quota IN_USE_ADDRESSES in us-central1"]
    assert addresses == "3 public addresses, enough for the 3 of gpus"
    spot = texts["quota PREEMPTIBLE_CPUS in us-central1"]
    assert spot == "144 vCPUs, enough for the 144 of gpus"
    assert texts["quota CPUS in us-central1"] == "24 vCPUs, enough for the 24 of gpus"


def policies(name: str, policy: Policy) -> ProjectFacts:
    return replace(FINE, policies={**FINE.policies, name: policy})


def quotas(region: Mapping[str, float], overall: float = 100) -> ProjectFacts:
    return replace(FINE, quotas={"": {"GPUS_ALL_REGIONS": overall}, "us-central1": region})


def types(name: str, facts: TypeFacts) -> ProjectFacts:
    assert isinstance(FINE.types, dict)
    return replace(FINE, types={**FINE.types, ("us-central1", name): facts})


def accelerators(name: str, facts: AcceleratorFacts) -> ProjectFacts:
    assert isinstance(FINE.accelerators, dict)
    return replace(FINE, accelerators={**FINE.accelerators, name: facts})


ELSEWHERE = frozenset({"europe-west4-b", "europe-west4-a"})
A100 = "quota PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1"
T4 = {"NVIDIA_T4_GPUS": 6.0, **OTHER_QUOTAS}
ENOUGH = {"PREEMPTIBLE_NVIDIA_A100_GPUS": 12.0, **T4}
PROBLEMS: list[tuple[ProjectFacts, str, Level, str, str]] = [
    (
        replace(FINE, project=Project("5", is_active=True)),
        "project",
        Level.ERROR,
        "the number of acme-ml is 5, and detcloud:projectNumber is 123456789012",
        "set detcloud:projectNumber: 5",
    ),
    (
        replace(FINE, project=Project("123456789012", is_active=False)),
        "project",
        Level.ERROR,
        "scheduled for deletion",
        "another project",
    ),
    (
        replace(FINE, is_billed=False),
        "billing",
        Level.ERROR,
        "no billing account",
        "link an account",
    ),
    (
        replace(FINE, disabled_services=("run", "eventarc")),
        "services",
        Level.ERROR,
        "not enabled: run, eventarc",
        "gcloud services enable run.googleapis.com eventarc.googleapis.com --project acme-ml",
    ),
    (
        replace(FINE, denied=("run.services.create",)),
        "permissions",
        Level.ERROR,
        "may not run.services.create",
        "detcloud deploy policy gcp",
    ),
    (
        replace(FINE, types={}),
        "pool gpus, a2-highgpu-4g spot",
        Level.ERROR,
        "us-central1 does not offer this type",
        "another region",
    ),
    (
        replace(FINE, types={("europe-west4", "a2-highgpu-4g"): TypeFacts(48, 1, ELSEWHERE)}),
        "pool gpus, a2-highgpu-4g spot",
        Level.ERROR,
        "us-central1 does not offer this type; europe-west4-a, europe-west4-b do",
        "use another type, or another region",
    ),
    (
        replace(FINE, types={}, names={"us-central1": frozenset({"a2-highgpu-8g", "e2-micro"})}),
        "pool gpus, a2-highgpu-4g spot",
        Level.ERROR,
        "us-central1 does not offer this type",
        "use another type, such as a2-highgpu-8g, or another region",
    ),
    (
        types("a2-highgpu-4g", TypeFacts(48, 348160, ZONES, 8, "nvidia-tesla-a100")),
        "pool gpus, a2-highgpu-4g spot",
        Level.ERROR,
        "it has 8 GPUs, and the cluster counts 4",
        "correct the number in provider.machine_types",
    ),
    (
        types("n1-standard-8", TypeFacts(8, 30720, ZONES, architecture="ARM64")),
        "pool gpus, n1-standard-8 on demand",
        Level.ERROR,
        "its processors are ARM64, and the default machine image is for X86_64",
        "provider.boot_disk_source_image",
    ),
    (
        accelerators("nvidia-tesla-t4", AcceleratorFacts(frozenset({"us-central1-b"}), 1)),
        "pool gpus, n1-standard-8 on demand",
        Level.ERROR,
        "an instance takes 1 of nvidia-tesla-t4 at most",
        "attach 1 or fewer",
    ),
    (
        replace(FINE, accelerators={}),
        "pool gpus, a2-highgpu-4g spot",
        Level.ERROR,
        "no zone of us-central1 offers it with nvidia-tesla-a100",
        "another type",
    ),
    # An instance has 4 GPUs.
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 3, **T4}),
        A100,
        Level.ERROR,
        "3 GPUs, and one a2-highgpu-4g has 4",
        "request an increase at https://console.cloud.google.com/iam-admin/quotas?project=acme-ml",
    ),
    # 3 instances have 12.
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 8, **T4}),
        A100,
        Level.WARNING,
        "8 GPUs, and the pools gpus may want 12",
        "request an increase",
    ),
    (quotas(T4), A100, Level.WARNING, "does not list it", "look at"),
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 0, **T4}),
        A100,
        Level.ERROR,
        "0 GPUs, and one a2-highgpu-4g has 4",
        "request an increase",
    ),
    # Without a spot quota, spot instances count against the quota on demand.
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 0, "NVIDIA_A100_GPUS": 8, **T4}),
        A100,
        Level.WARNING,
        "spot instances count against NVIDIA_A100_GPUS, which is 8",
        "request PREEMPTIBLE_NVIDIA_A100_GPUS at",
    ),
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 12, **T4, "DISKS_TOTAL_GB": 500}),
        "quota DISKS_TOTAL_GB in us-central1",
        Level.WARNING,
        "500 GB of disks, and the pools gpus may want 600",
        "request an increase",
    ),
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 12, **T4, "DISKS_TOTAL_GB": 100}),
        "quota DISKS_TOTAL_GB in us-central1",
        Level.ERROR,
        "100 GB of disks, and one a2-highgpu-4g has 200",
        "request an increase",
    ),
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 12, **T4}, overall=0),
        "quota GPUS_ALL_REGIONS",
        Level.ERROR,
        "0 GPUs, and one n1-standard-8 has 2",
        "request an increase",
    ),
    # Enough for an instance with two T4, but not for four A100.
    (
        quotas({"PREEMPTIBLE_NVIDIA_A100_GPUS": 12, **T4}, overall=2),
        "quota GPUS_ALL_REGIONS",
        Level.WARNING,
        "too few for one a2-highgpu-4g",
        "request an increase",
    ),
    (
        policies("compute.vmExternalIpAccess", Policy(denies_all=True)),
        "policy compute.vmExternalIpAccess",
        Level.ERROR,
        "no public address",
        "set detcloud:privateSubnets: true",
    ),
    (
        policies("run.managed.requireInvokerIam", Policy(is_enforced=True)),
        "policy run.managed.requireInvokerIam",
        Level.ERROR,
        "would be unreachable",
        "exception",
    ),
    (
        policies("run.allowedIngress", Policy(allowed=frozenset({"internal"}))),
        "policy run.allowedIngress",
        Level.ERROR,
        "cannot be reached from the internet",
        "exception",
    ),
    (
        policies("iam.disableServiceAccountCreation", Policy(is_enforced=True)),
        "policy iam.disableServiceAccountCreation",
        Level.ERROR,
        "no service account can be made",
        "exception",
    ),
    (
        policies(
            "gcp.restrictNonCmekServices", Policy(denied=frozenset({"firestore.googleapis.com"}))
        ),
        "policy gcp.restrictNonCmekServices",
        Level.ERROR,
        "firestore need a customer-managed key",
        "set detcloud:kmsKey",
    ),
    (
        policies("gcp.resourceLocations", Policy(allowed=frozenset({"in:eu-locations"}))),
        "policy gcp.resourceLocations",
        Level.ERROR,
        "us-central1 are not allowed",
        "use a region",
    ),
    (
        policies("compute.requireShieldedVm", Policy(is_enforced=True)),
        "policy compute.requireShieldedVm",
        Level.ERROR,
        "instances without secure boot are refused: pools gpus",
        "set provider.base_config: {shieldedInstanceConfig: {enableSecureBoot: true, ",
    ),
    (
        policies(
            "compute.trustedImageProjects", Policy(allowed=frozenset({"projects/debian-cloud"}))
        ),
        "policy compute.trustedImageProjects",
        Level.ERROR,
        "no instance may have images of projects/ubuntu-os-accelerator-images: pools gpus",
        "set provider.boot_disk_source_image",
    ),
    # The folder of Google's image projects is unknown.
    (
        policies("compute.trustedImageProjects", Policy(allowed=frozenset({"under:folders/1"}))),
        "policy compute.trustedImageProjects",
        Level.WARNING,
        "cannot tell whether projects/ubuntu-os-accelerator-images may be used for images",
        "set provider.boot_disk_source_image",
    ),
    (
        policies("compute.requireOsLogin", Policy(has_conditions=True)),
        "policy compute.requireOsLogin",
        Level.WARNING,
        "a rule depends on a condition",
        "gcloud org-policies describe compute.requireOsLogin",
    ),
    (
        policies("compute.managed.requireOsLogin", Policy(is_enforced=True)),
        "policy compute.managed.requireOsLogin",
        Level.WARNING,
        "cannot tell what the project's metadata have for enable-oslogin: pools gpus",
        "set enable-oslogin in provider.base_config.metadata to TRUE",
    ),
    (
        policies("compute.disableInstanceDataAccessApis", Policy(is_enforced=True)),
        "policy compute.disableInstanceDataAccessApis",
        Level.WARNING,
        "cannot read the serial port",
        "use_cloud_logging",
    ),
    (
        policies("gcp.resourceLocations", Policy(allowed=frozenset({"in:canada-locations"}))),
        "policy gcp.resourceLocations",
        Level.WARNING,
        "cannot tell whether us-central1 is in in:canada-locations",
        "value groups",
    ),
    (
        policies("gcp.resourceLocations", Policy(allowed=frozenset({"us-central1-b"}))),
        "policy gcp.resourceLocations",
        Level.ERROR,
        "us-central1 are not allowed",
        "use a region",
    ),
    (
        replace(
            FINE,
            custom=CustomConstraints(
                (CustomConstraint("custom.noGpus", ("compute.googleapis.com/Instance",), "DENY"),)
            ),
        ),
        "policy custom.noGpus",
        Level.WARNING,
        "cannot tell whether it refuses the stack or launches (compute.googleapis.com/Instance",
        "gcloud org-policies describe-custom-constraint custom.noGpus",
    ),
    (
        replace(
            FINE,
            custom=CustomConstraints(
                (), {"folders/1": Unknown("orgpolicy.policies.list on folders/1", "denied")}
            ),
        ),
        "custom constraints of folders/1",
        Level.WARNING,
        "could not be checked: denied",
        "the check needs orgpolicy.policies.list on folders/1",
    ),
    (
        policies(
            "cloudbuild.allowedWorkerPools",
            Policy(allowed=frozenset({"projects/acme-ml/locations/us-central1/workerPools/ours"})),
        ),
        "policy cloudbuild.allowedWorkerPools",
        Level.ERROR,
        "Cloud Build may not build the images",
        "set detcloud:image and suggestImage",
    ),
    (
        policies("gcp.restrictServiceUsage", Policy(denied=frozenset({"eventarc.googleapis.com"}))),
        "policy gcp.restrictServiceUsage",
        Level.ERROR,
        "eventarc may not be used",
        "exception",
    ),
    # The policy allows only a week.
    (
        policies("storage.softDeletePolicySeconds", Policy(allowed=frozenset({"604800"}))),
        "policy storage.softDeletePolicySeconds",
        Level.ERROR,
        "buckets must keep deleted objects",
        "exception",
    ),
]


@pytest.mark.parametrize(("facts", "subject", "level", "text", "remedy"), PROBLEMS)
def test_each_project_problem_has_a_finding_with_a_remedy(
    facts: ProjectFacts, subject: str, level: Level, text: str, remedy: str
) -> None:
    check_finding(facts, subject, level, text, remedy)


@pytest.mark.parametrize(
    ("name", "policy", "more"),
    [
        ("compute.vmExternalIpAccess", Policy(denies_all=True), {"privateSubnets": "true"}),
        (
            "gcp.restrictNonCmekServices",
            Policy(denied=frozenset({"storage.googleapis.com"})),
            {"kmsKey": KEY},
        ),
        ("gcp.resourceLocations", Policy(allowed=frozenset({"in:us-locations"})), {}),
        ("gcp.resourceLocations", Policy(denied=frozenset({"in:asia-locations"})), {}),
        ("run.allowedIngress", Policy(allowed=frozenset({"all"})), {}),
        (
            "compute.trustedImageProjects",
            Policy(allowed=frozenset({"projects/ubuntu-os-accelerator-images"})),
            {},
        ),
        ("cloudbuild.allowedWorkerPools", Policy(denies_all=True), IMAGES),
        ("storage.softDeletePolicySeconds", Policy(allowed=frozenset({"0", "604800"})), {}),
    ],
)
def test_harmless_organization_policy_is_fine(
    name: str, policy: Policy, more: dict[str, str]
) -> None:
    assert findings(policies(name, policy), **more) == {}


def test_secure_boot_satisfies_the_shielded_vm_policy() -> None:
    config = "base_config: {shieldedInstanceConfig: {enableSecureBoot: true}}"
    shielded = POOLS.replace("      max_instances: 3", f"      max_instances: 3\n      {config}")
    facts = policies("compute.requireShieldedVm", Policy(is_enforced=True))
    results = check_facts(settings(), check_cluster(shielded), facts)
    assert {finding.level for finding in results} == {Level.FINE}


def test_unreadable_policy_is_a_warning() -> None:
    unknown = Unknown("orgpolicy.policy.get", "permission denied")
    facts = replace(FINE, policies={"run.allowedIngress": unknown})
    [finding] = findings(facts).values()
    assert finding.level is Level.WARNING
    assert finding.text == "could not be checked: permission denied"
    assert finding.remedy == "the check needs orgpolicy.policy.get"


def test_unreadable_policies_share_a_warning() -> None:
    # The API of organization policies is seldom enabled in a project without an organization.
    unknown = Unknown("orgpolicy.policy.get", "the API has not been used in project 1")
    [finding] = findings(replace(FINE, policies=dict.fromkeys(CONSTRAINTS, unknown))).values()
    assert (finding.subject, finding.level) == ("policies of the organization", Level.WARNING)
    assert finding.text == "could not be checked: the API has not been used in project 1"
    assert "gcloud services enable orgpolicy.googleapis.com" in finding.remedy
    assert "a project without an organization has none" in finding.remedy


def test_missing_google_credentials_are_the_only_finding() -> None:
    unknown = Unknown("resourcemanager.projects.get", "no credentials: none", is_login=True)
    [finding] = check_facts(settings(), check_cluster(POOLS), replace(FINE, project=unknown))
    assert (finding.subject, finding.level) == ("credentials", Level.ERROR)
    assert "gcloud auth application-default login" in finding.remedy
