"""The adapters of a cluster whose functions run in AWS, and the cluster of the running function.

Environment variables of the functions name the parts of the cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from control_plane.aws import state_table as dynamodb
from lambdas.aws.clients import lazy_client
from lambdas.builder import Cluster
from lambdas.deployed_adapters import RELAY_REMEDY, DeployedAdapters, read_setting
from lambdas.lazy_client import LazyClient

if TYPE_CHECKING:
    from control_plane.agents.storage_credentials import StorageCredentials
    from control_plane.aws.instance_identity import AwsIdentityVerifier
    from control_plane.aws.object_store import S3ObjectStore
    from control_plane.aws.storage_credentials import StsCredentialIssuer
    from control_plane.aws.trial_grants import StsTrialGrants
    from control_plane.checkpoint_stores.types.s3 import S3
    from control_plane.objects.signing import HmacUrlSigner
    from control_plane.usecases.relay_demand import RelayOnDemand
    from lambdas.aws.alarm_topic import SnsNotifier
    from lambdas.aws.mail_service import SesMailService
    from lambdas.other_clouds import HostParts
    from provisioner.clouds.aws.provider import Ec2Clouds
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings

# The settings with the names of the functions that other functions start.
_FUNCTIONS = {"checkpoint_gc": "GC_FUNCTION", "suggest": "SUGGEST_FUNCTION"}


class AwsAdapters(DeployedAdapters):
    """DynamoDB, S3, STS, EC2 and Lambda, with the environment's region and credentials.

    An attribute whose setting is missing in the environment raises KeyError on first use.
    """

    own_type = "aws"
    relay_remedy = RELAY_REMEDY

    @cached_property
    def cluster_id(self) -> str:
        """The id of the cluster, from DETCLOUD_CLUSTER. Raises KeyError if unset."""
        return read_setting("CLUSTER")

    @cached_property
    def api_hosts(self) -> frozenset[str]:
        """The host of DETCLOUD_API_URL, and of the former URL after a change of the address.

        Raises KeyError if DETCLOUD_API_URL is unset.
        """
        from urllib.parse import urlsplit

        former = os.environ.get("DETCLOUD_API_FORMER_URL")
        urls = [read_setting("API_URL"), *([former] if former else [])]
        return frozenset(urlsplit(url).hostname or "" for url in urls)

    @cached_property
    def configuration_sha256(self) -> str:
        """The SHA-256 of the deployed cluster configuration, from DETCLOUD_CONFIG_SHA256.

        Raises KeyError if unset.
        """
        return read_setting("CONFIG_SHA256")

    @cached_property
    def state_table(self) -> dynamodb.DynamoDbTable:
        """The state table in DynamoDB. No request is sent before the first read or write.

        Raises KeyError if DETCLOUD_TABLE is unset.
        """
        return dynamodb.DynamoDbTable(dynamodb.create_client(), read_setting("TABLE"))

    @cached_property
    def object_store(self) -> S3ObjectStore:
        """The store of model code, logs and metrics in S3. The client is created on first use."""
        from control_plane.aws.object_store import S3ObjectStore
        from detcloud.shared.bucket_place import BucketPlace
        from detcloud.shared.s3 import Bucket
        from detcloud.shared.s3_client import new_client

        # The stack creates the buckets in the region of the functions, so the client need not ask
        # for the region of the bucket.
        region = os.environ.get("AWS_REGION")
        place = BucketPlace(read_setting("OBJECTS"), endpoint_url=_s3_url(), region=region)
        return S3ObjectStore(Bucket(place, LazyClient(lambda: new_client(place))), self.clock)

    @cached_property
    def checkpoint_storage(self) -> S3:
        """The bucket DETCLOUD_CHECKPOINTS. Raises KeyError if unset."""
        from control_plane.checkpoint_stores.types.s3 import S3

        return S3(type="s3", bucket=read_setting("CHECKPOINTS"), endpoint_url=_s3_url())

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        """A signer with a random key, since the API serves no signed URLs on AWS."""
        import secrets

        from control_plane.objects.signing import HmacUrlSigner

        # S3 verifies the URLs of its objects.
        return HmacUrlSigner(secrets.token_bytes(32))

    @cached_property
    def own_verifier(self) -> AwsIdentityVerifier:
        """The verifier of identity proofs for instances with the stack's role.

        Raises ValueError if DETCLOUD_INSTANCE_ROLE is not the ARN of a role, and KeyError if unset.
        """
        from control_plane.aws.instance_identity import AwsIdentityVerifier

        return AwsIdentityVerifier(
            self.cluster_id, read_setting("INSTANCE_ROLE"), _token_service_url()
        )

    @cached_property
    def credential_issuer(self) -> StsCredentialIssuer:
        """The issuer of credentials for trials' checkpoints, which assumes the role for storage.

        Raises KeyError if DETCLOUD_STORAGE_ROLE is unset. No request is sent yet.
        """
        from control_plane.aws.storage_credentials import StsCredentialIssuer

        key = os.environ.get("DETCLOUD_KMS_KEY", "")
        return StsCredentialIssuer(lazy_client("sts"), read_setting("STORAGE_ROLE"), key)

    @cached_property
    def trial_grants(self) -> StsTrialGrants | None:
        """The issuer of access to data and registries, which assumes the deployed roles.

        None if no roles were deployed. Raises ValueError if DETCLOUD_TRIAL_GRANTS is not JSON.
        """
        from control_plane.aws.trial_grants import StsTrialGrants

        roles = json.loads(os.environ.get("DETCLOUD_TRIAL_GRANTS") or "{}")
        if not roles:
            return None
        repositories = tuple(roles.pop("repositories", ()))
        client = lazy_client("sts")
        return StsTrialGrants(client, _create_registry_client, repositories=repositories, **roles)

    @cached_property
    def relay(self) -> RelayOnDemand | None:
        """The relay of tunnels, a task of Fargate that a request for a tunnel starts.

        None if the stack has no relay. No request is sent yet. Raises ValueError if DETCLOUD_RELAY
        is not the JSON of a place.
        """
        place = json.loads(os.environ.get("DETCLOUD_RELAY") or "null")
        if place is None:
            return None
        from lambdas.aws.relay_starts import open_relay

        return open_relay(self.state_table, self.object_store, lazy_client("ecs"), place)

    def own_cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of EC2 instances for a pool with the given settings.

        Equal settings get the same, cached provider. Raises CloudError if the settings are
        unusable.
        """
        return self._ec2_clouds.cloud(settings)

    @cached_property
    def host_parts(self) -> HostParts:
        """The id, URL, clock and calls of this host that the providers of instances use.

        The functions on AWS have no identity tokens. Raises KeyError for a missing setting.
        """
        from lambdas.agent_code_keeper import AgentCodeKeeper
        from lambdas.other_clouds import HostParts

        keeper = AgentCodeKeeper(lambda: self.object_store)
        return HostParts(self.cluster_id, read_setting("API_URL"), self.clock, keeper.keep)

    @cached_property
    def _ec2_clouds(self) -> Ec2Clouds:
        """The EC2 providers of the pools. Raises ValueError if DETCLOUD_NETWORK is not JSON."""
        from detcloud.shared.aws import new_session
        from lambdas.aws.ec2_clouds import DeployedPlace, open_clouds

        network: Mapping[str, Any] = json.loads(read_setting("NETWORK"))
        place = DeployedPlace(os.environ.get("AWS_REGION", ""), network)
        return open_clouds(self.host_parts, place, _agent_code_place(), new_session)

    @cached_property
    def notifier(self) -> SnsNotifier:
        """The notifier that publishes to the topic DETCLOUD_ALARMS_TOPIC.

        No request is sent yet. Raises KeyError if the variable is unset.
        """
        from lambdas.aws.alarm_topic import SnsNotifier

        return SnsNotifier(lazy_client("sns"), read_setting("ALARMS_TOPIC"))

    @cached_property
    def mail_service(self) -> SesMailService | None:
        """The service that sends mails from the address DETCLOUD_MAIL_SENDER.

        None without the variable. No request is sent yet.
        """
        sender = os.environ.get("DETCLOUD_MAIL_SENDER", "")
        if not sender:
            return None
        from control_plane.webhooks.sender import SECONDS_MAX
        from lambdas.aws.mail_service import SesMailService

        # A mail takes less time than a claim of the deliverer, and is repeated by the deliverer.
        return SesMailService(lazy_client("sesv2", SECONDS_MAX), sender)

    @property
    def has_mail_service(self) -> bool:
        """Whether the environment has DETCLOUD_MAIL_SENDER. Imports nothing."""
        return bool(os.environ.get("DETCLOUD_MAIL_SENDER"))

    def invoke_function(self, name: str) -> None:
        """Start a function of the cluster asynchronously, without waiting for the end.

        Raises KeyError for an unknown name, and botocore's ClientError or BotoCoreError if Lambda
        refuses the request or does not answer.

        Args:
            name: `suggest` or `checkpoint_gc`.
        """
        function = read_setting(_FUNCTIONS[name])
        lazy_client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=b"{}")


def _create_registry_client(region: str, keys: StorageCredentials) -> Any:
    """Create a client of ECR in a region with temporary credentials of an AWS session."""
    from detcloud.shared.aws import new_session

    return new_session().create_client(
        "ecr",
        region,
        aws_access_key_id=keys.key_id,
        aws_secret_access_key=keys.secret,
        aws_session_token=keys.session_token,
    )


def _agent_code_place() -> str:
    """Return the URL of the folder in the object bucket that contains the agent's code.

    Raises KeyError without DETCLOUD_OBJECTS or AWS_REGION.
    """
    from control_plane.agents.agent_code import AGENT_CODE_NAMESPACE

    bucket, other = read_setting("OBJECTS"), _s3_url()
    own = f"https://{bucket}.s3.{os.environ['AWS_REGION']}.amazonaws.com"
    return f"{f'{other}/{bucket}' if other else own}/{AGENT_CODE_NAMESPACE}"


def _s3_url() -> str | None:
    """Return the address of a store that replaces Amazon S3, also for trials. None for S3."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _token_service_url() -> str:
    """Return the address of STS in the environment's region, or of an emulator.

    Raises KeyError without AWS_REGION.
    """
    region = os.environ["AWS_REGION"]
    url = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    return url or f"https://sts.{region}.amazonaws.com"


adapters = AwsAdapters()
cluster = Cluster(adapters)
