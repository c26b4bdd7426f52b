"""The EC2 provider on the simulated EC2. tests/conformance has the tests for all clouds."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import IntentRow
from provisioner.clouds.aws import provider as aws
from provisioner.clouds.aws.ec2_api import Ec2Api, create_ec2_client
from provisioner.clouds.aws.launch_request import IMAGE_DEFAULT, USER_DATA_BYTES_MAX
from provisioner.clouds.aws.provider import Ec2Clouds
from provisioner.clouds.provider import (
    CloudError,
    ConfigurationError,
    NoCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
    TokenReused,
)
from provisioner.model import InstanceStatus, ProvisionerSettings
from tests.unit.provisioner.ec2_account import (
    BEGAN_MS,
    G5,
    ON_DEMAND,
    SPOT,
    Account,
    request,
)

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
AMI = "ami-0123456789abcdef0"
HOUR_MS = 3_600_000


def _only_template(ec2: Account) -> Any:
    (template,) = ec2.region.templates.values()
    return template


def test_template_contains_the_instance_settings(ec2: Account) -> None:
    section: dict[str, Any] = {
        "image_id": AMI,
        "root_volume_size": 300,
        "root_volume_iops": 6_000,
        "root_volume_throughput": 500,
        "ssh_key_name": "ops",
        "iam_instance_profile_arn": "arn:aws:iam::123456789012:instance-profile/agent",
        "network_interface": {"public_ip": False, "security_group_id": "sg-1"},
    }
    ec2.cloud(user_data=lambda item: b"boot").launch(request(**section))
    data = _only_template(ec2).data
    assert base64.b64decode(data["UserData"]) == b"boot"
    assert (data["ImageId"], data["KeyName"]) == (AMI, "ops")
    assert data["IamInstanceProfile"]["Arn"].endswith("/agent")
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
        "InstanceMetadataTags": "enabled",
    }
    # This is the root disk's name in the simulated image; another name would add a second disk.
    (disk,) = data["BlockDeviceMappings"]
    assert disk["DeviceName"] == "/dev/xvda"
    assert disk["Ebs"] == {
        "VolumeSize": 300,
        "Iops": 6_000,
        "Throughput": 500,
        "VolumeType": "gp3",
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    (interface,) = data["NetworkInterfaces"]
    assert (interface["AssociatePublicIpAddress"], interface["Groups"]) == (False, ["sg-1"])


def test_default_image_is_resolved_by_ec2(ec2: Account) -> None:
    ec2.cloud().launch(request())
    assert _only_template(ec2).data["ImageId"] == IMAGE_DEFAULT
    assert ec2.call_count("DescribeImages") == 0


def test_launch_tags_instances_and_disks(ec2: Account) -> None:
    tags = [{"key": "team", "value": "vision"}, {"key": "Name", "value": "mine"}]
    (launched,) = ec2.cloud().launch(request(custom_tags=tags))
    machine = ec2.machine(launched.id)
    assert machine.tags == {
        "team": "vision",
        "managed_by": "c1",
        "Name": "determined-ai-agent",
        "detcloud-cluster": "c1",
        "detcloud-pool": "blue",
        "detcloud-intent": "one",
    }
    assert machine.volume_tags == machine.tags
    assert launched.tags == machine.tags


def test_pool_has_one_template_for_all_launches(ec2: Account) -> None:
    cloud = ec2.cloud()
    cloud.launch(request("one"))
    cloud.launch(request("two", SPOT))
    # A second process has no cache, and finds the existing template.
    ec2.cloud().launch(request("three"))
    assert len(ec2.region.templates) == 1
    assert ec2.call_count("CreateLaunchTemplate") == 2


def test_new_boot_script_creates_a_new_template(ec2: Account) -> None:
    ec2.cloud().launch(request("one"))
    ec2.cloud(user_data=lambda item: b"new").launch(request("two"))
    assert len({template.name for template in ec2.region.templates.values()}) == 2


def test_former_templates_are_deleted_after_a_day(ec2: Account) -> None:
    ec2.cloud().launch(request("one"))
    ec2.cloud().launch(replace(request("other"), pool="green"))
    ec2.now_ms += 24 * HOUR_MS + 1
    ec2.cloud(user_data=lambda item: b"new").launch(request("two"))
    templates = ec2.region.templates.values()
    left = {template.tags["detcloud-pool"]: template.data["UserData"] for template in templates}
    assert left == {
        "blue": base64.b64encode(b"new").decode(),
        "green": base64.b64encode(b"#!/bin/sh\n").decode(),
    }
    assert len(ec2.region.templates) == 2


def test_failed_template_cleanup_does_not_stop_a_launch(ec2: Account) -> None:
    ec2.region.fail("DescribeLaunchTemplates", "UnauthorizedOperation")
    assert len(ec2.cloud().launch(request())) == 1


def test_deleted_template_is_created_again(ec2: Account) -> None:
    cloud = ec2.cloud()
    cloud.launch(request("one"))
    ec2.region.templates.clear()
    with pytest.raises(OutcomeUnknown, match=r"launch template detcloud-c1-blue-\w+ is not"):
        cloud.launch(request("two"))
    assert len(cloud.launch(request("two"))) == 1


def test_rejects_a_long_boot_script(ec2: Account) -> None:
    long = b"x" * (USER_DATA_BYTES_MAX + 1)
    with pytest.raises(ConfigurationError, match="has 16385 bytes; EC2 takes 16384: shorten"):
        ec2.cloud(user_data=lambda item: long).launch(request())


def test_offering_without_zone_uses_all_zones(ec2: Account) -> None:
    ec2.region.capacity = {(G5, A, "on-demand"): 1, (G5, B, "on-demand"): 0}
    instances = ec2.cloud().launch(request(count=3))
    assert sorted(ec2.machine(instance.id).zone for instance in instances) == [A, C, C]


def test_offering_with_zone_uses_only_that_zone(ec2: Account) -> None:
    ec2.region.capacity = {(G5, B, "on-demand"): 1}
    instances = ec2.cloud().launch(request(count=3, offering=replace(ON_DEMAND, zone=B)))
    assert [ec2.machine(instance.id).zone for instance in instances] == [B]
    assert not ec2.machine(instances[0].id).is_spot


def test_spot_launch_prefers_the_zone_with_most_capacity(ec2: Account) -> None:
    ec2.region.capacity = {(G5, A, "spot"): 2, (G5, B, "spot"): 9, (G5, C, "spot"): 5}
    instances = ec2.cloud().launch(request(offering=SPOT, count=2))
    assert {
        (ec2.machine(instance.id).zone, ec2.machine(instance.id).is_spot) for instance in instances
    } == {(B, True)}


def test_named_subnets_exclude_other_subnets(ec2: Account) -> None:
    first, second, _ = ec2.region.subnets
    network = {"subnet_id": second, "subnet_ids": [second]}
    (launched,) = ec2.cloud().launch(request(network_interface=network))
    assert ec2.machine(launched.id).subnet == second
    elsewhere = request("two", replace(ON_DEMAND, zone=C), network_interface={"subnet_id": first})
    with pytest.raises(
        ConfigurationError, match=f"no subnet is in zone '{C}'; there are .* in: {A}"
    ):
        ec2.cloud().launch(elsewhere)


REFUSALS: list[tuple[str, type[CloudError], str]] = [
    ("stock-out", NoCapacity, "InsufficientInstanceCapacity: .* sufficient g5.12xlarge capacity"),
    ("quota", QuotaExceeded, "MaxSpotInstanceCountExceeded"),
    ("price", NoCapacity, "SpotMaxPriceTooLow: Your Spot request price of 0.01 is lower"),
    ("image", ConfigurationError, "InvalidAMIID.NotFound: The image id"),
    ("type", ConfigurationError, "Invalid value 'g5.huge' for InstanceType"),
    ("zones", ConfigurationError, "InvalidFleetConfiguration: .* not supported"),
]


@pytest.mark.parametrize(("why", "cls", "text"), REFUSALS)
def test_empty_fleet_raises_the_reported_error(
    ec2: Account, why: str, cls: type[CloudError], text: str
) -> None:
    offering, section = SPOT, dict[str, Any]()
    match why:
        case "stock-out":
            ec2.region.capacity = {(G5, zone, "spot"): 0 for zone in (A, B, C)}
        case "quota":
            # A g5.12xlarge has 48 vCPUs.
            ec2.region.quota = {"spot": 47}
        case "price":
            section = {"spot_max_price": "0.01"}
        case "image":
            section = {"image_id": "ami-00000000000000000"}
        case "type":
            offering = replace(SPOT, instance_type="g5.huge")
            # A description would reveal the unknown type before the launch.
            ec2.region.fail("DescribeInstanceTypes", "UnauthorizedOperation")
        case _:
            ec2.region.not_offered = {(G5, zone) for zone in (A, B, C)}
    with pytest.raises(cls, match=text) as caught:
        ec2.cloud().launch(request(offering=offering, **section))
    assert type(caught.value) is cls
    assert not ec2.region.machines


FAULTS: list[tuple[str, type[CloudError]]] = [
    ("RequestLimitExceeded", ThrottlingError),
    ("UnauthorizedOperation", NotAllowed),
    ("InternalError", OutcomeUnknown),
]


@pytest.mark.parametrize(("code", "cls"), FAULTS)
def test_methods_raise_specific_errors_without_retry(
    ec2: Account, code: str, cls: type[CloudError]
) -> None:
    cloud = ec2.cloud()
    (instance,) = cloud.launch(request())
    methods: list[tuple[str, Callable[[], object]]] = [
        ("CreateFleet", lambda: cloud.launch(request("two"))),
        ("DescribeInstances", lambda: cloud.list_instances("c1")),
        ("TerminateInstances", lambda: cloud.terminate([instance.id])),
    ]
    for action, method in methods:
        before = ec2.call_count(action)
        ec2.region.fail(action, code)
        with pytest.raises(cls) as caught:
            method()
        assert type(caught.value) is cls
        assert ec2.call_count(action) == before + 1
    assert len(ec2.region.machines) == 1


def test_error_hides_the_sdks_cause_and_blob(ec2: Account) -> None:
    ec2.region.fail(
        "CreateFleet", "UnauthorizedOperation", "No. Encoded authorization failure message: x"
    )
    with pytest.raises(NotAllowed, match=r"UnauthorizedOperation: No\. \(allow ") as caught:
        ec2.cloud().launch(request())
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_lost_response_is_repeated_by_token(ec2: Account) -> None:
    cloud = ec2.cloud()
    ec2.region.lose("CreateFleet")
    with pytest.raises(OutcomeUnknown, match="did not answer"):
        cloud.launch(request(count=2))
    instances = cloud.launch(request(count=2))
    assert sorted(instance.id for instance in instances) == sorted(ec2.region.machines)
    assert len(instances) == 2


def test_lost_request_is_executed_on_repetition(ec2: Account) -> None:
    ec2.region.lose("CreateFleet", carried_out=False)
    with pytest.raises(OutcomeUnknown):
        ec2.cloud().launch(request())
    assert len(ec2.cloud().launch(request())) == 1


def test_empty_response_is_looked_up_by_tag(ec2: Account) -> None:
    cloud = ec2.cloud()
    (launched,) = cloud.launch(request())
    (key,) = [key for key in ec2.region.answers if key[0] == "CreateFleet"]
    fields, answer = ec2.region.answers[key]
    ec2.region.answers[key] = (fields, {"FleetId": answer["FleetId"]})
    assert [instance.id for instance in cloud.launch(request())] == [launched.id]
    ec2.machine(launched.id).visible_ms = ec2.now_ms + 1
    with pytest.raises(OutcomeUnknown, match="returned neither instances nor errors"):
        cloud.launch(request())


def test_token_with_a_changed_request_is_refused(ec2: Account) -> None:
    cloud = ec2.cloud()
    cloud.launch(request())
    others = [
        request(count=2),
        request(offering=SPOT),
        request(offering=replace(ON_DEMAND, zone=A)),
        request(root_volume_size=400),
        replace(request(), id="another"),
        replace(request(), pool="green"),
    ]
    for other in others:
        with pytest.raises(TokenReused):
            cloud.launch(other)
    # The price is not part of the request, because prices change between attempts.
    dearer = replace(ON_DEMAND, price_per_hour=9.9)
    assert len(cloud.launch(request(offering=dearer))) == 1
    assert len(ec2.region.machines) == 1


def test_list_reads_all_pages(ec2: Account) -> None:
    ec2.region.page_size_max = 2
    launched = ec2.cloud().launch(request(count=5))
    listed = ec2.cloud().list_instances("c1")
    assert sorted(instance.id for instance in listed) == sorted(item.id for item in launched)
    # 5 instances in pages of 2.
    assert ec2.call_count("DescribeInstances") == 3


def test_lists_an_instance_in_each_state(ec2: Account) -> None:
    ec2.region.visible_ms, ec2.region.running_ms, ec2.region.ending_ms = 5_000, 10_000, 20_000
    cloud = ec2.cloud()
    (launched,) = cloud.launch(request())
    statuses = []
    for second in range(0, 60, 5):
        ec2.now_ms = BEGAN_MS + second * 1000
        if second == 20:
            cloud.terminate([launched.id])
        statuses += [instance.status for instance in cloud.list_instances("c1", "blue")]
    S = InstanceStatus
    # Hidden at 0 s, starting at 5 s, running from 10 s, terminating from 20 s, gone from 40 s.
    expected = [S.STARTING] + [S.RUNNING] * 2 + [S.TERMINATING] * 4 + [S.TERMINATED] * 4
    assert statuses == expected
    assert cloud.list_instances("c1")[0].launched_ms == BEGAN_MS


def test_lists_notices_with_their_time(ec2: Account) -> None:
    cloud = ec2.cloud()
    interrupted, kept = cloud.launch(request(offering=SPOT, count=2))
    ec2.now_ms += 60_000
    ec2.region.interrupt(interrupted.id)
    notices = {instance.id: instance.notice_ms for instance in cloud.list_instances("c1")}
    assert notices == {interrupted.id: BEGAN_MS + 60_000 + 120_000, kept.id: None}
    ec2.now_ms += 120_000
    statuses = {instance.id: instance.status for instance in cloud.list_instances("c1")}
    assert statuses[interrupted.id] is InstanceStatus.TERMINATED


def test_reads_notices_only_for_spot_instances(ec2: Account) -> None:
    cloud = ec2.cloud()
    cloud.launch(request())
    cloud.list_instances("c1")
    assert ec2.call_count("DescribeSpotInstanceRequests") == 0


def test_terminates_despite_unknown_ids(ec2: Account) -> None:
    cloud = ec2.cloud()
    (instance,) = cloud.launch(request())
    unknown = ["i-0123456789abcdef0", "i-0123456789abcdef1"]
    cloud.terminate([unknown[0], instance.id, "local-12ab", unknown[1], instance.id])
    assert not ec2.region.billed_machines()
    # EC2 refuses the call with unknown ids; the second call has the known id only.
    assert ec2.call_count("TerminateInstances") == 2
    cloud.terminate([*unknown, "local-12ab"])
    cloud.terminate([])
    assert ec2.call_count("TerminateInstances") == 3


def test_protected_instance_does_not_stop_other_terminations(ec2: Account) -> None:
    cloud = ec2.cloud()
    first, kept, last = (instance.id for instance in cloud.launch(request(count=3)))
    ec2.machine(kept).protected = True
    with pytest.raises(NotAllowed, match=f"OperationNotPermitted: The instance '{kept}' may not"):
        cloud.terminate([first, "i-0123456789abcdef0", kept, last])
    assert [billed_machine.id for billed_machine in ec2.region.billed_machines()] == [kept]


def test_terminate_raises_the_last_refusal(ec2: Account) -> None:
    cloud = ec2.cloud()
    first, second = (instance.id for instance in cloud.launch(request(count=2)))
    ec2.region.fail("TerminateInstances", "UnsupportedOperation", times=2)
    ec2.machine(second).protected = True
    with pytest.raises(NotAllowed, match=second):
        cloud.terminate([first, second])
    assert {billed_machine.id for billed_machine in ec2.region.billed_machines()} == {first, second}


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("RequestLimitExceeded", ThrottlingError),
        ("AuthFailure", NotAllowed),
        ("ExpiredToken", NotAllowed),
    ],
)
def test_terminate_stops_if_the_caller_is_refused(
    ec2: Account, code: str, cls: type[CloudError]
) -> None:
    cloud = ec2.cloud()
    ids = [instance.id for instance in cloud.launch(request(count=3))]
    ec2.region.fail("TerminateInstances", code)
    with pytest.raises(cls):
        cloud.terminate(ids)
    assert ec2.call_count("TerminateInstances") == 1
    # The refusal also stops the separate calls per instance.
    ec2.region.fail("TerminateInstances", "UnsupportedOperation")
    ec2.region.fail("TerminateInstances", code)
    with pytest.raises(cls):
        cloud.terminate(ids)
    assert ec2.call_count("TerminateInstances") == 3


def test_invalid_settings_name_the_field(ec2: Account) -> None:
    with pytest.raises(ConfigurationError, match=r"provider\.root_volume_size: Input should be"):
        ec2.cloud().launch(request(root_volume_size="big"))
    with pytest.raises(ConfigurationError, match="provider"):
        ec2.cloud().launch(replace(request(), section="{"))


def test_protocol_lists_every_call(ec2: Account) -> None:
    cloud = ec2.cloud(SPOT)
    cloud.offerings()
    (instance,) = cloud.launch(request(offering=SPOT, image_id=AMI))
    ec2.now_ms += 25 * HOUR_MS
    ec2.cloud(user_data=lambda item: b"new").launch(request("two", image_id=AMI))
    # The catalogue lacks this type.
    cloud.launch(request("three", replace(ON_DEMAND, instance_type="g6f.large", slots=1)))
    block = "cr-0123456789abcdef0"
    cloud.launch(request("four", capacity_reservation=block, capacity_block=True))
    cloud.list_instances("c1")
    cloud.boot_log(instance.id)
    cloud.terminate([instance.id])
    named = {name.title().replace("_", "") for name in vars(Ec2Api) if not name.startswith("_")}
    assert set(ec2.region.calls) == named


def test_equal_settings_share_a_provider(ec2: Account) -> None:
    opened = list[str]()

    def api(region: str) -> Ec2Api:
        opened.append(region)
        client: Ec2Api = ec2.api
        return client

    clouds = Ec2Clouds(lambda item: b"", lambda: ec2.now_ms, api)
    frankfurt = ProvisionerSettings("aws", section='{"region": "eu-central-1"}')
    oregon = ProvisionerSettings("aws", section='{"region": "us-west-2"}')
    assert clouds.cloud(frankfurt) is clouds.cloud(replace(frankfurt))
    assert clouds.cloud(replace(frankfurt, max_instances=9)) is not clouds.cloud(frankfurt)
    clouds.cloud(oregon)
    assert opened == ["eu-central-1", "us-west-2"]


def test_client_uses_the_environments_endpoint_without_retries(
    ec2: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    clouds = Ec2Clouds(lambda item: b"", lambda: ec2.now_ms)
    cloud = clouds.cloud(ProvisionerSettings("aws", section='{"region": "us-east-1"}'))
    for code, cls in FAULTS:
        ec2.region.fail("DescribeInstances", code)
        with pytest.raises(cls):
            cloud.list_instances("c1")
    ec2.region.lose("DescribeInstances", carried_out=False)
    with pytest.raises(OutcomeUnknown):
        cloud.list_instances("c1")
    assert ec2.call_count("DescribeInstances") == len(FAULTS) + 1
    assert len(cloud.launch(request())) == 1


def test_client_without_region_or_credentials_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigurationError, match="You must specify a region"):
        create_ec2_client("")
    cloud = aws.Ec2Cloud(
        ProvisionerSettings("aws"),
        lambda item: b"",
        lambda: BEGAN_MS,
        create_ec2_client("eu-central-1"),
    )
    with pytest.raises(NotAllowed, match="no credentials for AWS: NoCredentialsError"):
        cloud.list_instances("c1")


def test_boot_script_can_depend_on_the_launch(ec2: Account) -> None:
    def script(intent: IntentRow) -> bytes:
        return json.dumps({"pool": intent.pool, "slots": intent.offering.slots}).encode()

    (launched,) = ec2.cloud(user_data=script).launch(request())
    assert json.loads(ec2.machine(launched.id).user_data) == {"pool": "blue", "slots": 4}
