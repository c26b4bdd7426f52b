"""Launches into EC2's capacity blocks before, near and after the blocks' ends."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.aws.launch_request import Subnet, fleet_request, parse_section
from provisioner.clouds.provider import ConfigurationError, NoCapacity
from tests.unit.provisioner.ec2_account import BEGAN_MS, SPOT, Account, request

MINUTE_MS = 60_000
P5 = Offering("p5", "p5.48xlarge", "", Market.ON_DEMAND, 8)
NAME = "cr-0123456789abcdef0"
BLOCK: dict[str, Any] = {"capacity_reservation": NAME, "capacity_block": True}


def block_of(state: str = "active", ends_ms: int = BEGAN_MS + 86_400_000) -> dict[str, Any]:
    """Return EC2's description of a block that lasts a day."""
    ends = datetime.fromtimestamp(ends_ms / 1000, UTC)
    return {
        "State": state,
        "StartDate": ends - timedelta(days=1),
        "EndDate": ends,
        "ReservationType": "capacity-block",
        "EndDateType": "limited",
    }


def launch_of(offering: Offering = P5, **section: Any) -> IntentRow:
    return request("one", offering, **{**BLOCK, **section})


@pytest.mark.parametrize(("minutes", "is_launched"), [(41, True), (40, True), (39, False)])
def test_no_launch_into_a_block_near_the_end(ec2: Account, minutes: int, is_launched: bool) -> None:
    # EC2 begins to end instances 30 minutes before the block's end, and a machine needs 10 minutes
    # until it works: 30 + 10 = 40.
    ec2.region.reservations[NAME] = block_of(ends_ms=BEGAN_MS + minutes * MINUTE_MS)
    if is_launched:
        assert len(ec2.cloud().launch(launch_of())) == 1
        return
    # 1,700,000,000 s is 22:13:20 on 2023-11-14; 39 minutes later is 22:52.
    with pytest.raises(NoCapacity, match=rf"{NAME} ends at 2023-11-14 22:52 UTC"):
        ec2.cloud().launch(launch_of())
    assert ec2.call_count("CreateFleet") == ec2.call_count("CreateLaunchTemplate") == 0


def test_launches_after_the_end_of_a_block_was_moved(ec2: Account) -> None:
    cloud = ec2.cloud()
    ec2.region.reservations[NAME] = block_of(ends_ms=BEGAN_MS + MINUTE_MS)
    with pytest.raises(NoCapacity):
        cloud.launch(launch_of())
    ec2.region.reservations[NAME] = block_of()
    assert len(cloud.launch(launch_of())) == 1


@pytest.mark.parametrize("state", ["scheduled", "payment-pending"])
def test_future_block_raises_no_capacity(ec2: Account, state: str) -> None:
    # The block begins two days after 22:13 on 14 November, and ends a day later.
    ec2.region.reservations[NAME] = block_of(state, BEGAN_MS + 3 * 86_400_000)
    with pytest.raises(NoCapacity, match=f"is {state} and begins at 2023-11-16 22:13 UTC"):
        ec2.cloud().launch(launch_of())
    assert not ec2.region.machines


@pytest.mark.parametrize("state", ["expired", "payment-failed", "cancelled"])
def test_ended_block_is_a_configuration_error(ec2: Account, state: str) -> None:
    ec2.region.reservations[NAME] = block_of(state)
    with pytest.raises(ConfigurationError, match=f"is {state}: name another"):
        ec2.cloud().launch(launch_of())


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "RequestLimitExceeded", "InternalError"])
def test_launches_without_a_block_description(ec2: Account, code: str) -> None:
    ec2.region.reservations[NAME] = block_of("expired")
    ec2.region.fail("DescribeCapacityReservations", code)
    assert len(ec2.cloud().launch(launch_of())) == 1


def test_reads_the_block_only_for_launches_into_it(ec2: Account) -> None:
    ec2.region.reservations[NAME] = block_of("expired")
    # Spot instances do not use the block, and a plain reservation may be exceeded.
    ec2.cloud().launch(launch_of(SPOT))
    ec2.cloud().launch(replace(launch_of(capacity_block=False), id="two", token="2" * 40))
    assert ec2.call_count("DescribeCapacityReservations") == 0


def test_gang_in_a_block_needs_no_placement_group() -> None:
    # Instances of a block are close to each other by themselves.
    for is_block, is_placed in ((True, False), (False, True)):
        launch = replace(launch_of(capacity_block=is_block), together=True)
        settings = parse_section(launch.section)
        settings = replace(settings, placement_groups={"us-east-1a": "gangs-a"})
        subnets = [Subnet("subnet-a", "us-east-1a")]
        [config] = fleet_request(launch, settings, "template", subnets)["LaunchTemplateConfigs"]
        assert [("Placement" in override) for override in config["Overrides"]] == [is_placed]
