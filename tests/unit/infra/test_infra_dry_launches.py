"""The launches of pools with DryRun, at a simulated EC2 with rules of a company."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from control_plane.config.pools import ClusterConfig, check_cluster
from infra.aws.account_facts import DryLaunch, DryRun, ImageRules, PublicAccess
from infra.aws.company_reader import read_image_rules, read_public_access
from infra.aws.dry_launches import read_launches
from infra.aws.settings import Network, Settings
from lambdas.aws.boot import user_data
from lambdas.aws.ec2_clouds import DeployedPlace, complete_network
from provisioner.clouds.aws.launch_request import launch_template_data, parse_section
from provisioner.settings import parse_provider_settings
from tests.emulators.ec2.region import Params, Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server

SUBNETS = {f"us-east-1{letter}": f"subnet-{number:017x}" for number, letter in enumerate("ab")}
NETWORK = Network(SUBNETS, "sg-0123456789abcdef0")
SETTINGS = Settings(
    "vision",
    "111111111111",
    "us-east-1",
    "pools.yaml",
    "a" * 64,
    zones=("us-east-1a", "us-east-1b"),
    network=NETWORK,
    tags={"cost-center": "42"},
)
IMAGE = "ami-0123456789abcdef0"
WORKS = {
    "CreateLaunchTemplate": DryRun(
        "DryRunOperation", "Request would have succeeded, but DryRun flag is set."
    ),
    "CreateFleet": DryRun(
        "InvalidLaunchTemplateName.NotFoundException",
        "At least one of the launch templates specified in the request does not exist.",
    ),
    "RunInstances": DryRun(
        "DryRunOperation", "Request would have succeeded, but DryRun flag is set."
    ),
}
SCP = (
    "You are not authorized to perform this operation. User: arn:aws:sts::111111111111:assumed-"
    "role/deployer/ann is not authorized to perform: ec2:RunInstances on resource: "
    "arn:aws:ec2:us-east-1:111111111111:network-interface/* with an explicit deny in a service "
    "control policy. Encoded authorization failure message: QUJD-_w"
)


def pools(more: str = "", market: str = "on_demand") -> ClusterConfig:
    return check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, offerings: [{instance_type: "
        f"g5.xlarge, market: {market}}}]{more}}}}}]\n"
    )


class Account:
    """The clients of an account: EC2 is simulated, and the rest are prepared answers."""

    def __init__(self, server: Ec2Server, api: Any) -> None:
        self.server, self.api = server, api
        self.has_profile = True
        self.decoded: str | None = None

    @property
    def region(self) -> Region:
        return self.server.region

    def __call__(self, service: str) -> Any:
        return self.api if service == "ec2" else self

    def get_instance_profile(self, **asked: str) -> Any:
        if not self.has_profile:
            raise ClientError({"Error": {"Code": "NoSuchEntity"}}, "GetInstanceProfile")
        return {}

    def decode_authorization_message(self, **asked: str) -> Any:
        if self.decoded is None:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "DecodeAuthorizationMessage")
        assert asked == {"EncodedMessage": "QUJD-_w"}
        return {"DecodedMessage": self.decoded}


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with ec2_server(Region(lambda: 0)) as server:
        api = server.client()
        yield Account(server, api)
        api.close()


@pytest.fixture
def account(lasting: Account) -> Account:
    lasting.server.region = Region(lambda: 0)
    lasting.has_profile, lasting.decoded = True, None
    return lasting


def test_asks_for_each_launch_without_launching(account: Account) -> None:
    launches = read_launches(SETTINGS, pools(), account)
    assert launches == (DryLaunch("default", "g5.xlarge on-demand", WORKS),)
    assert not account.region.machines
    assert not account.region.templates


def test_request_has_the_content_of_the_ticks_launch_template(account: Account) -> None:
    asked: dict[str, Params] = {}
    account.region.denies = lambda action, params: str(asked.update({action: params}) or "")
    cluster = pools(", image_id: ami-0123456789abcdef0, root_volume_size: 300")
    read_launches(SETTINGS, cluster, account)
    [pool] = cluster.resource_pools
    assert pool.provider is not None
    section = parse_provider_settings(pool.provider.to_json()).section
    network = {
        "subnets": SUBNETS,
        "security_group": NETWORK.security_group,
        "instance_profile": SETTINGS.names.instance_profile_arn,
        "tags": SETTINGS.tags,
    }
    settings = complete_network(parse_section(section), DeployedPlace("us-east-1", network))
    template = asked["CreateLaunchTemplate"]["LaunchTemplateData"]
    # The boot script differs in the API's address alone, which is unknown before a deployment.
    script = base64.b64decode(template["UserData"])
    url = "https://aaaaaaaaaa.execute-api.us-east-1.amazonaws.com"
    code = f"https://{SETTINGS.names.objects}.s3.us-east-1.amazonaws.com/agent-code"
    fleet, single = asked["CreateFleet"], asked["RunInstances"]
    from control_plane.fleet.records import IntentRow, Market, Offering

    offering = Offering("g5.xlarge/on_demand", "g5.xlarge", "", Market.ON_DEMAND, 1)
    row = IntentRow("1", SETTINGS.names.cluster, "default", offering, 1, "t", 0, section=section)
    assert script == user_data(url, SETTINGS.names.cluster, code)(row)
    expected = launch_template_data(row, settings, script, "/dev/xvda")
    assert template == expected
    for name in ("ImageId", "BlockDeviceMappings", "MetadataOptions", "IamInstanceProfile"):
        assert single[name] == expected[name]
    assert single["CapacityReservationSpecification"] == {"CapacityReservationPreference": "none"}
    [interface] = single["NetworkInterfaces"]
    assert interface["SubnetId"] == SUBNETS["us-east-1a"]
    assert interface["Groups"] == [NETWORK.security_group]
    tags = {item["ResourceType"]: item["Tags"] for item in single["TagSpecifications"]}
    assert set(tags) == {"instance", "volume"}
    assert {"Key": "cost-center", "Value": "42"} in tags["instance"]
    assert {"Key": "detcloud-cluster", "Value": "detcloud-vision"} in tags["volume"]
    assert fleet["LaunchTemplateConfigs"][0]["Overrides"][0]["InstanceType"] == "g5.xlarge"


def test_spot_launch_has_the_market_and_the_price(account: Account) -> None:
    asked: dict[str, Params] = {}
    account.region.denies = lambda action, params: str(asked.update({action: params}) or "")
    read_launches(SETTINGS, pools(", spot_max_price: '2.5'", "spot"), account)
    options = asked["RunInstances"]["InstanceMarketOptions"]
    assert options["MarketType"] == "spot"
    assert options["SpotOptions"]["MaxPrice"] == "2.5"


def denial(action: str) -> Callable[[str, Params], str]:
    return lambda called, params: SCP if called == action else ""


def test_denial_is_decoded_if_the_deployer_may(account: Account) -> None:
    account.region.denies = denial("RunInstances")
    [launch] = read_launches(SETTINGS, pools(), account)
    answer = launch.answers["RunInstances"]
    plain = SCP.partition(" Encoded")[0]
    assert answer == DryRun("UnauthorizedOperation", plain, decoding_refused=True)
    # The form of IAM's example of DecodeAuthorizationMessage; the context has more fields.
    account.decoded = json.dumps(
        {
            "allowed": False,
            "explicitDeny": True,
            "matchedStatements": {"items": [{"statementId": "NoPublicAddresses"}]},
            "context": {
                "principal": {"arn": "arn:aws:sts::111111111111:assumed-role/deployer/ann"},
                "action": "ec2:RunInstances",
                "resource": "arn:aws:ec2:us-east-1:111111111111:network-interface/*",
            },
        }
    )
    [launch] = read_launches(SETTINGS, pools(), account)
    reason = (
        "ec2:RunInstances on arn:aws:ec2:us-east-1:111111111111:network-interface/*, by the "
        "statement NoPublicAddresses"
    )
    assert launch.answers["RunInstances"] == DryRun("UnauthorizedOperation", plain, reason)


@pytest.mark.parametrize("decoded", ["no JSON", "[]", "{}", '{"context": {"action": "a"}}'])
def test_unknown_form_of_a_decoded_message_gives_no_reason(account: Account, decoded: str) -> None:
    account.region.denies = denial("RunInstances")
    account.decoded = decoded
    [launch] = read_launches(SETTINGS, pools(), account)
    answer = launch.answers["RunInstances"]
    assert isinstance(answer, DryRun)
    assert (answer.statement, answer.decoding_refused) == ("", False)


def test_first_deployment_leaves_out_missing_parts(account: Account) -> None:
    account.has_profile = False
    own = replace(SETTINGS, network=None)
    [launch] = read_launches(own, pools(), account)
    assert launch.left_out == ("the subnet", "the security group", "the instance profile")
    answer = launch.answers["RunInstances"]
    assert isinstance(answer, DryRun)
    assert answer.code == "DryRunOperation"


def test_account_without_a_default_network_is_asked_without_a_subnet(account: Account) -> None:
    asked: dict[str, Params] = {}
    account.region.denies = lambda action, params: str(asked.update({action: params}) or "")
    own = replace(SETTINGS, network=None, zones=("us-east-1f",))
    read_launches(own, pools(), account)
    assert "SubnetId" not in asked["RunInstances"]["NetworkInterfaces"][0]
    assert "SubnetId" not in asked["CreateFleet"]["LaunchTemplateConfigs"][0]["Overrides"][0]


def test_hidden_image_is_a_refusal_of_the_launch(account: Account) -> None:
    account.region.allowed_images = "enabled"
    account.region.refused_images = {IMAGE}
    [launch] = read_launches(SETTINGS, pools(f", image_id: {IMAGE}"), account)
    answer = launch.answers["DescribeImages"]
    assert isinstance(answer, DryRun)
    assert answer.code == "InvalidAMIID.NotFound"


@pytest.mark.parametrize(
    ("state", "refused"),
    [("disabled", set()), ("audit-mode", {IMAGE}), ("enabled", {IMAGE, "ami-0fedcba9876543210"})],
)
def test_reads_which_images_the_account_allows(
    account: Account, state: str, refused: set[str]
) -> None:
    account.region.allowed_images = state
    account.region.refused_images = {IMAGE}
    if state == "audit-mode":
        account.region.images["ami-0fedcba9876543210"] = "/dev/sda1"
    names = [IMAGE, "ami-0fedcba9876543210", "resolve:ssm:/aws/service/x"]
    assert read_image_rules(account, names) == ImageRules(state, frozenset(refused))


def test_reads_public_access_with_exclusions(account: Account) -> None:
    assert read_public_access(SETTINGS, account) == PublicAccess("off")
    account.region.public_access = "block-ingress"
    account.region.excluded = ["vpc-00000000000000001", "subnet-7"]
    assert read_public_access(SETTINGS, account) == PublicAccess(
        "block-ingress",
        frozenset({"vpc-00000000000000001", "subnet-7"}),
        True,
        "vpc-00000000000000001",
    )
    own = replace(SETTINGS, network=None)
    # The emulator's subnets have no tags, so the stack has no network.
    assert read_public_access(own, account).vpc == ""
