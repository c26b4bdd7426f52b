"""The remote account on Google Cloud of a cluster on own machines: a project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from provisioner.clouds.gcp.instance_names import InstanceNames, describe_remote

if TYPE_CHECKING:
    from control_plane.config.server_clouds import GoogleCloud
    from control_plane.gcp.storage_credentials import DownscopedTokenIssuer


def describe_account(name: str, cloud: GoogleCloud, cluster_id: str) -> Mapping[str, Any]:
    """Return the description of the project for `lambdas.gcp.other_pools`.

    Args:
        name: the name of the cluster in the clouds.
        cloud: the project in the file of the server.
        cluster_id: the id of the cluster, which is also the label of its instances.
    """
    # Only the federation of identities needs the number of the project.
    names = InstanceNames(name, cloud.project, "", cloud.region, cluster_id)
    regions = dict.fromkeys((cloud.region, *cloud.regions))
    return describe_remote(names, regions, has_launcher=cloud.principal is not None)


def open_issuer(cloud: GoogleCloud) -> DownscopedTokenIssuer | None:
    """Return the issuer of tokens for trials' checkpoints, from the environment's credentials.

    Return None if the project names no service account for storage. No request is sent yet.
    """
    if not cloud.storage_account:
        return None
    from control_plane.gcp.storage_credentials import DownscopedTokenIssuer

    return DownscopedTokenIssuer(cloud.storage_account)
