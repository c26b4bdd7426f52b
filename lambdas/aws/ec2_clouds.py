"""EC2 for the pools of a cluster, whose functions may run in any cloud."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from botocore.config import Config

from control_plane.fleet.records import IntentRow
from lambdas.aws.boot import user_data
from lambdas.other_clouds import HostParts
from provisioner.clouds.aws.ec2_api import create_ec2_client
from provisioner.clouds.aws.launch_request import Ec2Settings, Network, Tag
from provisioner.clouds.aws.price_list import PRICE_LIST_REGION, PriceList
from provisioner.clouds.aws.provider import Ec2Clouds


@dataclass(frozen=True)
class DeployedPlace:
    """The place that was deployed for instances: pools that name no other region, network or
    profile have it. `network` is what the stack says in DETCLOUD_NETWORK.
    """

    region: str
    network: Mapping[str, Any]


def open_clouds(
    parts: HostParts, place: DeployedPlace, code_place: str, session: Callable[[], Any]
) -> Ec2Clouds:
    """Open EC2 with sessions of botocore that have the credentials. `code_place` is the URL below
    which instances fetch their code, "" where they ask the cluster for it.
    """
    sessions = bool(place.network.get("session_manager"))
    script = user_data(parts.api_url, parts.cluster_id, code_place, session_manager=sessions)

    def render_script(request: IntentRow) -> bytes:
        parts.keep_agent_code()
        return script(request)

    return Ec2Clouds(
        render_script,
        parts.clock,
        lambda region: create_ec2_client(region or place.region, session()),
        complete_settings=lambda settings: complete_network(settings, place),
        prices=PriceList(lambda: _create_price_client(session()), parts.clock),
    )


def complete_network(settings: Ec2Settings, place: DeployedPlace) -> Ec2Settings:
    """Complete a pool's settings by the tags and the key of the stack and, where the pool names
    none, by the network of the stack.
    """
    pool, deployed = settings.network_interface, place.network
    network = Network(
        # In private subnets a public address would lead nowhere.
        public_ip=pool.public_ip and deployed.get("public_ip", True),
        subnet_ids=pool.subnets or tuple(deployed["subnets"].values()),
        security_group_id=pool.security_group_id or deployed["security_group"],
    )
    profile = settings.iam_instance_profile_arn or deployed["instance_profile"]
    tags = tuple(Tag(key, value) for key, value in deployed.get("tags", {}).items())
    return replace(
        settings,
        region=settings.region or place.region,
        network_interface=network,
        iam_instance_profile_arn=profile,
        placement_groups=deployed.get("placement_groups", {}),
        # A pool's own come later, and so take precedence.
        custom_tags=(*tags, *settings.custom_tags),
        kms_key=deployed.get("kms_key", ""),
    )


def _create_price_client(session: Any) -> Any:
    """Make a client of the Price List API that holds up no tick for long."""
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=4)
    return session.create_client("pricing", PRICE_LIST_REGION, config=config)
