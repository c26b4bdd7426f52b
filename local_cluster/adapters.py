"""The adapters of an embedded cluster, which runs on a single machine.

All data is in a folder. Instances are processes of the machine, or machines in remote accounts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from control_plane.access.tunnel_relay import RelaySource, TunnelRelay
from control_plane.agents.long_polls import LongPollRegistry
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.config.server_clouds import ServerClouds
from control_plane.local.state_places import OpenTable
from control_plane.objects.bucket_store import BucketObjectStore
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from lambdas.agent_code_keeper import AgentCodeKeeper
from lambdas.cloud_pools import CloudPoolAdapters
from lambdas.other_clouds import HostParts
from lambdas.server_accounts import describe_accounts, open_issuer
from local_cluster.clouds import CLOUD_REMEDY, load_clouds
from local_cluster.cluster_id import load_or_create_cluster_id
from local_cluster.home import HomeFolder
from local_cluster.instances import InstanceLauncher
from local_cluster.object_bucket import open_bucket
from local_cluster.tunnel_relay import GroupRelay
from provisioner.clouds.provider import CloudProvider
from provisioner.model import ProvisionerSettings

if TYPE_CHECKING:
    from control_plane.agents.storage_credentials import CredentialIssuer
    from control_plane.fleet.notices import InstanceNotice
    from control_plane.objects.store import ObjectStore

CHECKPOINT_REMEDY: Final = (
    "set checkpoint_storage of the cluster configuration to a bucket, or to a folder that all "
    "machines share"
)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True)
class PublicPlace:
    """The address of a server that other machines call."""

    url: str
    """The address of the API for links in notifications, or ""."""
    hosts: frozenset[str]
    """The hosts that requests may address, without ports."""


class LocalAdapters(CloudPoolAdapters):
    """The adapters of an embedded cluster: files in a folder, and processes as instances.

    With remote accounts, pools can also have machines in clouds.

    Args:
        home: the folder with the cluster's data.
        url: the URL of the server, which the agents of instances call. "" if no instance will be
            launched.
        relay: the relay of tunnels in this process, or None.
        place: the public address and the hosts of a server that other machines call. None for a
            server that only this machine calls.
    """

    own_type = "local"
    own_verifier = None
    provider_remedy = CLOUD_REMEDY

    def __init__(
        self,
        home: HomeFolder,
        url: str = "",
        relay: TunnelRelay | None = None,
        place: PublicPlace | None = None,
    ) -> None:
        self._home = home
        self._url = url
        self._relay = relay
        self._place = place or PublicPlace("", LOOPBACK)

    @cached_property
    def clouds(self) -> ServerClouds | None:
        """The stored remote accounts, if any. Raises CloudsRefused for an invalid record."""
        return load_clouds(self._home)

    @property
    def api_hosts(self) -> frozenset[str]:
        """The hosts of the server, and the host of the address for machines in clouds, if any."""
        host = urlsplit(self.cluster_url).hostname
        return self._place.hosts | ({host} if host else set())

    @property
    def cluster_url(self) -> str:
        """The address for machines in clouds, or else the public address of the server.

        "" if only this machine calls the server.
        """
        return self._place.url if self.clouds is None else self.clouds.url

    @cached_property
    def remote_accounts(self) -> str:
        """The remote accounts as JSON. "" for none. Raises TableError."""
        return "" if self.clouds is None else describe_accounts(self.clouds, self.cluster_id)

    @property
    def distant_types(self) -> frozenset[str]:
        """The clouds of the remote accounts. Machines there reach no folder of this machine."""
        return frozenset() if self.clouds is None else frozenset(self.clouds.clouds)

    @cached_property
    def host_parts(self) -> HostParts:
        """The id, URL, clock and calls of this host that the providers of instances use.

        The credentials for the clouds are those of the server's environment.
        """
        keeper = AgentCodeKeeper(lambda: self.object_store)
        return HostParts(
            self.cluster_id, self.cluster_url, self.clock, keeper.keep, has_own_credentials=True
        )

    def instance_notices(self) -> "Iterable[InstanceNotice]":
        """Return the notices that agents in clouds reported. Empty without remote accounts.

        Raises TableError, possibly during the iteration.
        """
        return () if self.clouds is None else super().instance_notices()

    def is_api_down(self) -> bool:
        """Return whether the API fails at the public address. False without remote accounts."""
        return self.clouds is not None and super().is_api_down()

    @cached_property
    def credential_issuer(self) -> "CredentialIssuer | None":
        """The issuer of credentials for trials' checkpoints, from the environment's credentials.

        None if the remote accounts name neither a role nor a service account for storage. No
        request is sent yet.
        """
        return None if self.clouds is None else open_issuer(self.clouds)

    @property
    def relay(self) -> RelaySource | None:
        """The relay of tunnels in this process or in another server of the state, if any."""
        if self._relay is None or not self._home.state.is_shareable:
            return self._relay
        return GroupRelay(self.state_table, self._relay, self._place.url or self._url)

    @cached_property
    def state_table(self) -> OpenTable:
        """The state table of the data folder, created on first use. Raises TableError."""
        return self._home.state.open()

    @cached_property
    def long_polls(self) -> LongPollRegistry:
        """The registry of agents' requests that wait for a change."""
        return LongPollRegistry()

    @cached_property
    def cluster_id(self) -> str:
        """The id of the cluster. The first access to a new state table stores a random id.

        Raises TableError.
        """
        return load_or_create_cluster_id(self.state_table)

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        """The signer of URLs that the API serves.

        The key is in `signing.key`, which is created if missing or blank. Raises HomeInvalid for an
        invalid key, and OSError.
        """
        return HmacUrlSigner(self._home.load_or_create_secret("signing.key").encode())

    @cached_property
    def object_store(self) -> "ObjectStore":
        """The store of model code, logs and metrics: the folder `objects`, or a bucket.

        No request is sent yet. Raises HomeInvalid for an invalid `signing.key` or a damaged record
        of the bucket, and OSError.
        """
        bucket = open_bucket(self._home)
        if bucket is None:
            return DirectoryObjectStore(self._home.objects, self.url_signer)
        return BucketObjectStore(bucket.bucket, self.clock)

    @property
    def checkpoint_remedy(self) -> str:
        """The advice for experiments without a checkpoint store; "" if the default store works.

        Several servers with a bucket share no folder for checkpoints.
        """
        is_shared = self._home.bucket[0] is not None and self._home.state.is_shareable
        return CHECKPOINT_REMEDY if is_shared else ""

    @cached_property
    def checkpoint_storage(self) -> Directory:
        """The default checkpoint store: the folder `checkpoints`."""
        return Directory(type="directory", container_path=str(self._home.checkpoints))

    def own_cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider that runs a pool's instances as processes of this machine."""
        return self.launcher.provider(settings.section)

    @cached_property
    def launcher(self) -> InstanceLauncher:
        """The creator of providers that run instances as agent processes on this machine."""
        return InstanceLauncher(self._home, self.state_table, self._url, self.clock)
