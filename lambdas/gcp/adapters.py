"""The adapters of a cluster with functions in Google Cloud, and the cluster of the running
function.

Environment variables of the functions name the parts of the cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from control_plane.gcp.firestore_client import create_client
from control_plane.gcp.state_table import FirestoreTable
from lambdas.builder import Cluster
from lambdas.deployed_adapters import RELAY_REMEDY, DeployedAdapters, read_setting
from lambdas.gcp.function_names import RELAY_SECRET

if TYPE_CHECKING:
    from control_plane.access.tunnel_relay import TunnelRelay
    from control_plane.checkpoint_stores.types.gcs import Gcs
    from control_plane.gcp.instance_identity import GoogleIdentityVerifier
    from control_plane.gcp.object_store import GcsObjectStore
    from control_plane.gcp.storage_credentials import DownscopedTokenIssuer
    from control_plane.gcp.trial_grants import AccountGrants
    from control_plane.objects.signing import HmacUrlSigner
    from lambdas.gcp.alarm_log import CloudLogNotifier
    from lambdas.other_clouds import HostParts
    from provisioner.clouds.gcp.provider import GceClouds
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings

STORAGE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# The settings with the addresses of the functions that other functions start.
_FUNCTIONS = {"checkpoint_gc": "GC_URL", "suggest": "SUGGEST_URL"}


class GcpAdapters(DeployedAdapters):
    """Firestore, Cloud Storage, Compute Engine and Cloud Run, with the environment's credentials.

    An attribute whose setting is missing in the environment raises KeyError on first use.
    """

    own_type = "gcp"
    relay_remedy = RELAY_REMEDY

    @cached_property
    def cluster_id(self) -> str:
        """The id of the cluster, from DETCLOUD_CLUSTER. Raises KeyError if unset."""
        return read_setting("CLUSTER")

    @cached_property
    def api_hosts(self) -> frozenset[str]:
        """The host of DETCLOUD_API_URL. Raises KeyError if unset."""
        from urllib.parse import urlsplit

        return frozenset({urlsplit(read_setting("API_URL")).hostname or ""})

    @cached_property
    def configuration_sha256(self) -> str:
        """The SHA-256 of the deployed cluster configuration, from DETCLOUD_CONFIG_SHA256.

        Raises KeyError if unset.
        """
        return read_setting("CONFIG_SHA256")

    @cached_property
    def state_table(self) -> FirestoreTable:
        """The state table in Firestore, without a request to Firestore.

        Raises Unavailable if the credentials are missing, and KeyError for a missing setting.
        """
        return FirestoreTable(create_client(read_setting("PROJECT"), read_setting("DATABASE")))

    @cached_property
    def object_store(self) -> GcsObjectStore:
        """The store of model code, logs and metrics in Cloud Storage.

        The client is created on first use, which raises an error of google.auth without
        credentials.
        """
        from control_plane.gcp.object_store import GcsObjectStore
        from lambdas.lazy_client import LazyClient

        def open_bucket() -> object:
            import google.auth

            from detcloud.shared.gcs import GcsBucket

            # For an emulator, Google's client would use no credentials and could not sign URLs.
            credentials, _ = google.auth.default(scopes=(STORAGE_SCOPE,))
            return GcsBucket(read_setting("OBJECTS"), credentials=credentials)

        # Importing Google's client takes a third of a second, and most requests do not need it.
        return GcsObjectStore(LazyClient(open_bucket), self.clock)

    @cached_property
    def checkpoint_storage(self) -> Gcs:
        """The bucket DETCLOUD_CHECKPOINTS. Raises KeyError if unset."""
        from control_plane.checkpoint_stores.types.gcs import Gcs

        return Gcs(type="gcs", bucket=read_setting("CHECKPOINTS"))

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        """A signer with a random key, since the API serves no signed URLs on Google Cloud."""
        import secrets

        from control_plane.objects.signing import HmacUrlSigner

        # Cloud Storage verifies the URLs of its objects.
        return HmacUrlSigner(secrets.token_bytes(32))

    @cached_property
    def own_verifier(self) -> GoogleIdentityVerifier:
        """The verifier of identity proofs for instances with the stack's service account.

        Raises KeyError for a missing setting.
        """
        from lambdas.gcp.verifier import open_verifier

        return open_verifier(
            self.cluster_id, read_setting("PROJECT"), read_setting("INSTANCE_ACCOUNT")
        )

    @cached_property
    def credential_issuer(self) -> DownscopedTokenIssuer:
        """The issuer of credentials for trials' checkpoints, from the account for storage.

        Raises KeyError if DETCLOUD_STORAGE_ACCOUNT is unset.
        """
        from control_plane.gcp.storage_credentials import DownscopedTokenIssuer

        return DownscopedTokenIssuer(read_setting("STORAGE_ACCOUNT"))

    @cached_property
    def trial_grants(self) -> AccountGrants | None:
        """The issuer of access to data and registries, which uses the deployed service accounts.

        None if no accounts were deployed. Raises ValueError if DETCLOUD_TRIAL_GRANTS is not JSON.
        """
        accounts = json.loads(os.environ.get("DETCLOUD_TRIAL_GRANTS") or "{}")
        if not accounts:
            return None
        from control_plane.gcp.account_tokens import AccountTokens
        from control_plane.gcp.trial_grants import AccountGrants

        return AccountGrants(AccountTokens(), **accounts)

    @cached_property
    def relay(self) -> TunnelRelay | None:
        """The relay of tunnels, a service of Cloud Run. None if the stack has no relay.

        Raises KeyError without the relay's secret, and ValueError for a secret that is not base64.
        """
        url = os.environ.get("DETCLOUD_RELAY_URL")
        if not url:
            return None
        import base64

        from control_plane.access.tunnel_relay import TunnelRelay

        # A certificate of a public authority needs no pin.
        return TunnelRelay(url, "", base64.b64decode(os.environ[RELAY_SECRET], validate=True))

    def own_cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of Compute Engine instances for a pool with the given settings.

        Equal settings get the same, cached provider. No request is sent: unusable settings and
        credentials raise CloudError when the provider is used.
        """
        return self._gce_clouds.cloud(settings)

    @cached_property
    def host_parts(self) -> HostParts:
        """The id, URL, clock and calls of this host that the providers of instances use.

        The identity tokens are those of the running function. Raises KeyError for a missing
        setting.
        """
        from lambdas.agent_code_keeper import AgentCodeKeeper
        from lambdas.gcp.identity_tokens import fetch_identity_token
        from lambdas.other_clouds import HostParts

        return HostParts(
            self.cluster_id,
            read_setting("API_URL"),
            self.clock,
            AgentCodeKeeper(lambda: self.object_store).keep,
            fetch_identity_token,
        )

    @cached_property
    def _gce_clouds(self) -> GceClouds:
        """The Compute Engine providers. Raises ValueError if DETCLOUD_NETWORK is not JSON."""
        from lambdas.gcp.gce_clouds import DeployedPlace, open_clouds

        network: Mapping[str, Any] = json.loads(read_setting("NETWORK"))
        place = DeployedPlace(read_setting("PROJECT"), read_setting("REGION"), network)
        return open_clouds(self.host_parts, place, _agent_code_place())

    @property
    def notifier(self) -> CloudLogNotifier:
        """The notifier that writes log lines for an alert policy."""
        from lambdas.gcp.alarm_log import CloudLogNotifier

        return CloudLogNotifier()

    def invoke_function(self, name: str) -> None:
        """Start a function of the cluster, and wait at most 5 s for the response.

        A function that has not answered by then counts as started. Raises KeyError for an unknown
        name. Raises OSError if the function cannot be reached or answers with an error status.

        Args:
            name: `suggest` or `checkpoint_gc`.
        """
        from lambdas.gcp.invocations import invoke_url

        invoke_url(read_setting(_FUNCTIONS[name]))


def _agent_code_place() -> str:
    """Return the URL of the folder in the object bucket that contains the agent's code."""
    from control_plane.agents.agent_code import AGENT_CODE_NAMESPACE

    store = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    return f"{store}/{read_setting('OBJECTS')}/{AGENT_CODE_NAMESPACE}"


adapters = GcpAdapters()
cluster = Cluster(adapters)
