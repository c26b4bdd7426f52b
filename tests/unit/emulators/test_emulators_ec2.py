"""The simulated EC2 against EC2's documentation."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.patience import ANSWER_SECONDS_MAX

AMI = "ami-0123456789abcdef0"
KIND, ZONE = "g5.xlarge", "us-east-1a"


class Ec2Harness:
    """An account with a client and a clock."""

    def __init__(self, server: Ec2Server, api: Any) -> None:
        self.server, self.api = server, api
        self.now_ms = 1_700_000_000_000

    @property
    def region(self) -> Region:
        return self.server.region

    def begin(self, **rules: Any) -> None:
        self.server.region = Region(lambda: self.now_ms, **rules)

    def run(self, most: int = 1, least: int = 1, **given: Any) -> list[str]:
        answer = self.api.run_instances(
            **{"ImageId": AMI, "InstanceType": KIND, "MinCount": least, "MaxCount": most, **given}
        )
        return [instance["InstanceId"] for instance in answer["Instances"]]

    def describe_instances(self, **given: Any) -> list[dict[str, Any]]:
        answer = self.api.describe_instances(**given)
        return [instance for group in answer["Reservations"] for instance in group["Instances"]]

    def find_instances(self, name: str, *values: str) -> list[str]:
        filters = [{"Name": name, "Values": list(values)}]
        return [instance["InstanceId"] for instance in self.describe_instances(Filters=filters)]

    def read(
        self, machine: str, path: str, headers: Mapping[str, str], method: str = "GET"
    ) -> str | int:
        url = f"{self.server.metadata_url(machine)}/latest/{path}"
        request = urllib.request.Request(url, headers=dict(headers), method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
                body: bytes = answer.read()
                return body.decode()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code


@pytest.fixture(scope="module")
def lasting() -> Iterator[Ec2Harness]:
    with ec2_server(Region(lambda: 0)) as server:
        api = server.client()
        yield Ec2Harness(server, api)
        api.close()


@pytest.fixture
def harness(lasting: Ec2Harness) -> Ec2Harness:
    lasting.begin()
    return lasting


def _code(error: ClientError) -> tuple[str, int]:
    return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]


def test_dry_run_launches_no_instance(harness: Ec2Harness) -> None:
    with pytest.raises(ClientError) as caught:
        harness.run(DryRun=True)
    assert _code(caught.value) == ("DryRunOperation", 412)
    assert not harness.region.machines
    harness.region.capacity = {(KIND, ZONE, "on-demand"): 0}
    with pytest.raises(ClientError) as caught:
        harness.run(DryRun=True)
    assert _code(caught.value) == ("InsufficientInstanceCapacity", 500)


def test_launch_has_at_least_the_minimum_or_fails(harness: Ec2Harness) -> None:
    harness.region.capacity = {(KIND, ZONE, "on-demand"): 3}
    assert len(harness.run(5, 2)) == 3
    with pytest.raises(ClientError):
        harness.run()
    harness.api.terminate_instances(InstanceIds=list(harness.region.machines))
    with pytest.raises(ClientError):
        harness.run(5, 4)
    assert not harness.region.billed_machines()


def test_launch_parameters_override_the_template(harness: Ec2Harness) -> None:
    data = {
        "ImageId": AMI,
        "InstanceType": "g5.2xlarge",
        "UserData": base64.b64encode(b"boot").decode(),
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "template"}]}
        ],
    }
    harness.api.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData=data)
    (name,) = harness.run(LaunchTemplate={"LaunchTemplateName": "mine"})
    machine = harness.region.machines[name]
    assert (machine.instance_type, machine.user_data, machine.tags) == (
        KIND,
        b"boot",
        {"a": "template"},
    )
    with pytest.raises(ClientError, match="already in use"):
        harness.api.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData=data)


def test_filters_match_patterns_and_refuse_unknown_names(harness: Ec2Harness) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "vision"}]}]
    (tagged,) = harness.run(TagSpecifications=tags, ClientToken="first")
    (spot,) = harness.run(InstanceMarketOptions={"MarketType": "spot"})
    assert harness.find_instances("tag:team", "vi*") == [tagged]
    assert harness.find_instances("tag-key", "team") == [tagged]
    assert harness.find_instances("client-token", "first") == [tagged]
    assert harness.find_instances("instance-lifecycle", "spot") == [spot]
    assert harness.find_instances("instance-state-name", "pending", "running") == [tagged, spot]
    assert harness.find_instances("instance-state-name", "stopped") == []
    with pytest.raises(ClientError, match="The filter 'colour' is invalid"):
        harness.find_instances("colour", "red")


def test_instances_are_listed_in_pages(harness: Ec2Harness) -> None:
    names = harness.run(12)
    pages = harness.api.get_paginator("describe_instances").paginate(
        PaginationConfig={"PageSize": 5}
    )
    pages_of_ids = [
        [reservation["Instances"][0]["InstanceId"] for reservation in page["Reservations"]]
        for page in pages
    ]
    assert [len(page) for page in pages_of_ids] == [5, 5, 2]
    assert [name for page in pages_of_ids for name in page] == names
    with pytest.raises(ClientError, match="cannot be used"):
        harness.describe_instances(InstanceIds=names, MaxResults=5)


def test_fresh_instance_is_invisible_for_a_while(harness: Ec2Harness) -> None:
    harness.begin(visible_ms=1_000)
    (name,) = harness.run()
    with pytest.raises(ClientError, match=f"The instance ID '{name}' does not exist"):
        harness.describe_instances(InstanceIds=[name])
    harness.now_ms += 1_000
    assert harness.describe_instances(InstanceIds=[name])[0]["State"]["Name"] == "running"
    with pytest.raises(ClientError) as caught:
        harness.describe_instances(InstanceIds=["local-1"])
    assert _code(caught.value)[0] == "InvalidInstanceID.Malformed"


def test_catalogue_has_real_types_and_offerings(harness: Ec2Harness) -> None:
    (description,) = harness.api.describe_instance_types(InstanceTypes=["p4d.24xlarge"])[
        "InstanceTypes"
    ]
    assert (
        description["GpuInfo"]["Gpus"][0]["Count"],
        description["VCpuInfo"]["DefaultVCpus"],
    ) == (8, 96)
    harness.region.not_offered = {("p4d.24xlarge", "us-east-1b")}
    sold = harness.api.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": ["p4d.24xlarge"]}],
    )["InstanceTypeOfferings"]
    assert [item["Location"] for item in sold] == ["us-east-1a", "us-east-1c"]


def test_faults_are_injected_as_often_as_requested(harness: Ec2Harness) -> None:
    harness.region.fail("RunInstances", "RequestLimitExceeded", times=2)
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            harness.run()
        assert _code(caught.value) == ("RequestLimitExceeded", 503)
    harness.region.lose("RunInstances")
    with pytest.raises(ConnectionClosedError):
        harness.run()
    assert len(harness.region.machines) == 1


def test_hooks_are_called_once_per_machine(harness: Ec2Harness) -> None:
    calls = list[tuple[str, str]]()

    def running(machine: Machine) -> None:
        calls.append(("running", machine.id))

    harness.begin(running_ms=1_000, ending_ms=1_000)
    harness.region.on_running = running
    harness.region.on_terminated = lambda machine: calls.append(("terminated", machine.id))
    harness.region.sleepers = 1
    sleeper, awake = harness.run(2)
    for _ in range(3):
        harness.now_ms += 1_000
        harness.region.tend()
    harness.region.shut_down(awake)
    harness.api.terminate_instances(InstanceIds=[sleeper])
    for _ in range(3):
        harness.now_ms += 1_000
        harness.region.tend()
    # A sleeper never boots, but terminates like all machines.
    assert calls == [("running", awake), ("terminated", sleeper), ("terminated", awake)]


def test_metadata_need_a_token_of_the_machine(harness: Ec2Harness) -> None:
    first, second = harness.run(2)
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    assert harness.read(first, "api/token", {}, "PUT") == 400
    assert harness.read(first, "api/token", {**ttl, "X-Forwarded-For": "10.0.0.9"}, "PUT") == 403
    token = harness.read(first, "api/token", ttl, "PUT")
    assert isinstance(token, str)
    header = {"X-aws-ec2-metadata-token": token}
    assert harness.read(first, "meta-data/instance-id", header) == first
    assert harness.read(first, "meta-data/instance-id", {}) == 401
    assert harness.read(second, "meta-data/instance-id", header) == 401
    harness.now_ms += 60_000
    assert harness.read(first, "meta-data/instance-id", header) == 401


def test_metadata_have_all_values_of_a_boot_script(harness: Ec2Harness) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "vision"}]}]
    options = {"HttpTokens": "required", "InstanceMetadataTags": "enabled"}
    (name,) = harness.run(
        TagSpecifications=tags,
        UserData="boot",
        MetadataOptions=options,
        IamInstanceProfile={"Arn": "arn:aws:iam::123456789012:instance-profile/agent"},
    )
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    header = {"X-aws-ec2-metadata-token": str(harness.read(name, "api/token", ttl, "PUT"))}
    assert harness.read(name, "user-data", header) == "boot"
    assert harness.read(name, "meta-data/tags/instance/team", header) == "vision"
    assert harness.read(name, "meta-data/tags/instance", header) == "team"
    assert harness.read(name, "meta-data/spot/instance-action", header) == 404
    document = json.loads(str(harness.read(name, "dynamic/instance-identity/document", header)))
    assert (document["instanceId"], document["region"]) == (name, "us-east-1")
    role = harness.read(name, "meta-data/iam/security-credentials/", header)
    assert role == "agent"
    credentials = json.loads(
        str(harness.read(name, f"meta-data/iam/security-credentials/{role}", header))
    )
    assert credentials["Code"] == "Success"


def test_protected_machine_blocks_terminations_in_the_zone(harness: Ec2Harness) -> None:
    (kept,), (beside,) = harness.run(), harness.run()
    (other,) = harness.run(Placement={"AvailabilityZone": "us-east-1b"})
    harness.region.machines[kept].protected = True
    with pytest.raises(ClientError) as caught:
        harness.api.terminate_instances(InstanceIds=[beside, kept, other])
    assert _code(caught.value) == ("OperationNotPermitted", 400)
    assert {billed_machine.id for billed_machine in harness.region.billed_machines()} == {
        kept,
        beside,
    }
