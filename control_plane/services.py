"""The dependencies of use cases, queries and the API, which the builder of each process fills
in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from control_plane.checkpoint_stores.endpoints import EndpointRule, allow_any
from control_plane.query_limits import DEFAULT_LIMITS, QueryLimits

# Modules that only some requests use are imported when first needed (bench/gcp_cold_starts.py).
if TYPE_CHECKING:
    from control_plane.access.tokens import TokenStore
    from control_plane.access.tunnel_relay import RelaySource
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.agents.long_polls import LongPollRegistry
    from control_plane.agents.service import AgentService
    from control_plane.agents.storage_credentials import CredentialIssuer
    from control_plane.agents.trial_grants import TrialGrants
    from control_plane.checkpoint_stores.manifests import ManifestCache
    from control_plane.config.storage import CheckpointStorage
    from control_plane.engine.engine import Engine
    from control_plane.engine.experiment_reader import ExperimentReader
    from control_plane.objects.code_archives import CodeArchives
    from control_plane.objects.signing import HmacUrlSigner
    from control_plane.objects.store import ObjectStore
    from control_plane.state.table import StateTable

Cache = TypeVar("Cache")


@dataclass(frozen=True)
class Services:
    """The dependencies of all requests. Caches are created on first use."""

    tokens: TokenStore
    """Finds the principal of a token."""
    objects: ObjectStore
    """The object store with model code, logs and metrics."""
    signer: HmacUrlSigner
    """Signs and verifies the URLs that the API itself serves."""
    now_ms: Callable[[], int]
    """Returns the time in epoch ms."""
    hosts: frozenset[str]
    """The host names, without ports, that requests may address. A browser that was lured to another
    name with the API's address is refused.
    """
    engine: Engine
    """The engine that advances the actors."""
    make_experiments: Callable[[], ExperimentReader]
    """Creates the reader of trials and experiments."""
    make_agents: Callable[[], AgentService]
    """Creates the service that talks to agents."""
    cluster_id: str
    """The name of the cluster, and of the first incarnation."""
    version: str
    """The version of detcloud that runs here."""
    checkpoints: CheckpointStorage
    """The checkpoint store of experiments whose configuration names no store."""
    checkpoint_remedy: str = ""
    """The advice for these experiments if the store `checkpoints` is not usable, or ""."""
    long_polls: LongPollRegistry | None = None
    """The registry of waiting long polls. None on a host where waiting is expensive."""
    providers: frozenset[str] = frozenset()
    """The types of providers that can launch instances: values of a pool's `provider.type`."""
    distant_providers: frozenset[str] = frozenset()
    """The types of providers for instances without access to the store `checkpoints`."""
    provider_remedy: str = ""
    """The advice for a pool whose provider type is not in `providers`."""
    suggests: bool = False
    """Whether a separate process computes suggestions. Otherwise this process must have the
    packages for suggestions.
    """
    exports_spans: bool = False
    """Whether a tick exports the spans of traced runs to a collector."""
    endpoints: EndpointRule = allow_any
    """Decides which of the users' checkpoint stores the cluster may call."""
    find_verifier: Callable[[str], IdentityVerifier | None] = lambda provider_type: None
    """Returns the verifier of instance identities by provider type. None if instances of that
    provider cannot prove an identity.
    """
    credential_issuer: CredentialIssuer | None = None
    """Issues credentials for the storage of trials. None if trials bring their own credentials."""
    trial_grants: TrialGrants | None = None
    """Grants trials access to data and registries. None if the cluster grants no access."""
    relay: RelaySource | None = None
    """The relay of tunnels. None if the host has no relay, so that no tunnel can be opened."""
    relay_remedy: str = ""
    """The advice for a cluster without a relay, or "" for none."""
    has_mail_service: bool = False
    """Whether the host sends mails of webhooks without a mail server."""
    limits: QueryLimits = DEFAULT_LIMITS
    """The limits on the work of a query."""
    _caches: dict[type, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def table(self) -> StateTable:
        """The state table of the engine."""
        return self.engine.table

    @cached_property
    def experiments(self) -> ExperimentReader:
        """The reader of trials and experiments, created on first use."""
        return self.make_experiments()

    @cached_property
    def agents(self) -> AgentService:
        """The service that talks to agents, created on first use."""
        return self.make_agents()

    def cache_of(self, kind: type[Cache]) -> Cache:
        """Return the only cache of a class, created without arguments on first use.

        Queries define the classes of their caches.
        """
        found = self._caches.get(kind)
        # If two threads create a cache at once, both use the first.
        cache: Cache = self._caches.setdefault(kind, kind()) if found is None else found
        return cache

    @cached_property
    def manifests(self) -> ManifestCache:
        """The cache of the checkpoint manifests that were read last."""
        from control_plane.checkpoint_stores.manifests import ManifestCache

        return ManifestCache()

    @cached_property
    def code_archives(self) -> CodeArchives:
        """The cache of the model code archives that were read last."""
        from control_plane.objects.code_archives import CodeArchives

        return CodeArchives(self.objects)

    @cached_property
    def incarnation(self) -> str:
        """The name of the state's incarnation, read once: every process ends before the state is
        restored.
        """
        from control_plane.restoration.incarnation import read_incarnation

        return read_incarnation(self.table, self.cluster_id)
