"""The check of pools in a remote account, which equals the check of the cluster's own pools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import require

for package in ("botocore", "boto3", "google.auth"):
    require(package)

from botocore.exceptions import ClientError  # noqa: E402

from control_plane.config.pools import ClusterConfig, check_cluster  # noqa: E402
from infra.aws.remote_pools import find_pool_findings as find_aws_findings  # noqa: E402
from infra.aws.settings import Network, Settings  # noqa: E402
from infra.findings import Finding, Level  # noqa: E402
from infra.gcp.google_api import GoogleError  # noqa: E402
from infra.gcp.launch_policies import LAUNCH_RULES  # noqa: E402
from infra.gcp.machine_catalog import GoogleCatalog  # noqa: E402
from infra.gcp.names import Names  # noqa: E402
from infra.gcp.remote_pools import find_pool_findings  # noqa: E402
from infra.gcp.trust_policies import Trust  # noqa: E402
from infra.gcp.trust_script import SERVICES  # noqa: E402
from infra.remote_accounts import Launcher  # noqa: E402
from tests.emulators.gce.serving import GceServer  # noqa: E402

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
TRUST = Trust(NAMES, Launcher("aws", "111111111111", "vision", "detcloud-vision-tick"))
ACCOUNT = "222222222222"
PLACE = Settings(
    "vision",
    ACCOUNT,
    "us-east-1",
    "",
    "",
    network=Network({"us-east-1a": "subnet-1"}, "sg-1", "detcloud:otherClouds"),
)


def pools(provider: str, kind: str) -> ClusterConfig:
    return check_cluster(
        f"resource_pools: [{{pool_name: default, provider: {{type: {provider}, max_instances: 4, "
        f"offerings: [{{instance_type: {kind}, market: spot, slots: 1}}]}}}}]"
    )


class Google:
    """Google's interfaces to a project that may run `g2-standard-4`: answers by address endings.

    `answers` replaces or adds answers. All other addresses are refused.
    """

    def __init__(self, **answers: Any) -> None:
        services = [
            {"name": f"p/services/{service}.googleapis.com", "state": "ENABLED"}
            for service in SERVICES
        ]
        self.answers = {
            "v1/projects/acme-ml": {"projectNumber": "123456789012", "lifecycleState": "ACTIVE"},
            ":getAncestry": {"ancestor": [{"resourceId": {"type": "project", "id": "acme-ml"}}]},
            "billingInfo": {"billingEnabled": True},
            "services:batchGet": {"services": services},
            "/regions/us-central1": {
                "quotas": [
                    {"metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "limit": 8},
                    # Four boot disks of 200 GB and four addresses.
                    {"metric": "SSD_TOTAL_GB", "limit": 800},
                    {"metric": "IN_USE_ADDRESSES", "limit": 4},
                    {"metric": "PREEMPTIBLE_CPUS", "limit": 16},
                ]
            },
            "compute/v1/projects/acme-ml": {"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 8}]},
            **answers,
        }

    def call(self, method: str, url: str, body: object = None) -> Any:
        place = url.partition("?")[0]
        for end in sorted(self.answers, key=len, reverse=True):
            if place.endswith(end):
                return self.answers[end]
        raise GoogleError(404 if "/policies/" in url else 403, f"nobody may see {place}")


def google_findings(catalog: GoogleCatalog, **answers: Any) -> dict[str, Finding]:
    results = find_pool_findings(TRUST, pools("gcp", "g2-standard-4"), Google(**answers), catalog)
    return {finding.subject: finding for finding in results}


def test_checks_types_quotas_and_policies_of_a_project(catalog: GoogleCatalog) -> None:
    results = google_findings(catalog)
    assert {finding.level for finding in results.values()} == {Level.FINE}, results
    assert list(results) == [
        "project in acme-ml",
        "billing in acme-ml",
        "services in acme-ml",
        "pool default, g2-standard-4 spot",
        "quota PREEMPTIBLE_NVIDIA_L4_GPUS in us-central1 in acme-ml",
        "quota GPUS_ALL_REGIONS in acme-ml",
        "quota PREEMPTIBLE_CPUS in us-central1 in acme-ml",
        "quota SSD_TOTAL_GB in us-central1 in acme-ml",
        "quota IN_USE_ADDRESSES in us-central1 in acme-ml",
        "policy iam.workloadIdentityPoolAwsAccounts in acme-ml",
        "policy iam.workloadIdentityPoolProviders in acme-ml",
        *(f"policy {constraint} in acme-ml" for constraint in LAUNCH_RULES),
    ]


def rule(**values: Any) -> dict[str, Any]:
    return {"spec": {"rules": [values]}}


@pytest.mark.parametrize(
    ("place", "answer", "subject", "text", "remedy"),
    [
        ("billingInfo", {}, "billing", "no billing account", "gcloud billing projects link"),
        ("services:batchGet", {}, "services", "not enabled: cloudbilling", "deploy trust aws"),
        (
            "compute/v1/projects/acme-ml",
            {"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 0}]},
            "quota GPUS_ALL_REGIONS",
            "0 GPUs, and one g2-standard-4 has 1",
            "request an increase at",
        ),
        (
            "v1/projects/acme-ml",
            {"projectNumber": "5", "lifecycleState": "ACTIVE"},
            "project",
            "its number is 5",
            'projectNumber: "5" in detcloud:otherClouds',
        ),
        (
            "iam.workloadIdentityPoolAwsAccounts:getEffectivePolicy",
            rule(values={"allowedValues": ["999999999999"]}),
            "policy iam.workloadIdentityPoolAwsAccounts",
            "account of AWS may not be trusted",
            "an exception",
        ),
        (
            "compute.vmExternalIpAccess:getEffectivePolicy",
            rule(denyAll=True),
            "policy compute.vmExternalIpAccess",
            "no public address",
            "an exception",
        ),
        (
            "compute.requireShieldedVm:getEffectivePolicy",
            rule(enforce=True),
            "policy compute.requireShieldedVm",
            "instances without secure boot are refused: pools default",
            "provider.base_config",
        ),
    ],
)
def test_remote_project_problem_has_an_error_with_a_remedy(
    place: str, answer: Any, subject: str, text: str, remedy: str, catalog: GoogleCatalog
) -> None:
    results = google_findings(catalog, **{place: answer})
    [error] = [finding for finding in results.values() if finding.level is Level.ERROR]
    assert error.subject == f"{subject} in acme-ml"
    assert text in error.text
    assert remedy in error.remedy


def test_missing_machine_type_suggests_zones_and_types(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    project = compute_engine.project
    project.not_offered = {("g2-standard-4", zone) for zone in project.zones["us-central1"]}
    finding = google_findings(catalog)["pool default, g2-standard-4 spot"]
    assert finding.level is Level.ERROR
    assert finding.text == (
        "us-central1 does not offer this type; europe-west4-a, europe-west4-b do"
    )
    assert finding.remedy.startswith("use another type, such as g2-standard-48")


def test_policy_that_allows_the_aws_account_is_fine(catalog: GoogleCatalog) -> None:
    policy = "iam.workloadIdentityPoolAwsAccounts:getEffectivePolicy"
    results = google_findings(catalog, **{policy: rule(values={"allowedValues": ["111111111111"]})})
    assert {finding.level for finding in results.values()} == {Level.FINE}


class Ec2:
    """An AWS account that may run `g5.xlarge`, with a given quota, zone and disk key."""

    def __init__(self, vcpus: float, zone: str = "us-east-1a", key: str = "alias/aws/ebs") -> None:
        self.vcpus, self.zone, self.key = vcpus, zone, key

    def __call__(self, service: str) -> Any:
        return self

    def get_service_quota(self, **asked: str) -> Any:
        return {"Quota": {"Value": self.vcpus}}

    def get_ebs_default_kms_key_id(self) -> Any:
        return {"KmsKeyId": self.key}

    def get_parameters(self, **asked: Any) -> Any:
        return {"Parameters": [{"Value": "ami-1"}]}

    def get_account_plan_state(self) -> Any:
        return {"accountPlanType": "PAID"}

    def create_fleet(self, **asked: Any) -> Any:
        raise ClientError({"Error": {"Code": "DryRunOperation"}}, "CreateFleet")

    create_launch_template = run_instances = create_fleet

    def get_instance_profile(self, **asked: Any) -> Any:
        return {}

    def get_allowed_images_settings(self) -> Any:
        return {"State": "disabled"}

    def describe_vpc_block_public_access_options(self) -> Any:
        return {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "off"}}

    def get_paginator(self, operation: str) -> Any:
        self.operation = operation
        return self

    def paginate(self, **asked: Any) -> Any:
        if self.operation == "describe_instance_type_offerings":
            return [
                {"InstanceTypeOfferings": [{"InstanceType": "g5.xlarge", "Location": self.zone}]}
            ]
        described = {
            "InstanceType": "g5.xlarge",
            "VCpuInfo": {"DefaultVCpus": 4},
            "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
            "GpuInfo": {"Gpus": [{"Manufacturer": "NVIDIA", "Name": "A10G", "Count": 1}]},
            "SupportedUsageClasses": ["on-demand", "spot"],
        }
        return [{"InstanceTypes": [described]}]


def aws_findings(account: Ec2) -> list[Finding]:
    return find_aws_findings(PLACE, pools("aws", "g5.xlarge"), account)


def test_checks_types_quotas_and_images_of_an_account() -> None:
    results = aws_findings(Ec2(16))
    assert {finding.level for finding in results} == {Level.FINE}, results
    assert [finding.subject for finding in results] == [
        f"plan in {ACCOUNT}",
        "pool default, g5.xlarge spot",
        f"quota L-3819A6DF in {ACCOUNT}",
        f"image in {ACCOUNT}",
        f"disks in {ACCOUNT}",
        f"allowed images in {ACCOUNT}",
        f"public access in {ACCOUNT}",
        f"launch in pool default, g5.xlarge spot in {ACCOUNT}",
    ]
    # The pool may want four instances of four vCPUs; the quota allows two.
    [warning] = [
        aws_finding for aws_finding in aws_findings(Ec2(8)) if aws_finding.level is Level.WARNING
    ]
    assert warning.subject == f"quota L-3819A6DF in {ACCOUNT}"
    [error] = [
        aws_finding for aws_finding in aws_findings(Ec2(0)) if aws_finding.level is Level.ERROR
    ]
    assert "and one g5.xlarge has 4" in error.text
    assert "request an increase at" in error.remedy


def test_remedy_names_the_setting_of_the_remote_account() -> None:
    [error] = [
        aws_finding
        for aws_finding in aws_findings(Ec2(16, "us-east-1f"))
        if aws_finding.level is Level.ERROR
    ]
    assert error.remedy == "add a zone that offers the type to detcloud:otherClouds"
    [error] = [
        aws_finding
        for aws_finding in aws_findings(Ec2(16, key="arn:x"))
        if aws_finding.level is Level.ERROR
    ]
    assert error.subject == f"disks in {ACCOUNT}"
    assert "reset-ebs-default-kms-key-id --region us-east-1" in error.remedy


def test_remote_account_without_pools_has_no_findings(catalog: GoogleCatalog) -> None:
    assert find_aws_findings(PLACE, pools("gcp", "g2-standard-4"), Ec2(0)) == []
    assert find_pool_findings(TRUST, pools("aws", "g5.xlarge"), Google(), catalog) == []
