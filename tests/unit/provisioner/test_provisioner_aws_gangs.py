"""Launches of gangs on EC2: zones, placement, network adapters and reserved capacity."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.aws.launch_request import (
    Subnet,
    fleet_request,
    launch_template_data,
    parse_section,
)
from provisioner.clouds.provider import ConfigurationError, NoCapacity
from tests.unit.provisioner.ec2_account import G5, ON_DEMAND, SPOT, Account, request

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
GROUPS = {A: "gangs-a", B: "gangs-b", C: "gangs-c"}
SUBNETS = [Subnet("subnet-a", A), Subnet("subnet-b", B)]
P5 = Offering("p5", "p5.48xlarge", "", Market.ON_DEMAND, 8)
B300 = Offering("b300", "p6-b300.48xlarge", "", Market.ON_DEMAND, 8)
SMALL = Offering("small", "g5.xlarge", "", Market.ON_DEMAND, 1)
PRIVATE: dict[str, Any] = {"network_interface": {"public_ip": False, "security_group_id": "sg-1"}}


def gang(
    offering: Offering = ON_DEMAND, count: int = 4, zone: str = "", **section: Any
) -> IntentRow:
    return replace(request("gang", offering, count=count, **section), together=True, zone=zone)


def interfaces(launch: IntentRow) -> list[dict[str, Any]]:
    data = launch_template_data(launch, parse_section(launch.section), b"boot", "/dev/sda1")
    network_interfaces: list[dict[str, Any]] = data["NetworkInterfaces"]
    return network_interfaces


def fleet(launch: IntentRow) -> dict[str, Any]:
    settings = replace(parse_section(launch.section), placement_groups=GROUPS)
    return fleet_request(launch, settings, "template", SUBNETS)


@pytest.mark.parametrize("offering", [SPOT, ON_DEMAND])
def test_gang_uses_the_zone_with_room_for_all(ec2: Account, offering: Offering) -> None:
    market = "spot" if offering is SPOT else "on-demand"
    ec2.region.capacity = {(G5, A, market): 3, (G5, B, market): 4, (G5, C, market): 2}
    instances = ec2.cloud().launch(gang(offering))
    assert [ec2.machine(instance.id).zone for instance in instances] == [B] * 4
    assert {instance.zone for instance in instances} == {B}
    assert {instance.zone for instance in ec2.cloud().list_instances("c1")} == {B}


@pytest.mark.parametrize("offering", [SPOT, ON_DEMAND])
def test_gang_without_a_zone_with_room_launches_nothing(ec2: Account, offering: Offering) -> None:
    market = "spot" if offering is SPOT else "on-demand"
    ec2.region.capacity = {(G5, zone, market): 3 for zone in (A, B, C)}
    with pytest.raises(NoCapacity):
        ec2.cloud().launch(gang(offering))
    assert not ec2.region.machines
    # Separate instances may use all three zones: 3 * 3 = 9.
    assert len(ec2.cloud().launch(request("nine", offering, count=9))) == 9


def test_further_launch_for_a_gang_uses_the_zone_of_the_gang(ec2: Account) -> None:
    (instance,) = ec2.cloud().launch(gang(count=1, zone=C))
    assert ec2.machine(instance.id).zone == C


def test_gang_requires_a_single_zone_and_type() -> None:
    # EC2 accepts MinTargetCapacity only for instant fleets with a single zone or type.
    fields = fleet(gang())
    assert fields["Type"] == "instant"
    least = {"SingleInstanceType": True, "SingleAvailabilityZone": True, "MinTargetCapacity": 4}
    assert fields["OnDemandOptions"] == least
    assert fleet(gang(SPOT))["SpotOptions"] == {
        "AllocationStrategy": "price-capacity-optimized",
        **least,
    }
    assert "OnDemandOptions" not in fleet(request())


def test_gangs_with_adapters_use_placement_groups() -> None:
    (config,) = fleet(gang())["LaunchTemplateConfigs"]
    places = {
        override["SubnetId"]: override["Placement"]["GroupName"] for override in config["Overrides"]
    }
    assert places == {"subnet-a": "gangs-a", "subnet-b": "gangs-b"}
    for launch in (gang(SMALL), request(), gang(cluster_placement=False)):
        (config,) = fleet(launch)["LaunchTemplateConfigs"]
        assert not [override for override in config["Overrides"] if "Placement" in override]


def test_missing_placement_group_is_reported(ec2: Account) -> None:
    ec2.region.placement_groups = set()
    cloud = ec2.cloud(
        complete_settings=lambda ec2_settings: replace(ec2_settings, placement_groups=GROUPS)
    )
    with pytest.raises(ConfigurationError, match="Placement Group 'gangs-a' is unknown"):
        cloud.launch(gang())


def test_public_addresses_allow_one_adapter(ec2: Account) -> None:
    # EC2 gives public addresses only to instances with a single interface.
    for offering in (ON_DEMAND, P5):
        (interface,) = interfaces(gang(offering))
        assert (interface["InterfaceType"], interface["AssociatePublicIpAddress"]) == ("efa", True)
        assert len(ec2.cloud().launch(gang(offering, 2))) == 2
        ec2.reset()


def test_private_gang_has_an_adapter_on_each_card(ec2: Account) -> None:
    first, *others = interfaces(gang(P5, **PRIVATE))
    # The type has 32 cards. The first card has the address.
    assert len(others) == 31
    assert (first["DeviceIndex"], first["NetworkCardIndex"], first["InterfaceType"]) == (
        0,
        0,
        "efa",
    )
    assert {(other["DeviceIndex"], other["InterfaceType"]) for other in others} == {(1, "efa-only")}
    assert [other["NetworkCardIndex"] for other in others] == list(range(1, 32))
    assert {tuple(other["Groups"]) for other in (first, *others)} == {("sg-1",)}
    assert len(ec2.cloud().launch(gang(P5, 2, **PRIVATE))) == 2


def test_first_card_may_lack_an_adapter(ec2: Account) -> None:
    # The type has 17 cards and 16 adapters.
    first, *others = interfaces(gang(B300, **PRIVATE))
    assert "InterfaceType" not in first
    assert len(others) == 16
    assert len(ec2.cloud().launch(gang(B300, 2, **PRIVATE))) == 2


def test_only_gangs_have_adapters_unless_disabled() -> None:
    plain = interfaces(request())
    assert interfaces(gang(SMALL)) == interfaces(gang(efa=False)) == plain
    assert "InterfaceType" not in plain[0]


def test_reservation_applies_to_on_demand_instances() -> None:
    group = "arn:aws:resource-groups:us-east-1:123456789012:group/ours"
    for name, target in (
        ("cr-0123456789abcdef0", {"CapacityReservationId": "cr-0123456789abcdef0"}),
        (group, {"CapacityReservationResourceGroupArn": group}),
    ):
        launch = request(capacity_reservation=name)
        data = launch_template_data(launch, parse_section(launch.section), b"", "/dev/sda1")
        wanted = {"CapacityReservationTarget": target}
        assert data["CapacityReservationSpecification"] == wanted
        strategy = {"UsageStrategy": "use-capacity-reservations-first"}
        assert fleet(launch)["OnDemandOptions"] == {"CapacityReservationOptions": strategy}
        spot = request(offering=SPOT, capacity_reservation=name)
        data = launch_template_data(spot, parse_section(spot.section), b"", "/dev/sda1")
        assert "CapacityReservationSpecification" not in data


def test_instances_without_a_reservation_avoid_open_reservations() -> None:
    # By default, EC2 fills open reservations, which the company may have bought for others.
    for launch in (request(), gang(), request(offering=SPOT)):
        data = launch_template_data(launch, parse_section(launch.section), b"", "/dev/sda1")
        expected = {"CapacityReservationPreference": "none"}
        assert data["CapacityReservationSpecification"] == expected


def test_capacity_block_is_a_market_without_options(ec2: Account) -> None:
    launch = gang(P5, capacity_reservation="cr-0123456789abcdef0", capacity_block=True)
    data = launch_template_data(launch, parse_section(launch.section), b"", "/dev/sda1")
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    fields = fleet(launch)
    capacity = {"TotalTargetCapacity": 4, "DefaultTargetCapacityType": "capacity-block"}
    assert fields["TargetCapacitySpecification"] == capacity
    assert not {"OnDemandOptions", "SpotOptions"} & set(fields)
    assert len(ec2.cloud().launch(launch)) == 4
    # Notices about the block apply to these instances.
    listed = ec2.cloud().list_instances("c1")
    assert {instance.reservation for instance in listed} == {"cr-0123456789abcdef0"}
