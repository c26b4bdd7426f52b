"""The adapters of an embedded cluster, which runs on a single machine.

All data is in a folder, and instances are processes.
"""

import uuid
from dataclasses import dataclass
from functools import cached_property

from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.agents.long_polls import LongPollRegistry
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.local.state_places import OpenTable
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.rows import cluster_rows
from control_plane.state.table import Expect, Key, Put, StateTable
from lambdas.adapters import Adapters
from local_cluster.home import HomeFolder
from local_cluster.instances import InstanceLauncher
from provisioner.clouds.provider import CloudProvider
from provisioner.model import ProvisionerSettings

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

_CLUSTER_ID = Key(*cluster_rows.CLUSTER_ID.only_key)


def read_cluster_id(table: StateTable) -> str | None:
    """Read the id of the cluster that a state table belongs to.

    Return None if no server has used the table yet. Raises TableError.
    """
    row = table.get(_CLUSTER_ID)
    return None if row is None else row.body.decode()


@dataclass(frozen=True)
class PublicPlace:
    """The address of a server that other machines call."""

    url: str
    """The address of the API for links in notifications, or ""."""
    hosts: frozenset[str]
    """The hosts that requests may address, without ports."""


class LocalAdapters(Adapters):
    """The adapters of an embedded cluster: files in a folder, and processes as instances.

    Args:
        home: the folder with the cluster's data.
        url: the URL of the server, which the agents of instances call. "" if no instance will be
            launched.
        relay: the relay of tunnels in this process, or None.
        place: the public address and the hosts of a server that other machines call. None for a
            server that only this machine calls.
    """

    provider_types = frozenset({"local"})

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

    @property
    def api_hosts(self) -> frozenset[str]:
        """The host names, without ports, that requests to the API may address."""
        return self._place.hosts

    @property
    def cluster_url(self) -> str:
        """The URL of the API for links in notifications. "" if only this machine calls the API."""
        return self._place.url

    @property
    def relay(self) -> TunnelRelay | None:
        """The relay of tunnels in this process, if any."""
        return self._relay

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
        known = read_cluster_id(self.state_table)
        if known is not None:
            return known
        cluster_id = str(uuid.uuid4())
        self.state_table.commit((Put(_CLUSTER_ID, 1, cluster_id.encode(), Expect.ABSENT),))
        return cluster_id

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        """The signer of URLs that the API serves.

        The key is in `signing.key`, which is created if missing or blank. Raises HomeInvalid for an
        invalid key, and OSError.
        """
        return HmacUrlSigner(self._home.load_or_create_secret("signing.key").encode())

    @cached_property
    def object_store(self) -> DirectoryObjectStore:
        """The store of model code, logs and metrics in the folder `objects`.

        Raises HomeInvalid for an invalid `signing.key`, and OSError.
        """
        return DirectoryObjectStore(self._home.objects, self.url_signer)

    @property
    def checkpoint_storage(self) -> Directory:
        """The default checkpoint store: the folder `checkpoints`."""
        return Directory(type="directory", container_path=str(self._home.checkpoints))

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider that runs a pool's instances as processes of this machine.

        Raises ConfigurationError if the pool's provider type is not `local`.
        """
        self._check_provider_type(settings)
        return self.launcher.provider(settings.section)

    @cached_property
    def launcher(self) -> InstanceLauncher:
        """The creator of providers that run instances as agent processes on this machine."""
        return InstanceLauncher(self._home, self.state_table, self._url, self.clock)
