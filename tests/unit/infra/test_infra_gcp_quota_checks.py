"""The check of quotas of vCPUs and public addresses in a project."""

from dataclasses import replace

import pytest

from control_plane.config.pools import check_cluster
from infra.findings import Level, Unknown
from infra.gcp.account_checks import check_facts
from infra.gcp.account_facts import AcceleratorFacts, ProjectFacts, TypeFacts
from tests.unit.infra.test_infra_gcp_account_checks import (
    ENOUGH,
    FINE,
    POOLS,
    ZONES,
    check_finding,
    findings,
    quotas,
    settings,
)

PROBLEMS: list[tuple[ProjectFacts, str, Level, str, str]] = [
    (
        quotas({**ENOUGH, "PREEMPTIBLE_CPUS": 40}),
        "quota PREEMPTIBLE_CPUS in us-central1",
        Level.WARNING,
        "40 vCPUs, and one a2-highgpu-4g has 48",
        "request an increase",
    ),
    (
        quotas({**ENOUGH, "PREEMPTIBLE_CPUS": 96}),
        "quota PREEMPTIBLE_CPUS in us-central1",
        Level.WARNING,
        "96 vCPUs, and the pools gpus may want 144",
        "request an increase",
    ),
    (
        quotas({**ENOUGH, "PREEMPTIBLE_CPUS": 0}),
        "quota PREEMPTIBLE_CPUS in us-central1",
        Level.WARNING,
        "0 vCPUs, so that spot instances count against A2_CPUS, which is 144; projects",
        "request PREEMPTIBLE_CPUS at",
    ),
    # An instance has more vCPUs than the quota on demand.
    (
        quotas({**ENOUGH, "PREEMPTIBLE_CPUS": 0, "A2_CPUS": 12}),
        "quota PREEMPTIBLE_CPUS in us-central1",
        Level.WARNING,
        "0 vCPUs, and one a2-highgpu-4g has 48",
        "request an increase",
    ),
    (
        quotas({**ENOUGH, "CPUS": 7}),
        "quota CPUS in us-central1",
        Level.WARNING,
        "7 vCPUs, and one n1-standard-8 has 8",
        "request an increase",
    ),
    # Only some projects have this quota.
    (
        replace(
            FINE, quotas={**FINE.quotas, "": {"GPUS_ALL_REGIONS": 100, "CPUS_ALL_REGIONS": 12}}
        ),
        "quota CPUS_ALL_REGIONS",
        Level.WARNING,
        "12 vCPUs, and the pools gpus may want 24",
        "request an increase",
    ),
]


@pytest.mark.parametrize(("facts", "subject", "level", "text", "remedy"), PROBLEMS)
def test_insufficient_vcpu_quota_has_a_remedy(
    facts: ProjectFacts, subject: str, level: Level, text: str, remedy: str
) -> None:
    check_finding(facts, subject, level, text, remedy)


@pytest.mark.parametrize(
    ("market", "subject", "expected"),
    [
        ("on_demand", "CPUS-PER-VM-FAMILY-per-project-region", "unknown: Compute Engine lists"),
        (
            "spot",
            "PREEMPTIBLE_CPUS",
            "CPUS-PER-VM-FAMILY-per-project-region, which Google does not list",
        ),
    ],
)
def test_unlisted_vcpu_quota_of_a_series_is_a_warning(
    market: str, subject: str, expected: str
) -> None:
    pools = check_cluster(
        POOLS.replace("a2-highgpu-4g, market: spot", f"g2-standard-4, market: {market}")
    )
    more = {"NVIDIA_L4_GPUS": 3, "PREEMPTIBLE_NVIDIA_L4_GPUS": 3, "SSD_TOTAL_GB": 600}
    facts = replace(
        quotas({**ENOUGH, **more, "PREEMPTIBLE_CPUS": 0}),
        types={
            **dict(FINE.types.items() if isinstance(FINE.types, dict) else ()),
            ("us-central1", "g2-standard-4"): TypeFacts(4, 16384, ZONES, 1, "nvidia-l4"),
        },
        accelerators={
            "nvidia-l4": AcceleratorFacts(ZONES, 8),
            "nvidia-tesla-t4": AcceleratorFacts(frozenset({"us-central1-b"}), 4),
        },
    )
    [finding] = [
        fact for fact in check_facts(settings(), pools, facts) if fact.level is not Level.FINE
    ]
    assert (finding.level, finding.subject) == (Level.WARNING, f"quota {subject} in us-central1")
    assert expected in finding.text


def test_vcpus_of_a_built_in_type_need_no_compute_engine() -> None:
    silent = Unknown("compute.machineTypes.list", "permission denied")
    problems = findings(replace(quotas({**ENOUGH, "PREEMPTIBLE_CPUS": 40}), types=silent))
    assert "one a2-highgpu-4g has 48" in problems["quota PREEMPTIBLE_CPUS in us-central1"].text


def test_private_instances_need_no_address_quota() -> None:
    results = check_facts(settings(privateSubnets="true"), check_cluster(POOLS), FINE)
    assert not any("ADDRESSES" in finding.subject for finding in results)
