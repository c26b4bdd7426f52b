"""One machine as the host of a cluster: everything is in a folder, and instances are processes."""

import uuid
from functools import cached_property

from control_plane.agents.long_polls import LongPollRegistry
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable
from lambdas.adapters import Adapters
from lambdas.local.home import HomeFolder
from lambdas.local.instances import InstanceLauncher
from provisioner.clouds.provider import CloudProvider
from provisioner.model import ProvisionerSettings

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

_CLUSTER_ID = Key("cluster", "id")


def read_cluster_id(table: StateTable) -> str | None:
    """Read the id of the cluster whose state the table is; None before its first server."""
    row = table.get(_CLUSTER_ID)
    return None if row is None else row.body.decode()


class LocalAdapters(Adapters):
    """The files of `home`, and processes whose agents call the server at `url`."""

    api_hosts = LOOPBACK
    provider_types = frozenset({"local"})

    def __init__(self, home: HomeFolder, url: str = "") -> None:
        self._home = home
        self._url = url

    @cached_property
    def state_table(self) -> SqliteTable:
        return SqliteTable(self._home.state)

    @cached_property
    def long_polls(self) -> LongPollRegistry:
        return LongPollRegistry()

    @cached_property
    def cluster_id(self) -> str:
        """An id that is drawn by the first server on the folder."""
        known = read_cluster_id(self.state_table)
        if known is not None:
            return known
        cluster_id = str(uuid.uuid4())
        self.state_table.commit((Put(_CLUSTER_ID, 1, cluster_id.encode(), Expect.ABSENT),))
        return cluster_id

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        return HmacUrlSigner(self._home.load_or_create_secret("signing.key").encode())

    @cached_property
    def object_store(self) -> DirectoryObjectStore:
        return DirectoryObjectStore(self._home.objects, self.url_signer)

    @property
    def checkpoint_storage(self) -> Directory:
        return Directory(type="directory", container_path=str(self._home.checkpoints))

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the processes of this machine as a pool's provider."""
        self._check_provider_type(settings)
        return self.launcher.provider(settings.section)

    @cached_property
    def launcher(self) -> InstanceLauncher:
        """The launcher of instances' agents."""
        return InstanceLauncher(self._home, self.state_table, self._url, self.clock)
