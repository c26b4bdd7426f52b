"""Asks EC2 whether the launches of the pools would be allowed, by requests with DryRun.

The requests are those of the tick, made by the tick's code from the pools' settings. Parts that the
stack has not created yet are left out: before the first deployment, its network and its instance
profile do not exist. DryRun starts nothing and costs nothing.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import botocore.exceptions as sdk

from control_plane.aws.pool_provider import AwsProvider
from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import IntentRow, Offering
from infra.aws.account_facts import Clients, DryLaunch, DryRun
from infra.aws.network import instance_defaults
from infra.aws.pool_checks import aws_pools
from infra.aws.sdk_reads import error_code, error_message
from infra.aws.settings import Settings
from infra.findings import Unknown
from lambdas.aws.boot import user_data
from lambdas.aws.ec2_clouds import DeployedPlace, complete_network
from lambdas.clock import now_ms
from provisioner.clouds.aws.launch_request import (
    Ec2Settings,
    Subnet,
    fleet_request,
    parse_section,
)
from provisioner.clouds.aws.launch_templates import LaunchTemplates
from provisioner.clouds.aws.single_launch import single_launch
from provisioner.clouds.provider import CLUSTER_TAG, CloudError
from provisioner.settings import parse_provider_settings

WOULD_WORK: Final = "DryRunOperation"
# The code of a request that the provisioner itself refuses before EC2 is asked.
NOT_SENT: Final = "ConfigurationError"
# The permissions for the requests, in words for remedies.
LAUNCH_NEEDS: Final = (
    "ec2:CreateFleet, ec2:CreateLaunchTemplate and ec2:RunInstances, of the policy that `detcloud "
    "deploy policy aws --launches` prints"
)
NO_SUBNET: Final = "the subnet"
PLACE_NEEDS: Final = "ec2:DescribeSubnets, ec2:DescribeSecurityGroups and iam:GetInstanceProfile"
_ENCODED: Final = re.compile(r"\s*Encoded authorization failure message:\s*(\S+)")
_MISSING: Final = frozenset({"NoSuchEntity", "InvalidGroup.NotFound"})
_CHECK: Final = "deploy-check"


@dataclass(frozen=True)
class LaunchPlace:
    """The network and the profile of launched instances."""

    subnets: tuple[Subnet, ...]
    """The subnets of the stack; before the first deployment, of the account's default network."""
    security_group: str
    """Empty if the stack has not created its group yet."""
    instance_profile: str
    """The ARN; empty if the stack has not created its profile yet."""
    left_out: tuple[str, ...]
    """The missing parts in words."""


def read_launches(
    settings: Settings, cluster: ClusterConfig, clients: Clients
) -> tuple[DryLaunch, ...]:
    """Return EC2's answers to the launch of each offering of each pool on AWS.

    A refusal and a lost answer become part of the result. Raise the SDK's errors if the network or
    the instance profile cannot be read. Return () without a call if no pool runs on AWS.
    """
    pools = list(aws_pools(cluster))
    if not pools:
        return ()
    place = _read_place(settings, clients)
    return tuple(
        launch
        for name, provider in pools
        for launch in _pool_launches(settings, clients, place, name, provider)
    )


def _pool_launches(
    settings: Settings, clients: Clients, place: LaunchPlace, pool: str, provider: AwsProvider
) -> Iterator[DryLaunch]:
    """Yield EC2's answers to the launch of each offering of a pool."""
    parsed = parse_provider_settings(provider.to_json())
    own = _launch_settings(settings, place, parse_section(parsed.section))
    names = settings.names
    script = user_data(
        f"https://{'a' * 10}.execute-api.{settings.region}.amazonaws.com",
        names.cluster,
        f"https://{names.objects}.s3.{settings.region}.amazonaws.com/agent-code",
        session_manager=settings.session_manager,
    )
    templates = LaunchTemplates(clients("ec2"), script, now_ms)
    for offering in parsed.offerings or (own.default_offering(),):
        token = f"{names.cluster}-{_CHECK}"
        request = IntentRow(
            _CHECK, names.cluster, pool, offering, 1, token, 0, section=parsed.section
        )
        answers = _answers(clients, place, templates, request, own)
        shown = f"{offering.instance_type} {_market(offering, own)}"
        yield DryLaunch(pool, shown, answers, place.left_out)


def _answers(
    clients: Clients,
    place: LaunchPlace,
    templates: LaunchTemplates,
    request: IntentRow,
    own: Ec2Settings,
) -> dict[str, DryRun | Unknown]:
    """Return EC2's answers to the requests of a launch, by the operation.

    A request that the provisioner refuses has the code NOT_SENT.
    """
    ec2 = clients("ec2")
    try:
        creation = templates.template_request(request, own)
        fleet = _fleet(place, request, own, creation["LaunchTemplateName"])
    except CloudError as error:
        return {"RunInstances": DryRun(NOT_SENT, str(error))}
    except sdk.ClientError as error:
        code = error_code(error)
        if code.startswith("InvalidAMIID"):
            return {"DescribeImages": DryRun(code, error_message(error))}
        return {"DescribeImages": Unknown("ec2:DescribeImages", f"AWS answered {code}")}
    except sdk.BotoCoreError as error:
        return {"DescribeImages": _unreachable(error)}
    single = single_launch(creation["LaunchTemplateData"], fleet)
    return {
        "CreateLaunchTemplate": _dry_run(clients, ec2.create_launch_template, creation),
        "CreateFleet": _dry_run(clients, ec2.create_fleet, fleet),
        "RunInstances": _dry_run(clients, ec2.run_instances, single),
    }


def _fleet(
    place: LaunchPlace, request: IntentRow, own: Ec2Settings, template: str
) -> dict[str, Any]:
    """Return the parameters of CreateFleet for a launch, without a subnet before a deployment.

    Raise ConfigurationError if the stack has subnets, but none in the zone of the offering.
    """
    zone = request.offering.zone
    named = own.network_interface.subnets
    subnets = [subnet for subnet in place.subnets if subnet.id in named]
    if NO_SUBNET not in place.left_out or any(zone in ("", subnet.zone) for subnet in subnets):
        return fleet_request(request, own, template, subnets)
    fleet = fleet_request(request, own, template, [Subnet("", zone)])
    for override in fleet["LaunchTemplateConfigs"][0]["Overrides"]:
        del override["SubnetId"]
    return fleet


def _dry_run(clients: Clients, operation: Any, request: Mapping[str, Any]) -> DryRun | Unknown:
    """Return EC2's answer to a request with DryRun; Unknown if EC2 could not be reached."""
    try:
        operation(DryRun=True, **request)
    except sdk.ClientError as error:
        return _denial_answer(clients, error_code(error), error_message(error))
    except sdk.BotoCoreError as error:
        return _unreachable(error)
    return DryRun(WOULD_WORK)


def _unreachable(error: sdk.BotoCoreError) -> Unknown:
    """Return the fact about a request that EC2 did not answer."""
    return Unknown(LAUNCH_NEEDS, f"AWS could not be queried: {type(error).__name__}")


def _denial_answer(clients: Clients, code: str, message: str) -> DryRun:
    """Return EC2's answer with the reason that the encoded part of `message` contains."""
    encoded = _ENCODED.search(message)
    plain = _ENCODED.sub("", message)
    if encoded is None:
        return DryRun(code, plain)
    try:
        answer = clients("sts").decode_authorization_message(EncodedMessage=encoded[1])
    except (sdk.ClientError, sdk.BotoCoreError):
        return DryRun(code, plain, decoding_refused=True)
    return DryRun(code, plain, _reason(answer["DecodedMessage"]))


def _reason(decoded: str) -> str:
    """Return the denied action, the resource and the statement of a decoded message.

    Return "" if the message has an unknown form. The values of the request's context stay out,
    because they name users and addresses.
    """
    try:
        document = json.loads(decoded)
        context = document["context"]
        text = f"{context['action']} on {context['resource']}"
        names = [item["statementId"] for item in document["matchedStatements"]["items"]]
    except (ValueError, KeyError, TypeError):
        return ""
    named = ", ".join(filter(None, names))
    return f"{text}, by the statement {named}" if named else text


def _launch_settings(settings: Settings, place: LaunchPlace, own: Ec2Settings) -> Ec2Settings:
    """Return a pool's settings, completed as by the tick with the deployment's values.

    A missing security group or profile is left out. Only gangs use placement groups.
    """
    network = {
        "subnets": {subnet.zone: subnet.id for subnet in place.subnets},
        "security_group": place.security_group,
        "instance_profile": place.instance_profile,
        **instance_defaults(settings),
    }
    return complete_network(own, DeployedPlace(settings.region, network))


def _market(offering: Offering, own: Ec2Settings) -> str:
    """Return EC2's name of the market: `spot`, `on-demand` or `capacity-block`."""
    if offering.market == "spot":
        return "spot"
    return "capacity-block" if own.capacity_block else "on-demand"


def _read_place(settings: Settings, clients: Clients) -> LaunchPlace:
    """Read the subnets, the security group and the profile of instances. Raise the SDK's errors.

    Missing subnets are replaced by the subnets of the account's default network, if any.
    """
    ec2, names = clients("ec2"), settings.names
    profile = "" if _is_profile_missing(settings, clients) else names.instance_profile_arn
    if settings.network is not None:
        subnets = [Subnet(name, zone) for zone, name in settings.network.subnets.items()]
        group = settings.network.security_group
    else:
        found = _find_subnets(ec2, {"Name": f"tag:{CLUSTER_TAG}", "Values": [names.cluster]})
        # Instances are not launched in the subnet of the NAT gateway.
        subnets = [subnet for subnet, name in found if name != names.part("way-out")]
        group = _find_group(ec2, settings)
    left_out = [
        *([] if subnets else [NO_SUBNET]),
        *([] if group else ["the security group"]),
        *([] if profile else ["the instance profile"]),
    ]
    if not subnets:
        found = _find_subnets(ec2, {"Name": "default-for-az", "Values": ["true"]})
        subnets = [subnet for subnet, _ in found if subnet.zone in settings.zones]
    return LaunchPlace(tuple(sorted(subnets)), group, profile, tuple(left_out))


def _find_subnets(ec2: Any, wanted: Mapping[str, Any]) -> list[tuple[Subnet, str]]:
    """Return the subnets that fulfil a filter, each with the tag Name. Raise the SDK's errors."""
    described = ec2.describe_subnets(Filters=[wanted])["Subnets"]
    return [
        (
            Subnet(item["SubnetId"], item["AvailabilityZone"]),
            {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}.get("Name", ""),
        )
        for item in described
    ]


def _find_group(ec2: Any, settings: Settings) -> str:
    """Return the id of the stack's security group for instances, or "" before a deployment."""
    filters = [
        {"Name": "group-name", "Values": [settings.names.part("instances")]},
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [settings.names.cluster]},
    ]
    found = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return str(found[0]["GroupId"]) if found else ""


def _is_profile_missing(settings: Settings, clients: Clients) -> bool:
    """Return whether the instance profile of the stack does not exist. Raise other SDK errors."""
    try:
        clients("iam").get_instance_profile(InstanceProfileName=settings.names.role("instance"))
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return True
        raise
    return False
