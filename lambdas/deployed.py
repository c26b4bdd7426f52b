"""The parts of a deployed cluster's functions, as their environment names them.

A function that needs a part makes it at its first use: what it does not need costs it nothing. The
API and its packages are imported by its own function alone.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from control_plane.actors.experiment_suggestions import SUGGESTIONS
from control_plane.dispatch.engine import Engine
from control_plane.state import dynamodb
from control_plane.state.table import Key
from lambdas.aws import LateClient, client
from lambdas.clock import now_ms

if TYPE_CHECKING:
    from control_plane.collection.collector import Collector
    from control_plane.collection.stores import Stores
    from control_plane.suggestions.suggester import Suggester
    from provisioner.reconcile import Reconciler
    from provisioner.sweep import Sweep


# The digest of the cluster configuration that was deployed and is in force.
APPLIED = Key("cluster", "deployed-configuration")


@dataclass(frozen=True)
class Provisioner:
    """What brings and ends instances."""

    reconciler: "Reconciler"
    sweep: "Sweep"


def named(name: str) -> str:
    """A setting of the deployment."""
    return os.environ[f"DETCLOUD_{name}"]


@cache
def engine() -> Engine:
    """The engine on the cluster's table."""
    return Engine(dynamodb.DynamoTable(dynamodb.client(), named("TABLE")), now_ms)


@cache
def stores() -> "Stores":
    """The buckets of objects and of checkpoints."""
    from control_plane.collection.stores import Stores
    from control_plane.config.storage import S3
    from control_plane.objects.s3 import S3Store
    from detcloud.s3 import Bucket, BucketPlace, connected

    # Another store than Amazon's, which trials are told of too.
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    # The buckets are made where the functions are: nobody needs to ask where.
    region = os.environ.get("AWS_REGION")
    place = BucketPlace(named("OBJECTS"), endpoint_url=url, region=region)
    objects = S3Store(Bucket(place, LateClient(lambda: connected(place))), now_ms)
    return Stores(engine(), objects, S3(type="s3", bucket=named("CHECKPOINTS"), endpoint_url=url))


@cache
def collector() -> "Collector":
    """What removes checkpoints."""
    from control_plane.collection.collector import Collector

    return Collector(stores())


@cache
def suggester() -> "Suggester":
    """What asks the models of searches."""
    from control_plane.suggestions.suggester import Suggester

    return Suggester(engine())


@cache
def provisioner() -> Provisioner:
    """What brings instances of EC2."""
    from control_plane.fleet.notices import announcements
    from lambdas.boot import user_data
    from provisioner.clouds.announced import AnnouncedCloud
    from provisioner.clouds.aws import Ec2Clouds
    from provisioner.clouds.aws_template import Ec2Settings, Network
    from provisioner.clouds.provider import CloudProvider, Misconfigured
    from provisioner.demand import EnginePools
    from provisioner.model import ProvisionerSettings
    from provisioner.reconcile import Reconciler
    from provisioner.sweep import Sweep

    network: Mapping[str, Any] = json.loads(named("NETWORK"))

    def completed(settings: Ec2Settings) -> Ec2Settings:
        """With the deployment's own network, where the pool names none."""
        given = settings.network_interface
        own = Network(
            public_ip=given.public_ip,
            subnet_ids=given.subnets or tuple(network["subnets"].values()),
            security_group_id=given.security_group_id or network["security_group"],
        )
        profile = settings.iam_instance_profile_arn or network["instance_profile"]
        return replace(settings, network_interface=own, iam_instance_profile_arn=profile)

    table = engine().table
    clouds = Ec2Clouds(user_data(named("API_URL"), named("CLUSTER")), now_ms, completed=completed)

    def cloud(settings: ProvisionerSettings) -> CloudProvider:
        if settings.kind != "aws":
            raise Misconfigured(f"this cluster has no provider {settings.kind}; it has aws")
        return AnnouncedCloud(clouds.cloud(settings), lambda: announcements(table))

    cluster = named("CLUSTER")
    pools = EnginePools(engine())
    reconciler = Reconciler(table, pools, cloud, cluster, now_ms, SystemRandom())
    return Provisioner(reconciler, Sweep(table, cloud, cluster, now_ms))


def configured() -> None:
    """Makes the deployed configuration true, if it is another than the one in force."""
    row = engine().table.get(APPLIED)
    if row is None or row.body.decode() != named("CONFIG_SHA256"):
        from lambdas.gateway import configuration_applied

        configuration_applied()


def gc_invoked_if_due() -> None:
    """Wakes the function that removes checkpoints, if there is anything for it to do."""
    from control_plane.collection.collector import wanted_of

    if not wanted_of(engine().table):
        return
    _woken("GC_FUNCTION")


def suggest_invoked_if_waited_for() -> None:
    """Wakes the function that suggests, if a search waits for a suggestion."""
    if engine().table.query(SUGGESTIONS, " ", "\x7f", limit=1).rows:
        _woken("SUGGEST_FUNCTION")


def _woken(setting: str) -> None:
    function = named(setting)
    client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=b"{}")
