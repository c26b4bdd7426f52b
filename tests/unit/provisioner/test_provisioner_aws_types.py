"""Launches of instance types that the catalogue lacks."""

from dataclasses import replace
from typing import Any, cast

import pytest

from control_plane.fleet.records import Market, Offering
from provisioner.clouds.aws.unknown_types import ANSWER_TTL_MS, SILENCE_TTL_MS
from provisioner.clouds.provider import ConfigurationError
from tests.emulators.ec2.region import types
from tests.unit.provisioner.ec2_account import G5, Account, request

OWN: dict[str, Any] = {"image_id": "ami-0123456789abcdef0"}


@pytest.fixture(autouse=True)
def new_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add two types to EC2 that the catalogue lacks, each as large as a g5.12xlarge."""
    gpus = types()[G5]["GpuInfo"]["Gpus"]
    for name, maker in (("g9.12xlarge", "NVIDIA"), ("g9ad.12xlarge", "AMD")):
        info = {"Gpus": [{**item, "Manufacturer": maker} for item in gpus]}
        described = {**types()[G5], "InstanceType": name, "GpuInfo": info}
        monkeypatch.setitem(cast(dict[str, Any], types()), name, described)


def offering_of(kind: str, slots: int) -> Offering:
    return Offering(kind, kind, "", Market.ON_DEMAND, slots)


@pytest.mark.parametrize(
    ("kind", "slots", "section", "problem"),
    [
        ("g9.12xlarge", 4, {}, ""),
        ("g9.12xlarge", 2, {}, "has 4 GPUs, each a slot: its agent would offer 4 slots"),
        # EC2 describes an eighth of a GPU as 0 GPUs.
        ("g6f.large", 1, {}, ""),
        ("a1.large", 0, {}, "has a processor of arm64, and AWS's image is for x86_64"),
        # The pool's own image may support the type.
        ("a1.large", 0, OWN, ""),
        ("a1.large", 2, OWN, "would offer 0 slots, and the pool counts 2"),
        ("a1.large", 1, {**OWN, "cpu_slots_allowed": True}, ""),
        ("g9ad.12xlarge", 4, {}, "has GPUs of AMD, but AWS's image has only NVIDIA's driver"),
        ("g99.large", 1, {}, "the region has no instance type g99.large"),
    ],
)
def test_unknown_type_must_boot_and_match_the_slots(
    ec2: Account, kind: str, slots: int, section: dict[str, Any], problem: str
) -> None:
    launch = request(offering=offering_of(kind, slots), **section)
    if problem:
        with pytest.raises(ConfigurationError, match=problem):
            ec2.cloud().launch(launch)
        assert not ec2.region.machines
    else:
        assert len(ec2.cloud().launch(launch)) == 1


@pytest.mark.parametrize("kind", ["p3.2xlarge", "g5g.xlarge"])
def test_known_type_that_the_default_image_cannot_boot_is_not_launched(
    ec2: Account, kind: str
) -> None:
    launch = request(offering=offering_of(kind, 1))
    with pytest.raises(ConfigurationError, match=f"{kind} cannot boot: its "):
        ec2.cloud().launch(launch)
    assert not ec2.region.machines


def test_unknown_type_with_an_old_gpu_is_not_launched(
    ec2: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpu,) = types()["g9.12xlarge"]["GpuInfo"]["Gpus"]
    described = {**types()["g9.12xlarge"], "GpuInfo": {"Gpus": [{**gpu, "Name": "V100"}]}}
    monkeypatch.setitem(cast(dict[str, Any], types()), "g9.12xlarge", described)
    with pytest.raises(ConfigurationError, match="its GPU, V100 "):
        ec2.cloud().launch(request(offering=offering_of("g9.12xlarge", 4)))
    assert len(ec2.cloud().launch(request(offering=offering_of("g9.12xlarge", 4), **OWN))) == 1


def interfaces_of_gang(ec2: Account, kind: str, slots: int, **section: Any) -> list[dict[str, Any]]:
    """Launch a gang of two instances of the type; return the template's network interfaces."""
    launch = replace(request("gang", offering_of(kind, slots), 2, **section), together=True)
    assert len(ec2.cloud().launch(launch)) == 2
    [template] = ec2.region.templates.values()
    network_interfaces: list[dict[str, Any]] = template.data["NetworkInterfaces"]
    return network_interfaces


@pytest.mark.parametrize(("cards", "adapters"), [(1, 1), (4, 4), (4, 8), (17, 16)])
def test_gang_has_the_adapters_that_ec2_describes(
    ec2: Account, monkeypatch: pytest.MonkeyPatch, cards: int, adapters: int
) -> None:
    efa = {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": adapters}}
    network = {**types()[G5]["NetworkInfo"], **efa, "MaximumNetworkCards": cards}
    described = {**types()["g9.12xlarge"], "NetworkInfo": network}
    monkeypatch.setitem(cast(dict[str, Any], types()), "g9.12xlarge", described)
    private = {"public_ip": False}
    interfaces = interfaces_of_gang(ec2, "g9.12xlarge", 4, network_interface=private)
    # Each card has an adapter, except that the first card may lack one.
    assert len(interfaces) == cards
    kinds = [item.get("InterfaceType", "interface") for item in interfaces]
    first = "efa" if adapters >= cards else "interface"
    assert kinds == [first, *["efa-only"] * (cards - 1)]


@pytest.mark.parametrize(
    "network",
    [
        {"EfaSupported": False, "MaximumNetworkCards": 1},
        # The description does not show which of the cards have adapters.
        {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 1}, "MaximumNetworkCards": 4},
    ],
)
def test_gang_without_described_adapters_uses_plain_interfaces(
    ec2: Account, monkeypatch: pytest.MonkeyPatch, network: dict[str, Any]
) -> None:
    described = {**types()["g9.12xlarge"], "NetworkInfo": network}
    monkeypatch.setitem(cast(dict[str, Any], types()), "g9.12xlarge", described)
    [interface] = interfaces_of_gang(ec2, "g9.12xlarge", 4)
    assert "InterfaceType" not in interface


def test_describes_unknown_types_once_a_day(ec2: Account) -> None:
    cloud = ec2.cloud()
    cloud.launch(request("known", offering_of(G5, 4)))
    assert ec2.call_count("DescribeInstanceTypes") == 0
    for name in ("one", "two"):
        cloud.launch(request(name, offering_of("g9.12xlarge", 4)))
    assert ec2.call_count("DescribeInstanceTypes") == 1
    ec2.now_ms += ANSWER_TTL_MS
    cloud.launch(request("three", offering_of("g9.12xlarge", 4)))
    assert ec2.call_count("DescribeInstanceTypes") == 2


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "RequestLimitExceeded"])
def test_launches_without_a_type_description(ec2: Account, code: str) -> None:
    cloud = ec2.cloud()
    ec2.region.fail("DescribeInstanceTypes", code)
    for name in ("one", "two"):
        assert cloud.launch(request(name, offering_of("g9.12xlarge", 4)))
    assert ec2.call_count("DescribeInstanceTypes") == 1
    ec2.now_ms += SILENCE_TTL_MS
    with pytest.raises(ConfigurationError, match="has 4 GPUs"):
        cloud.launch(request("three", offering_of("g9.12xlarge", 3)))


def test_launches_after_an_unreadable_type_description(ec2: Account) -> None:
    ec2.region.garble("DescribeInstanceTypes")
    assert ec2.cloud().launch(request("one", offering_of("g9.12xlarge", 4)))
