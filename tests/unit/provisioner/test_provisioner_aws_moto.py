"""The provider's calls against moto, an independent simulation of EC2, in the test's process.

moto cannot run the conformance suite of all clouds. It ignores client tokens, so a repeated fleet
request launches again. It uses a single override of a fleet, has neither capacities nor quotas, and
returns no fleet errors. Instances run from the first moment. Spot requests cannot be filtered by
the status of a notice.
"""

import base64
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from control_plane.fleet.records import Market, Offering
from provisioner.clouds.aws.provider import Ec2Cloud
from provisioner.clouds.provider import ConfigurationError
from provisioner.model import InstanceStatus, ProvisionerSettings
from tests.unit.provisioner.ec2_account import BEGAN_MS, request

SPOT_A = Offering("g5/spot", "g5.12xlarge", "us-east-1a", Market.SPOT, 4)
ON_DEMAND = Offering("g5/on_demand", "g5.12xlarge", "us-east-1a", Market.ON_DEMAND, 4)


@pytest.fixture
def api() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("ec2", region_name="us-east-1")
        yield client
        client.close()


@pytest.fixture
def cloud(api: Any) -> Ec2Cloud:
    settings = ProvisionerSettings("aws", offerings=(SPOT_A, ON_DEMAND))
    return Ec2Cloud(settings, lambda setting: b"boot", lambda: BEGAN_MS, api)


def test_lists_and_terminates_a_launch(cloud: Ec2Cloud) -> None:
    launched = cloud.launch(request(count=2, offering=ON_DEMAND))
    assert len(launched) == 2
    listed = {instance.id: instance for instance in cloud.list_instances("c1", "blue")}
    assert set(listed) == {instance.id for instance in launched}
    assert all(dict(instance.tags) == dict(launched[0].tags) for instance in listed.values())
    assert {instance.status for instance in listed.values()} == {InstanceStatus.RUNNING}
    assert cloud.list_instances("c2") == cloud.list_instances("c1", "green") == []
    cloud.terminate(["i-0123456789abcdef0", *listed])
    assert {instance.status for instance in cloud.list_instances("c1")} == {
        InstanceStatus.TERMINATED
    }


def test_spot_launch_creates_spot_instances(cloud: Ec2Cloud, api: Any) -> None:
    (launched,) = cloud.launch(request(offering=SPOT_A))
    (group,) = api.describe_instances(InstanceIds=[launched.id])["Reservations"]
    assert group["Instances"][0]["InstanceLifecycle"] == "spot"
    assert group["Instances"][0]["Placement"]["AvailabilityZone"] == "us-east-1a"


def test_template_can_be_described(cloud: Ec2Cloud, api: Any) -> None:
    cloud.launch(request())
    (template,) = api.describe_launch_templates()["LaunchTemplates"]
    versions = api.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert base64.b64decode(data["UserData"]) == b"boot"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeType"] == "gp3"


def test_second_process_reuses_the_template(cloud: Ec2Cloud, api: Any) -> None:
    cloud.launch(request("one"))
    settings = ProvisionerSettings("aws")
    Ec2Cloud(settings, lambda setting: b"boot", lambda: BEGAN_MS, api).launch(request("two"))
    assert len(api.describe_launch_templates()["LaunchTemplates"]) == 1


def test_reads_prices_and_rejects_an_unknown_image(cloud: Ec2Cloud) -> None:
    spot, on_demand = cloud.offerings()
    assert 0 < spot.price_per_hour < on_demand.price_per_hour
    with pytest.raises(ConfigurationError, match="InvalidAMIID"):
        cloud.launch(request(image_id="ami-00000000000000000"))
