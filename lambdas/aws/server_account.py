"""The remote account on AWS of a cluster on own machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lambdas.lazy_client import LazyClient
from provisioner.clouds.aws.instance_names import InstanceNames, describe_remote

if TYPE_CHECKING:
    from control_plane.aws.storage_credentials import StsCredentialIssuer
    from control_plane.config.server_clouds import AwsCloud


def describe_account(name: str, cloud: AwsCloud, cluster_id: str) -> Mapping[str, Any]:
    """Return the description of the account for `lambdas.aws.other_pools`.

    Args:
        name: the name of the cluster in the clouds.
        cloud: the account in the file of the server.
        cluster_id: the id of the cluster, which is also the tag of its instances.
    """
    names = InstanceNames(name, cloud.account, cloud.region, cluster_id=cluster_id)
    return describe_remote(
        names, cloud.subnets, cloud.security_group, has_launcher=cloud.principal is not None
    )


def open_issuer(cloud: AwsCloud) -> StsCredentialIssuer | None:
    """Return the issuer of keys for trials' checkpoints, from the environment's credentials.

    Return None if the account names no role for storage. No request is sent yet.
    """
    if not cloud.storage_role:
        return None
    from control_plane.aws.storage_credentials import StsCredentialIssuer
    from detcloud.shared.aws import new_session

    client = LazyClient(lambda: new_session().create_client("sts", cloud.region))
    return StsCredentialIssuer(client, cloud.storage_role)
