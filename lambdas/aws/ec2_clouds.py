"""EC2 instances for the pools of a cluster. The cluster's functions may run in any cloud."""

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
    """The defaults of the stack for the place of instances, unless a pool names its own."""

    region: str
    """The region of pools that name none."""
    network: Mapping[str, Any]
    """The stack's value of DETCLOUD_NETWORK: `subnets`, `security_group`, `instance_profile` and
    optional settings.
    """


def open_clouds(
    parts: HostParts, place: DeployedPlace, code_place: str, session: Callable[[], Any]
) -> Ec2Clouds:
    """Return the EC2 providers of a cluster's pools.

    No request is sent yet. Before a boot script is rendered, the agent's code is written to the
    object store.

    Args:
        parts: the id, URL, clock and calls of the cluster's host.
        place: the defaults of the stack.
        code_place: the URL of the folder from which instances download the agent's code. "" if
            instances request the code from the cluster.
        session: returns a botocore session with the credentials. Called for each new client.
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
    """Return a pool's settings, completed with the settings of the stack.

    The pool's own region, subnets, security group and instance profile take precedence. Instances
    get a public address only if the pool and the stack allow one. The stack's tags come before the
    pool's tags. The placement groups and the KMS key are the stack's. Raises KeyError if both lack
    subnets, a security group or an instance profile.
    """
    pool, deployed = settings.network_interface, place.network
    network = Network(
        # A public address is useless in private subnets.
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
        # For equal keys the last tag is used, so a pool's own tag takes precedence.
        custom_tags=(*tags, *settings.custom_tags),
        kms_key=deployed.get("kms_key", ""),
    )


def _create_price_client(session: Any) -> Any:
    """Create a client of AWS's Price List API with short timeouts and without retries.

    So a slow API does not delay a tick for long.
    """
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=4)
    return session.create_client("pricing", PRICE_LIST_REGION, config=config)
