"""The adapters of a cluster to its host: one class for each place that a cluster can run at.

A host's class is in the folder of its name: `lambdas.aws.adapters`, `lambdas.local.adapters` for
one machine, `lambdas.simulation.adapters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from control_plane.engine.engine import Engine, EngineTiming
from control_plane.state.table import StateTable
from lambdas.clock import now_ms

if TYPE_CHECKING:
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.agents.long_polls import LongPollRegistry
    from control_plane.agents.storage_credentials import CredentialIssuer
    from control_plane.agents.trial_grants import TrialGrants
    from control_plane.config.storage import CheckpointStorage
    from control_plane.fleet.notices import InstanceNotice
    from control_plane.objects.signing import HmacUrlSigner
    from control_plane.objects.store import ObjectStore
    from control_plane.suggestions.suggester import SuggestionModel
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings


class Adapters(ABC):
    """The parts of a cluster that depend on its host; only this class chooses them.

    A subclass makes each part at its first use, by a cached property, and one for functions imports
    there what the part needs: a function pays for the parts it uses.

    Attributes:
        provider_remedy: what to do where a pool's type is not among `provider_types`.
        suggestion_model: what suggests points to Bayesian searches; None: Optuna's.
        checks_endpoints: the server calls those checkpoint stores alone that the cluster's
            configuration names, for it stands in a network that its users do not.
        has_suggest_function: suggestions are made by another process than the API's.
    """

    provider_remedy: str = ""
    suggestion_model: SuggestionModel | None = None
    checks_endpoints: bool = False
    has_suggest_function: bool = False

    @cached_property
    def provider_types(self) -> frozenset[str]:
        """The types of provider that pools may have."""
        return frozenset()

    @property
    @abstractmethod
    def cluster_id(self) -> str:
        """The cluster's name for itself, which its instances are tagged with."""

    @property
    @abstractmethod
    def api_hosts(self) -> frozenset[str]:
        """The names that requests may address the API by, without ports."""

    @property
    @abstractmethod
    def state_table(self) -> StateTable:
        """The table of the actors."""

    @property
    @abstractmethod
    def object_store(self) -> ObjectStore:
        """The store of model code, logs and metrics."""

    @property
    @abstractmethod
    def checkpoint_storage(self) -> CheckpointStorage:
        """The store of checkpoints whose configuration names none, of a type that is usable."""

    @property
    @abstractmethod
    def url_signer(self) -> HmacUrlSigner:
        """The keys of the API's own signed URLs."""

    def find_verifier(self, provider_type: str) -> IdentityVerifier | None:
        """Return the verifier of proofs of instances whose pool's provider is of a type; None where
        they prove nothing.
        """
        return None

    @property
    def credential_issuer(self) -> CredentialIssuer | None:
        """The issuer of keys for a trial's storage; None where trials bring their own."""
        return None

    @property
    def trial_grants(self) -> TrialGrants | None:
        """The giver of access to data and registries; None where trials bring their own."""
        return None

    @property
    def long_polls(self) -> LongPollRegistry | None:
        """The calls of agents that are held; None on a host where waiting is paid for."""
        return None

    @property
    def configuration_sha256(self) -> str:
        """The digest of the cluster configuration that was deployed, "" for none."""
        return ""

    @property
    def timing(self) -> EngineTiming:
        """A clock that only goes forward, and the pause after a conflict."""
        return EngineTiming()

    @property
    def random(self) -> Random:
        """The source of the jitter of back-offs."""
        return SystemRandom()

    def clock(self) -> int:
        """Return the time as epoch ms."""
        return now_ms()

    def make_engine(self) -> Engine:
        """Make an engine on the state table."""
        return Engine(self.state_table, self.clock, self.timing)

    @abstractmethod
    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of a pool with such settings; begins with `_check_provider_type`.

        Raises CloudError: the settings cannot be used.
        """

    def _check_provider_type(self, settings: ProvisionerSettings) -> None:
        """Raise ConfigurationError where the type of the pool's provider is not this host's."""
        from provisioner.clouds.provider import ConfigurationError

        types = self.provider_types
        if settings.kind not in types:
            known = ", ".join(sorted(types))
            text = f"this cluster has no provider {settings.kind}; it has {known}"
            raise ConfigurationError("; ".join(filter(None, (text, self.provider_remedy))))

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return what was announced of instances; nothing where their cloud's list says it."""
        return ()

    def is_api_down(self) -> bool:
        """Return whether agents get no answer of the API, which the process that asks is not."""
        return False

    def invoke_function(self, name: str) -> None:  # noqa: B027
        """Start a function of the cluster, and wait for nothing. Where the work of functions is
        done by threads, which look for it by themselves, nothing is to be done.
        """
