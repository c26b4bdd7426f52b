"""Reads rules of a company from AWS: Allowed AMIs, VPC Block Public Access, a team's own bucket."""

from collections.abc import Collection
from typing import Any

import botocore.exceptions as sdk

from control_plane.checkpoint_stores.types.s3 import S3
from control_plane.config.pools import ClusterConfig
from infra.aws.account_facts import Clients, ImageRules, OwnBucket, PublicAccess
from infra.aws.sdk_reads import error_code
from infra.aws.settings import Settings
from provisioner.clouds.aws.ec2_api import read_pages
from provisioner.clouds.provider import CLUSTER_TAG

IMAGE_NEEDS = "ec2:GetAllowedImagesSettings and ec2:DescribeImages"
ACCESS_NEEDS = (
    "ec2:DescribeVpcBlockPublicAccessOptions, ec2:DescribeVpcBlockPublicAccessExclusions and "
    "ec2:DescribeSubnets"
)
BUCKET_NEEDS = "s3:GetBucketVersioning and s3:GetLifecycleConfiguration"
# Exclusions in other states are being created or deleted, or are deleted.
_EXCLUDED = frozenset({"create-complete", "update-in-progress", "update-complete", "update-failed"})


def read_image_rules(clients: Clients, images: Collection[str]) -> ImageRules:
    """Return the account's Allowed AMIs, and which of `images` the criteria refuse.

    `images` are ids; other names are ignored. Raise the SDK's errors.
    """
    ec2 = clients("ec2")
    state = str(ec2.get_allowed_images_settings()["State"])
    if state == "disabled":
        return ImageRules(state)
    ids = sorted(name for name in images if name.startswith("ami-"))
    return ImageRules(state, frozenset(name for name in ids if not _is_allowed(ec2, name)))


def _is_allowed(ec2: Any, image: str) -> bool:
    """Return whether the account sees an image that the criteria allow.

    Raise the SDK's errors, except that of a missing image.
    """
    try:
        described = ec2.describe_images(ImageIds=[image])["Images"]
    except sdk.ClientError as error:
        if error_code(error).startswith("InvalidAMIID"):
            return False
        raise
    return bool(described) and bool(described[0].get("ImageAllowed", True))


def read_public_access(settings: Settings, clients: Clients) -> PublicAccess:
    """Return the account's VPC Block Public Access, the exclusions and the instances' VPC.

    Exclusions and VPC are read only if the setting is not off. Raise the SDK's errors.
    """
    ec2 = clients("ec2")
    options = ec2.describe_vpc_block_public_access_options()["VpcBlockPublicAccessOptions"]
    mode = str(options.get("InternetGatewayBlockMode", "off"))
    if mode == "off":
        return PublicAccess(mode)
    pages = read_pages(ec2.describe_vpc_block_public_access_exclusions)
    excluded = frozenset(
        str(item["ResourceArn"]).rpartition("/")[2]
        for page in pages
        for item in page["VpcBlockPublicAccessExclusions"]
        if item["State"] in _EXCLUDED
    )
    allowed = options.get("ExclusionsAllowed", "allowed") == "allowed"
    return PublicAccess(mode, excluded, allowed, _find_vpc(settings, ec2))


def _find_vpc(settings: Settings, ec2: Any) -> str:
    """Return the id of the instances' VPC, or "" before the stack's first deployment."""
    if settings.network is not None:
        asked: dict[str, Any] = {"SubnetIds": sorted(settings.network.subnets.values())}
    else:
        tag = {"Name": f"tag:{CLUSTER_TAG}", "Values": [settings.names.cluster]}
        asked = {"Filters": [tag]}
    subnets = ec2.describe_subnets(**asked)["Subnets"]
    return str(subnets[0]["VpcId"]) if subnets else ""


def find_own_bucket(cluster: ClusterConfig) -> str:
    """Return the bucket of Amazon's that the cluster configuration names for checkpoints, or ""."""
    storage = cluster.checkpoint_storage
    return storage.bucket if isinstance(storage, S3) and not storage.endpoint_url else ""


def read_own_bucket(clients: Clients, bucket: str) -> OwnBucket:
    """Return whether a bucket keeps versions and deletes old versions. Raise the SDK's errors."""
    s3 = clients("s3")
    if s3.get_bucket_versioning(Bucket=bucket).get("Status") != "Enabled":
        return OwnBucket(bucket, keeps_versions=False)
    try:
        rules = s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    except sdk.ClientError as error:
        if error_code(error) != "NoSuchLifecycleConfiguration":
            raise
        rules = []
    deletes = any(
        rule["Status"] == "Enabled" and "NoncurrentVersionExpiration" in rule for rule in rules
    )
    return OwnBucket(bucket, keeps_versions=True, deletes_versions=deletes)
