"""The parts that use cases, queries and the API work with, filled in where a process starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from control_plane.checkpoint_stores.endpoints import EndpointRule, allow_any

# What only some requests use is imported by the first of them (bench/gcp_cold_starts.py).
if TYPE_CHECKING:
    from control_plane.access.tokens import TokenStore
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.agents.long_polls import LongPollRegistry
    from control_plane.agents.service import AgentService
    from control_plane.agents.storage_credentials import CredentialIssuer
    from control_plane.agents.trial_grants import TrialGrants
    from control_plane.checkpoint_stores.manifests import ManifestCache
    from control_plane.config.storage import CheckpointStorage
    from control_plane.engine.engine import Engine
    from control_plane.objects.code_archives import CodeArchives
    from control_plane.objects.signing import HmacUrlSigner
    from control_plane.objects.store import ObjectStore
    from control_plane.queries.job import QueuePlans
    from control_plane.queries.metric_series import MetricSeriesCache
    from control_plane.queries.pool_snapshot import PoolContentsCache
    from control_plane.queries.rungs import RungsCache
    from control_plane.queries.trial_ranking import TrialRankings
    from control_plane.state.table import StateTable


@dataclass(frozen=True)
class Services:
    """All that requests need from outside.

    Attributes:
        tokens: who holds which token.
        objects: where model code and logs lie.
        signer: the keys of our own signed URLs.
        now_ms: the clock, epoch milliseconds.
        hosts: the names a request may address us by, without ports. A browser that was lured to
            another name resolving to our address is refused.
        engine: the actors.
        make_agents: makes the agents' side of them.
        cluster_id: the cluster's name for itself.
        version: what runs here.
        checkpoints: the store of checkpoints whose configuration names none.
        long_polls: where calls are held, on a host where waiting is cheap.
        providers: where instances can come from; `provider.type` of a pool's configuration.
        provider_remedy: what to do for others.
        endpoints: which checkpoint stores of users the cluster may call.
        credential_issuer: who issues keys for the storage of trials; None where they bring theirs.
        trial_grants: who gives trials access to data and registries; None where nobody does.
        suggests: whether another process asks searches' models; else this one must be able to.
        find_verifier: finds who verifies the proofs of instances, by the type of the provider that
            launched them; None where they can prove nothing.
    """

    tokens: TokenStore
    objects: ObjectStore
    signer: HmacUrlSigner
    now_ms: Callable[[], int]
    hosts: frozenset[str]
    engine: Engine
    make_agents: Callable[[], AgentService]
    cluster_id: str
    version: str
    checkpoints: CheckpointStorage
    long_polls: LongPollRegistry | None = None
    providers: frozenset[str] = frozenset()
    provider_remedy: str = ""
    suggests: bool = False
    endpoints: EndpointRule = allow_any
    find_verifier: Callable[[str], IdentityVerifier | None] = lambda provider_type: None
    credential_issuer: CredentialIssuer | None = None
    trial_grants: TrialGrants | None = None

    @property
    def table(self) -> StateTable:
        return self.engine.table

    @cached_property
    def agents(self) -> AgentService:
        """The agents' side of the actors."""
        return self.make_agents()

    @cached_property
    def metric_series(self) -> MetricSeriesCache:
        """The metrics looked at last."""
        from control_plane.queries.metric_series import MetricSeriesCache

        return MetricSeriesCache()

    @cached_property
    def manifests(self) -> ManifestCache:
        """The files of the checkpoints looked at last."""
        from control_plane.checkpoint_stores.manifests import ManifestCache

        return ManifestCache()

    @cached_property
    def code_archives(self) -> CodeArchives:
        """The files of the model code looked at last."""
        from control_plane.objects.code_archives import CodeArchives

        return CodeArchives(self.objects)

    @cached_property
    def rankings(self) -> TrialRankings:
        """The best trials of the experiments looked at last."""
        from control_plane.queries.trial_ranking import TrialRankings

        return TrialRankings()

    @cached_property
    def rungs(self) -> RungsCache:
        """The rungs of the experiments looked at last."""
        from control_plane.queries.rungs import RungsCache

        return RungsCache()

    @cached_property
    def pool_contents(self) -> PoolContentsCache:
        """The jobs and agents of the pools looked at last."""
        from control_plane.queries.pool_snapshot import PoolContentsCache

        return PoolContentsCache()

    @cached_property
    def queue_plans(self) -> QueuePlans:
        """The plans of the queues looked at last."""
        from control_plane.queries.job import QueuePlans

        return QueuePlans()

    @cached_property
    def incarnation(self) -> str:
        """The name of the cluster's state, which no process of the cluster outlives."""
        from control_plane.restoration.incarnation import read_incarnation

        return read_incarnation(self.table, self.cluster_id)
