"""The adapters of hosts that are clouds. A pool is in the host's own cloud or in another cloud."""

from __future__ import annotations

import os
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Final

from lambdas.cloud_pools import CloudPoolAdapters
from lambdas.other_clouds import REMOTE_ACCOUNT_REMEDY, VARIABLE

if TYPE_CHECKING:
    from control_plane.access.tokens import StaticTokens
    from control_plane.agents.identity import IdentityVerifier

# The name of the user who deployed the cluster. The first token belongs to this user.
ADMINISTRATOR = "administrator"

# The environment variable with which the stack lets the function `checkpoint_gc` purge versions.
PURGE_VARIABLE: Final = {"DETCLOUD_PURGE_VERSIONS": "1"}

RELAY_REMEDY: Final = (
    "its stack was deployed without one: set detcloud:relay to true and deploy, if the cluster's "
    "network may have a public address"
)


def read_setting(name: str) -> str:
    """Return the value of the environment variable DETCLOUD_`name`, which the stack sets.

    Raises KeyError if the variable is not set.
    """
    return os.environ[f"DETCLOUD_{name}"]


class DeployedAdapters(CloudPoolAdapters):
    """The common parts of all hosts that are clouds.

    Everything that uses the other clouds raises ValueError if the environment variable
    DETCLOUD_OTHER_CLOUDS is not JSON.
    """

    provider_remedy = REMOTE_ACCOUNT_REMEDY
    checks_endpoints = True
    has_suggest_function = True

    @cached_property
    def purges_versions(self) -> bool:
        """Whether the stack set DETCLOUD_PURGE_VERSIONS, only for the function `checkpoint_gc`."""
        return PURGE_VARIABLE.items() <= os.environ.items()

    def administrator_tokens(self) -> StaticTokens:
        """Return the token of the user who deployed the cluster, with the role of an admin.

        DETCLOUD_ADMIN_SHA256 contains only the digest of the token, which suffices to check the
        token. Raises KeyError if the variable is not set.
        """
        from control_plane.access.principals import Principal, Role
        from control_plane.access.tokens import StaticTokens

        return StaticTokens({read_setting("ADMIN_SHA256"): Principal(ADMINISTRATOR, Role.ADMIN)})

    @property
    def runbook_url(self) -> str:
        """The URL of the team's copy of the runbook, from DETCLOUD_RUNBOOK_URL; "" if unset."""
        return os.environ.get("DETCLOUD_RUNBOOK_URL", "")

    @property
    def cluster_url(self) -> str:
        """The URL of the API, from DETCLOUD_API_URL. Raises KeyError if unset."""
        return read_setting("API_URL")

    @property
    def remote_accounts(self) -> str:
        """The remote accounts by the name of the cloud, from DETCLOUD_OTHER_CLOUDS; "" if unset."""
        return os.environ.get(VARIABLE, "")

    @property
    @abstractmethod
    def own_verifier(self) -> IdentityVerifier:
        """The verifier of identity proofs for instances in the cloud of the functions."""
