"""The remote accounts of a cluster on own machines, in the form that OtherClouds opens.

The module `server_account` in a cloud's folder describes the accounts of this cloud.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from control_plane.agents.storage_credentials import CredentialIssuer
    from control_plane.config.server_clouds import ServerClouds


def describe_accounts(clouds: ServerClouds, cluster_id: str) -> str:
    """Return the JSON from which OtherClouds opens the remote accounts.

    Args:
        clouds: the file of the server.
        cluster_id: the id of the cluster, which is also the tag of its instances.
    """
    return json.dumps(
        {
            kind: _account_module(kind).describe_account(clouds.name, cloud, cluster_id)
            for kind, cloud in clouds.clouds.items()
        }
    )


def open_issuer(clouds: ServerClouds) -> CredentialIssuer | None:
    """Return the issuer of credentials for trials' checkpoints.

    Return None if no account names a role or a service account for storage. No request is sent yet.
    """
    issuers = (_account_module(kind).open_issuer(cloud) for kind, cloud in clouds.clouds.items())
    return next((issuer for issuer in issuers if issuer is not None), None)


def _account_module(kind: str) -> Any:
    """Import and return the module `server_account` of a cloud."""
    return import_module(f"lambdas.{kind}.server_account")
