"""The base class of a host's adapters, which are the parts of a cluster that depend on the host.

Each host has a subclass in the folder with the host's name: `lambdas.aws.adapters`,
`lambdas.gcp.adapters`, `local_cluster.adapters` (one machine) and `simulator.hosts.adapters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from control_plane.engine.engine import Engine
from control_plane.engine.engine_timing import EngineTiming
from control_plane.state.table import StateTable
from lambdas.clock import now_ms

if TYPE_CHECKING:
    from control_plane.access.tunnel_relay import RelaySource
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.agents.long_polls import LongPollRegistry
    from control_plane.agents.storage_credentials import CredentialIssuer
    from control_plane.agents.trial_grants import TrialGrants
    from control_plane.alarms.notifications import Notifier
    from control_plane.config.storage import CheckpointStorage
    from control_plane.fleet.notices import InstanceNotice
    from control_plane.objects.signing import HmacUrlSigner
    from control_plane.objects.store import ObjectStore
    from control_plane.suggestions.suggester import SuggestionModel
    from control_plane.webhooks.mail import MailService
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings


class Adapters(ABC):
    """The parts of a cluster that depend on the cluster's host: table, stores, clock and clouds.

    A subclass creates each part on first use, in a cached property. On a host with functions, the
    property also imports the modules of the part, so that a function loads only the parts it uses.
    """

    provider_remedy: str = ""
    """The advice for a pool whose provider type is not in `provider_types`; "" for no advice."""
    relay_remedy: str = ""
    """The advice for a cluster without a relay; "" for no advice."""
    suggestion_model: SuggestionModel | None = None
    """The model that suggests points to Bayesian searches. None for Optuna's model."""
    checks_endpoints: bool = False
    """Whether the server calls only the checkpoint stores that the cluster configuration allows.

    A server in a cloud can reach hosts of its network that users cannot reach.
    """
    has_suggest_function: bool = False
    """Whether a process other than the API computes suggestions."""

    @cached_property
    def purges_versions(self) -> bool:
        """Whether the collector deletes the versions of removed checkpoints for good.

        False by default, and in stores that keep no versions.
        """
        return False

    @cached_property
    def provider_types(self) -> frozenset[str]:
        """The values of `provider.type` that pools of this cluster may have. Empty by default."""
        return frozenset()

    @property
    def checkpoint_remedy(self) -> str:
        """The advice for experiments without a checkpoint store.

        "", the default, if `checkpoint_storage` is usable.
        """
        return ""

    @property
    def distant_types(self) -> frozenset[str]:
        """The provider types for instances without access to `checkpoint_storage`.

        Empty by default. `checkpoint_storage` may be a folder of the server's machine.
        """
        return frozenset()

    @property
    @abstractmethod
    def cluster_id(self) -> str:
        """The id of the cluster. Instances of the cluster carry the id as a tag."""

    @property
    @abstractmethod
    def api_hosts(self) -> frozenset[str]:
        """The host names, without ports, that requests to the API may address."""

    @property
    @abstractmethod
    def state_table(self) -> StateTable:
        """The state table, which stores the actors."""

    @property
    @abstractmethod
    def object_store(self) -> ObjectStore:
        """The store of model code, logs and metrics."""

    @property
    @abstractmethod
    def checkpoint_storage(self) -> CheckpointStorage:
        """The default checkpoint store, for experiments that configure no store."""

    @property
    @abstractmethod
    def url_signer(self) -> HmacUrlSigner:
        """The signer of URLs that the API serves."""

    def find_verifier(self, provider_type: str) -> IdentityVerifier | None:
        """Return the verifier of identity proofs for instances of pools with this provider type.

        Return None if instances of this type cannot prove an identity. The default is None for
        every type.
        """
        return None

    @property
    def credential_issuer(self) -> CredentialIssuer | None:
        """The issuer of credentials for the storage of trials.

        None, the default, if trials bring their own credentials.
        """
        return None

    @property
    def trial_grants(self) -> TrialGrants | None:
        """The issuer of access to data and image registries for trials.

        None, the default, if the cluster grants no access and trials bring their own credentials.
        """
        return None

    @property
    def relay(self) -> RelaySource | None:
        """The relay of tunnels.

        None, the default, on a host without a relay.
        """
        return None

    @property
    def long_polls(self) -> LongPollRegistry | None:
        """The registry of the agents' waiting long polls.

        None, the default, on a host that charges for waiting requests.
        """
        return None

    @property
    def configuration_sha256(self) -> str:
        """The SHA-256 of the deployed cluster configuration in hexadecimal.

        "", the default, on a host without a deployment.
        """
        return ""

    @property
    def notifier(self) -> Notifier:
        """The way in which notifications of alarms leave the cluster. The log, by default."""
        from control_plane.alarms.notifications import LogNotifier

        return LogNotifier()

    @property
    def mail_service(self) -> MailService | None:
        """The service that sends mails of webhooks. None, the default, on a host without one."""
        return None

    @property
    def has_mail_service(self) -> bool:
        """Whether the host has a mail service, which is not created yet."""
        return False

    @property
    def has_collector(self) -> bool:
        """Whether the process has the address of an OpenTelemetry collector.

        The standard variable OTEL_EXPORTER_OTLP_ENDPOINT has the address.
        """
        from control_plane.telemetry.endpoint import has_collector

        return has_collector()

    @property
    def runbook_url(self) -> str:
        """The URL of the team's copy of the runbook. "", the default, without a copy."""
        return ""

    @property
    def cluster_url(self) -> str:
        """The URL of the API for links in notifications. "", the default, on a laptop."""
        return ""

    @property
    def timing(self) -> EngineTiming:
        """The engine's monotonic clock, and the engine's pause after a conflict."""
        return EngineTiming()

    @property
    def random(self) -> Random:
        """The random source for the jitter of back-offs."""
        return SystemRandom()

    def clock(self) -> int:
        """Return the time as epoch ms."""
        return now_ms()

    def make_engine(self) -> Engine:
        """Create an engine on the state table, with this host's clock and timing.

        Raises TableError if the state table cannot be opened.
        """
        return Engine(self.state_table, self.clock, self.timing)

    @abstractmethod
    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of instances for a pool with the given settings.

        An implementation first calls `_check_provider_type`. Raises ConfigurationError (a
        CloudError) if the cluster does not support the provider type, and another CloudError if the
        settings are unusable.
        """

    def _check_provider_type(self, settings: ProvisionerSettings) -> None:
        """Raise ConfigurationError if `provider_types` lacks the provider type of the settings."""
        from provisioner.clouds.provider import ConfigurationError

        types = self.provider_types
        if settings.kind not in types:
            known = ", ".join(sorted(types))
            text = f"this cluster has no provider {settings.kind}; it has {known}"
            raise ConfigurationError("; ".join(filter(None, (text, self.provider_remedy))))

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return the stored notices about instances. An implementation may raise TableError.

        Empty by default, for hosts whose cloud reports notices only in its list of instances.
        """
        return ()

    def is_api_down(self) -> bool:
        """Return whether agents cannot reach the API.

        Always False by default, for hosts that serve the API in the calling process.
        """
        return False

    def invoke_function(self, name: str) -> None:  # noqa: B027
        """Start a function of the cluster, without waiting for the end of the function.

        Do nothing by default, for hosts whose threads find this work themselves. An implementation
        raises KeyError for an unknown name. If no function was started, the implementation raises
        OSError, or on AWS botocore's ClientError or BotoCoreError.

        Args:
            name: `suggest` or `checkpoint_gc`.
        """
