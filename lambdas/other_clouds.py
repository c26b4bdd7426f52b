"""The other clouds that pools of a cluster are in, besides the one that its functions run in.

Such a cloud is there only where the stack was given its remote account: what was made there for the
cluster. Its entry is the module `other_pools` in the folder of its name, which is imported when a
pool of its type is first looked at.
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

# By the name of each other cloud its remote account, as JSON: of what fields it is, is the cloud's.
VARIABLE: Final = "DETCLOUD_OTHER_CLOUDS"
# What to do where the cluster has no such remote account.
REMOTE_ACCOUNT_REMEDY: Final = (
    "pools of another cloud need its remote account in the settings of the stack: "
    "docs/resource-pools.md, Pools in another cloud"
)


def _refuse_tokens(audience: str) -> str:
    raise OSError(f"functions of this cloud have no identity token for {audience}")


@dataclass(frozen=True)
class HostParts:
    """The parts of a host that its pools' clouds use. `keep_agent_code` writes the code that
    instances are launched with to the bucket, unless it is there; raises CloudError.
    `identity_token` makes a token that says to an audience which function it is, where the host has
    such; raises OSError.
    """

    cluster_id: str
    api_url: str
    clock: Callable[[], int]
    keep_agent_code: Callable[[], None]
    identity_token: Callable[[str], str] = _refuse_tokens


class OtherCloud(Protocol):
    """The part of a cluster that is in another cloud."""

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of a pool with such settings. Raises CloudError."""

    @property
    def identity_verifier(self) -> IdentityVerifier:
        """The verifier of the proofs of instances there."""


class OtherClouds:
    """The other clouds, by their remote accounts in `text`, the value of VARIABLE. `parts` are
    asked for when the first of them is opened.
    """

    def __init__(self, text: str, parts: Callable[[], HostParts]) -> None:
        self._remotes: Mapping[str, Mapping[str, Any]] = json.loads(text or "{}")
        self._parts = parts
        self._opened: dict[str, OtherCloud] = {}

    @property
    def types(self) -> frozenset[str]:
        """The types of provider of their pools."""
        return frozenset(self._remotes) & frozenset(CLOUDS)

    def find_cloud(self, provider_type: str) -> OtherCloud | None:
        """Return the cloud of a type of provider; None where the cluster has no such remote
        account.
        """
        if provider_type not in self.types:
            return None
        if provider_type not in self._opened:
            module: Any = import_module(f"lambdas.{provider_type}.other_pools")
            remote = self._remotes[provider_type]
            self._opened[provider_type] = module.open_pools(self._parts(), remote)
        return self._opened[provider_type]
