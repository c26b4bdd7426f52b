"""Pools in other clouds than the place of the cluster: a cloud with functions, or own machines.

A cluster can use another cloud if its settings contain a remote account in that cloud: the
resources that were created there for the cluster. The module `other_pools` in the cloud's folder
opens the remote account. The module is imported when a pool of this type is first used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from lambdas.clouds import CLOUDS

if TYPE_CHECKING:
    from control_plane.agents.identity import IdentityVerifier
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings

# The environment variable with the remote accounts: a JSON object by the name of the cloud. Each
# cloud defines the fields of its remote account.
VARIABLE: Final = "DETCLOUD_OTHER_CLOUDS"
# The advice to a user whose cluster lacks the remote account.
REMOTE_ACCOUNT_REMEDY: Final = (
    "pools of another cloud need its remote account in the settings of the stack: "
    "docs/resource-pools.md, Pools in another cloud"
)


def _refuse_tokens(audience: str) -> str:
    """Raise OSError, on a host whose functions have no identity tokens."""
    raise OSError(f"functions of this cloud have no identity token for {audience}")


@dataclass(frozen=True)
class HostParts:
    """The values and calls of a cluster's host that the providers of instances use."""

    cluster_id: str
    """The id of the cluster, which is also a tag of its instances."""
    api_url: str
    """The URL of the cluster's API, which agents call."""
    clock: Callable[[], int]
    """Returns the time in epoch ms."""
    keep_agent_code: Callable[[], None]
    """Writes the agent's code to the object store, unless it is stored. Raises CloudError."""
    identity_token: Callable[[str], str] = _refuse_tokens
    """Returns a token that proves the identity of this function to an audience. Raises OSError, and
    always does so on a host without such tokens.
    """
    has_own_credentials: bool = False
    """Whether the environment has credentials for other clouds, as on a user's own machine.
    Functions have no such credentials, and use the federation of identities instead.
    """


class OtherCloud(Protocol):
    """The remote account of a cluster: another cloud than the functions', with pools."""

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of instances for a pool with these settings.

        Raises CloudError if the settings are unusable, and KeyError if the remote account lacks a
        field.
        """

    @property
    def identity_verifier(self) -> IdentityVerifier:
        """The verifier of the proofs of identity with which instances in this cloud enroll."""


class OtherClouds:
    """The other clouds of a cluster. Each cloud is opened on first use and then kept.

    The constructor raises ValueError if `text` is not JSON.

    Args:
        text: the value of the environment variable VARIABLE. "" for no other clouds.
        parts: returns the values and calls of the host. Called when a cloud is opened.
    """

    def __init__(self, text: str, parts: Callable[[], HostParts]) -> None:
        self._remotes: Mapping[str, Mapping[str, Any]] = json.loads(text or "{}")
        self._parts = parts
        self._opened: dict[str, OtherCloud] = {}

    @property
    def types(self) -> frozenset[str]:
        """The provider types of pools in other clouds: the known clouds with a remote account."""
        return frozenset(self._remotes) & frozenset(CLOUDS)

    def find_cloud(self, provider_type: str) -> OtherCloud | None:
        """Return the other cloud for a provider type, opened on first use.

        No request is sent. Return None if the type is not in `types`. Opening a cloud raises the
        errors of `parts`, such as KeyError for a missing setting of the host.
        """
        if provider_type not in self.types:
            return None
        if provider_type not in self._opened:
            module: Any = import_module(f"lambdas.{provider_type}.other_pools")
            remote = self._remotes[provider_type]
            self._opened[provider_type] = module.open_pools(self._parts(), remote)
        return self._opened[provider_type]
