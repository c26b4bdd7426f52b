"""Checks of resource pools against the settings of the stack. Pure."""

from collections.abc import Iterator

from control_plane.aws.pool_provider import AwsProvider
from control_plane.config.pools import ClusterConfig
from control_plane.config.providers import OfferingConfig
from infra.aws.settings import Settings
from infra.pool_types import OTHER_TYPE_REMEDY, find_other_types

# The SSM parameters that the tick's policy allows to read.
PUBLIC_PARAMETERS = "/aws/service/"
EC2_TAGS_MAX = 50
# The tags for cluster, pool and intent, the name, and the pool's `tag_key`.
OWN_TAGS = 5


def aws_pools(cluster: ClusterConfig) -> Iterator[tuple[str, AwsProvider]]:
    """Yield the name and the provider of each pool that runs on EC2."""
    for pool in cluster.resource_pools:
        if isinstance(pool.provider, AwsProvider):
            yield pool.pool_name, pool.provider


def offerings_of(provider: AwsProvider) -> tuple[OfferingConfig, ...]:
    """Return the pool's offerings.

    Without any, return an offering of `instance_type` in any zone, spot or on demand as configured.
    """
    return provider.offerings or (
        OfferingConfig(
            instance_type=provider.instance_type, market="spot" if provider.spot else "on_demand"
        ),
    )


def pool_types(cluster: ClusterConfig) -> frozenset[str]:
    """Return the instance types in the offerings of all pools on AWS."""
    return frozenset(
        offering.instance_type
        for _, provider in aws_pools(cluster)
        for offering in offerings_of(provider)
    )


def journal_groups(cluster: ClusterConfig) -> list[str]:
    """Return the sorted CloudWatch log groups that AWS pools name for agents' journals."""
    return sorted({provider.log_group for _, provider in aws_pools(cluster)} - {""})


def capacity_reservations(cluster: ClusterConfig) -> list[str]:
    """Return the sorted capacity reservations that AWS pools name, by id or by ARN of a group."""
    return sorted({provider.capacity_reservation for _, provider in aws_pools(cluster)} - {""})


def find_pool_problems(settings: Settings, cluster: ClusterConfig) -> list[str]:
    """Return a line for each problem of the cluster's pools; [] if all can run in the stack.

    Check the names in `task_roles`, the types of providers, the pools in remote accounts and the
    pools on AWS.
    """
    names = [pool.pool_name for pool in cluster.resource_pools]
    strangers = [
        f"detcloud:taskRoles gives a role to the trials of {name}: expected a pool of "
        f"{settings.cluster_config}, which has {', '.join(names)}"
        for name in settings.task_roles
        if name not in names
    ]
    others = find_other_types(cluster, {"aws", *settings.other_clouds}, OTHER_TYPE_REMEDY)
    elsewhere = [
        pool_problem
        for remote in settings.remote_accounts.values()
        for pool_problem in remote.find_pool_problems(cluster)
    ]
    return [
        *strangers,
        *(f"{settings.cluster_config}: pool {name}: {problem}" for name, problem in others),
        *(f"{settings.cluster_config}: {text}" for text in elsewhere),
        *(
            f"{settings.cluster_config}: pool {name}: {problem}"
            for name, provider in aws_pools(cluster)
            for problem in find_place_problems(settings, provider)
        ),
    ]


def find_place_problems(settings: Settings, provider: AwsProvider) -> list[str]:
    """Return a line for each field of a pool's `provider` that conflicts with the settings.

    Check region, instance profile, subnets, security group, zones, image and tags. Return [] if
    nothing conflicts.
    """
    return [
        *_place_problems(settings, provider),
        *_zone_problems(settings, provider),
        *_image_problems(provider),
        *_tag_problems(settings, provider),
    ]


def _place_problems(settings: Settings, provider: AwsProvider) -> Iterator[str]:
    """Yield a line for each place that the provider names and the stack does not use.

    Places are the region, the instance profile, the subnets and the security group. The settings
    `region` and `network`, and the stack's own instance profile, are allowed. An empty field of the
    provider is no problem.
    """
    if provider.region not in ("", settings.region):
        yield (
            f"provider.region is {provider.region}: expected {settings.region}, where the stack "
            "is; leave it out, and make another stack for another region"
        )
    profile = settings.names.instance_profile_arn
    if provider.iam_instance_profile_arn not in ("", profile):
        yield (
            f"provider.iam_instance_profile_arn is {provider.iam_instance_profile_arn}: expected "
            "none, for instances prove who they are by the stack's own, and the tick may give "
            "them no other; leave it out"
        )
    yield from _network_problems(settings, provider)


def _network_problems(settings: Settings, provider: AwsProvider) -> Iterator[str]:
    """Yield a line for each subnet or security group that the setting `network` does not name.

    Without the setting, any named subnet or group is a problem.
    """
    network, interface = settings.network, provider.network_interface
    known = set(network.subnets.values()) if network else set()
    for subnet in filter(None, (interface.subnet_id, *interface.subnet_ids)):
        if subnet not in known:
            yield _foreign_name_problem(settings, "subnet", subnet, ", ".join(sorted(known)))
    group = network.security_group if network else ""
    if interface.security_group_id not in ("", group):
        yield _foreign_name_problem(settings, "security group", interface.security_group_id, group)


def _foreign_name_problem(settings: Settings, kind: str, name: str, known: str) -> str:
    """Return the line about a subnet or security group that is not among the `known` names."""
    expected = f"one of {known}" if known else "none, for the stack makes its own"
    setting = settings.network.setting if settings.network else "detcloud:network"
    return (
        f"provider.network_interface names the {kind} {name}: expected {expected}; leave it out, "
        f"or name it in {setting}, so that the tick may use it"
    )


def _zone_problems(settings: Settings, provider: AwsProvider) -> Iterator[str]:
    """Yield a line for each offering in a foreign zone."""
    zones = zones_in_use(settings)
    where = settings.network.setting if settings.network else "detcloud:zones"
    for offering in offerings_of(provider):
        if offering.zone and offering.zone not in zones:
            yield (
                f"an offering is in the zone {offering.zone}: expected one of {', '.join(zones)}, "
                f"where there are subnets for it; add it to {where}"
            )


def _image_problems(provider: AwsProvider) -> Iterator[str]:
    """Yield a line if `image_id` is neither an image nor a public parameter of AWS."""
    image = provider.image_id
    if image and not image.startswith(("ami-", f"resolve:ssm:{PUBLIC_PARAMETERS}")):
        yield (
            f"provider.image_id is {image}: expected an image, ami-..., or a parameter of AWS's, "
            f"resolve:ssm:{PUBLIC_PARAMETERS}..., for the tick may read no others"
        )


def _tag_problems(settings: Settings, provider: AwsProvider) -> Iterator[str]:
    """Yield a line if the tags of an instance exceed EC2's limit."""
    keys = {*settings.tags, *(tag.key for tag in provider.custom_tags)} - {provider.tag_key, "Name"}
    most = EC2_TAGS_MAX - OWN_TAGS
    if len(keys) > most:
        yield (
            f"provider.custom_tags and detcloud:tags are {len(keys)} tags: expected at most {most},"
            f" since EC2 takes {EC2_TAGS_MAX} and instances have {OWN_TAGS} of the cluster's"
        )


def zones_in_use(settings: Settings) -> tuple[str, ...]:
    """Return the zones for launching instances: the zones of `network` if set, or `zones`."""
    return tuple(settings.network.subnets) if settings.network else settings.zones
