"""Adapters of a cluster with the API in the process of a test."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.agents.identity import IdentityVerifier
from control_plane.agents.long_polls import LongPollRegistry
from control_plane.agents.storage_credentials import CredentialIssuer
from control_plane.agents.trial_grants import TrialGrants
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.config.storage import CheckpointStorage
from control_plane.engine.engine import Engine
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.state.table import StateTable
from lambdas.adapters import Adapters
from provisioner.clouds.provider import CloudProvider
from provisioner.model import ProvisionerSettings
from tests.engine_timing import UNHURRIED
from tests.unit.api.exchange import HOST
from tests.unit.rows.undeclared_rows import DeclaredRowsTable

NOW_MS = 1_800_000_000_000
RELAY = TunnelRelay("http://127.0.0.1:9", "", b"r" * 32)


@dataclass
class StoppedClock:
    """A clock that returns the same time until a test changes `ms`."""

    ms: int = NOW_MS

    def __call__(self) -> int:
        return self.ms


class ApiAdapters(Adapters):
    """Adapters with a table and stores in a folder, and a clock that only the test moves.

    The table refuses rows without a declaration. No provider launches instances.

    Args:
        root: the folder of table, objects and checkpoints.
        providers: the provider types that the API accepts for pools.
        verifiers: the verifier of identity proofs for each provider type.
        credential_issuer: the issuer of credentials for the storage of trials.
        checkpoints: the default checkpoint store. None for a folder below `root`.
        trial_grants: the issuer of access to data and image registries.
        table: the state table. None for a new table below `root`.
    """

    cluster_id = "cluster-1"
    api_hosts = frozenset({HOST, "127.0.0.1", "[::1]"})
    timing = UNHURRIED
    relay = RELAY

    def __init__(
        self,
        root: Path,
        providers: frozenset[str] = frozenset(),
        verifiers: Mapping[str, IdentityVerifier] = MappingProxyType({}),
        credential_issuer: CredentialIssuer | None = None,
        checkpoints: CheckpointStorage | None = None,
        trial_grants: TrialGrants | None = None,
        table: StateTable | None = None,
    ) -> None:
        self._root = root
        self._providers = providers
        self._verifiers = verifiers
        self._credential_issuer = credential_issuer
        self._checkpoints = checkpoints
        self._trial_grants = trial_grants
        self._table = table
        self.stopped_clock = StoppedClock()

    @cached_property
    def provider_types(self) -> frozenset[str]:
        return self._providers

    @cached_property
    def state_table(self) -> StateTable:
        if self._table is not None:
            return self._table
        self._root.mkdir(parents=True, exist_ok=True)
        return DeclaredRowsTable(self._root / "state.db", synchronous="NORMAL")

    @cached_property
    def object_store(self) -> DirectoryObjectStore:
        return DirectoryObjectStore(self._root / "objects", self.url_signer)

    @cached_property
    def checkpoint_storage(self) -> CheckpointStorage:
        folder = str(self._root / "checkpoints")
        return self._checkpoints or Directory(type="directory", container_path=folder)

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        return HmacUrlSigner(b"s" * 32)

    @cached_property
    def long_polls(self) -> LongPollRegistry:
        return LongPollRegistry()

    @property
    def credential_issuer(self) -> CredentialIssuer | None:
        return self._credential_issuer

    @property
    def trial_grants(self) -> TrialGrants | None:
        return self._trial_grants

    def find_verifier(self, provider_type: str) -> IdentityVerifier | None:
        return self._verifiers.get(provider_type)

    def clock(self) -> int:
        return self.stopped_clock()

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        engine.on_commit = self.long_polls.wake_address
        return engine

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        raise AssertionError("no instances are launched in tests of the API")
