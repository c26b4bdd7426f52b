"""AWS as the host of a cluster, as the environment of its functions names the parts; and the
cluster of a function there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from control_plane.aws import state_table as dynamodb
from lambdas.adapters import Adapters
from lambdas.aws.clients import lazy_client
from lambdas.builder import Cluster
from lambdas.lazy_client import LazyClient
from lambdas.other_clouds import OTHER_SIDE_REMEDY, VARIABLE, HostParts, OtherClouds

if TYPE_CHECKING:
    from control_plane.access.tokens import StaticTokens
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.agents.storage_credentials import StorageCredentials
    from control_plane.aws.instance_identity import AwsIdentityVerifier
    from control_plane.aws.object_store import S3ObjectStore
    from control_plane.aws.storage_credentials import StsCredentialIssuer
    from control_plane.aws.trial_grants import StsTrialGrants
    from control_plane.checkpoint_stores.types.s3 import S3
    from control_plane.fleet.notices import InstanceNotice
    from control_plane.fleet.records import IntentRow
    from control_plane.objects.signing import HmacUrlSigner
    from lambdas.api_probe import ApiProbe
    from provisioner.clouds.aws.launch_request import Ec2Settings
    from provisioner.clouds.aws.provider import Ec2Clouds
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings

# Of the pools whose instances are of the cloud that the functions run in.
OWN_TYPE = "aws"
# Whoever deploys; the first token is theirs.
ADMINISTRATOR = "administrator"
# The settings that name the functions which others start.
_FUNCTIONS = {"checkpoint_gc": "GC_FUNCTION", "suggest": "SUGGEST_FUNCTION"}


class AwsAdapters(Adapters):
    """DynamoDB, S3, STS, EC2 and Lambda, in the environment's region and with its credentials."""

    provider_remedy = OTHER_SIDE_REMEDY
    checks_endpoints = True
    has_suggest_function = True

    @cached_property
    def provider_types(self) -> frozenset[str]:
        return frozenset({OWN_TYPE}) | self._other_clouds.types

    @cached_property
    def cluster_id(self) -> str:
        return _setting("CLUSTER")

    @cached_property
    def api_hosts(self) -> frozenset[str]:
        from urllib.parse import urlsplit

        former = os.environ.get("DETCLOUD_API_FORMER_URL")
        urls = [_setting("API_URL"), *([former] if former else [])]
        return frozenset(urlsplit(url).hostname or "" for url in urls)

    @cached_property
    def configuration_sha256(self) -> str:
        return _setting("CONFIG_SHA256")

    @cached_property
    def state_table(self) -> dynamodb.DynamoDbTable:
        return dynamodb.DynamoDbTable(dynamodb.create_client(), _setting("TABLE"))

    @cached_property
    def object_store(self) -> S3ObjectStore:
        from control_plane.aws.object_store import S3ObjectStore
        from detcloud.shared.bucket_place import BucketPlace
        from detcloud.shared.s3 import Bucket, new_client

        # The buckets are made where the functions are: nobody needs to ask where.
        region = os.environ.get("AWS_REGION")
        place = BucketPlace(_setting("OBJECTS"), endpoint_url=_s3_url(), region=region)
        return S3ObjectStore(Bucket(place, LazyClient(lambda: new_client(place))), self.clock)

    @cached_property
    def checkpoint_storage(self) -> S3:
        from control_plane.checkpoint_stores.types.s3 import S3

        return S3(type="s3", bucket=_setting("CHECKPOINTS"), endpoint_url=_s3_url())

    @cached_property
    def url_signer(self) -> HmacUrlSigner:
        import secrets

        from control_plane.objects.signing import HmacUrlSigner

        # Objects are signed for by their bucket; nothing is by us.
        return HmacUrlSigner(secrets.token_bytes(32))

    def find_verifier(self, provider_type: str) -> IdentityVerifier | None:
        """Return the verifier of instances of EC2, or of another cloud's."""
        if provider_type == OWN_TYPE:
            return self._own_verifier
        other = self._other_clouds.find_cloud(provider_type)
        return None if other is None else other.identity_verifier

    @cached_property
    def _own_verifier(self) -> AwsIdentityVerifier:
        from control_plane.aws.instance_identity import AwsIdentityVerifier

        return AwsIdentityVerifier(self.cluster_id, _setting("INSTANCE_ROLE"), _token_service_url())

    @cached_property
    def credential_issuer(self) -> StsCredentialIssuer:
        from control_plane.aws.storage_credentials import StsCredentialIssuer

        key = os.environ.get("DETCLOUD_KMS_KEY", "")
        return StsCredentialIssuer(lazy_client("sts"), _setting("STORAGE_ROLE"), key)

    @cached_property
    def trial_grants(self) -> StsTrialGrants | None:
        """The giver of access by the roles that were deployed; None where there are none."""
        from control_plane.aws.trial_grants import StsTrialGrants

        roles = json.loads(os.environ.get("DETCLOUD_TRIAL_GRANTS") or "{}")
        if not roles:
            return None
        repositories = tuple(roles.pop("repositories", ()))
        client = lazy_client("sts")
        return StsTrialGrants(client, _create_registry_client, repositories=repositories, **roles)

    def administrator_tokens(self) -> StaticTokens:
        """Return the token of whoever deployed the cluster."""
        from control_plane.access.principals import Principal, Role
        from control_plane.access.tokens import StaticTokens

        return StaticTokens({_setting("ADMIN_SHA256"): Principal(ADMINISTRATOR, Role.ADMIN)})

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the EC2 of a pool, or what another cloud has for it. Raises CloudError."""
        self._check_provider_type(settings)
        other = self._other_clouds.find_cloud(settings.kind)
        return self._ec2_clouds.cloud(settings) if other is None else other.cloud_provider(settings)

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return what agents and EC2's events announced of instances."""
        from control_plane.fleet.notices import read_notices

        return read_notices(self.state_table)

    def is_api_down(self) -> bool:
        """Return whether the API does not answer at the address that agents know."""
        return self._api_probe.is_down()

    @cached_property
    def _api_probe(self) -> ApiProbe:
        from lambdas.api_probe import ApiProbe

        return ApiProbe(_setting("API_URL"), self.clock)

    @cached_property
    def _other_clouds(self) -> OtherClouds:
        return OtherClouds(os.environ.get(VARIABLE, ""), lambda: self._host_parts)

    @cached_property
    def _host_parts(self) -> HostParts:
        from lambdas.agent_code_keeper import AgentCodeKeeper

        keeper = AgentCodeKeeper(lambda: self.object_store)
        return HostParts(self.cluster_id, _setting("API_URL"), self.clock, keeper.keep)

    @cached_property
    def _ec2_clouds(self) -> Ec2Clouds:
        from lambdas.aws.boot import user_data
        from provisioner.clouds.aws.price_list import PriceList
        from provisioner.clouds.aws.provider import Ec2Clouds

        network: Mapping[str, Any] = json.loads(_setting("NETWORK"))
        sessions = bool(network.get("session_manager"))
        parts = self._host_parts
        script = user_data(
            parts.api_url, parts.cluster_id, _agent_code_place(), session_manager=sessions
        )

        def render_script(request: IntentRow) -> bytes:
            parts.keep_agent_code()
            return script(request)

        return Ec2Clouds(
            render_script,
            self.clock,
            complete_settings=lambda settings: complete_network(settings, network),
            prices=PriceList(_create_price_client, self.clock),
        )

    def invoke_function(self, name: str) -> None:
        """Start a function of the cluster, and wait for nothing."""
        function = _setting(_FUNCTIONS[name])
        lazy_client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=b"{}")


def complete_network(settings: Ec2Settings, deployed: Mapping[str, Any]) -> Ec2Settings:
    """Return the settings with the network that was deployed, as far as the pool names none, and
    with the tags and the key of the stack.
    """
    from provisioner.clouds.aws.launch_request import Network, Tag

    pool = settings.network_interface
    network = Network(
        # In private subnets a public address would lead nowhere.
        public_ip=pool.public_ip and deployed.get("public_ip", True),
        subnet_ids=pool.subnets or tuple(deployed["subnets"].values()),
        security_group_id=pool.security_group_id or deployed["security_group"],
    )
    profile = settings.iam_instance_profile_arn or deployed["instance_profile"]
    tags = tuple(Tag(key, value) for key, value in deployed.get("tags", {}).items())
    return replace(
        settings,
        region=settings.region or os.environ.get("AWS_REGION", ""),
        network_interface=network,
        iam_instance_profile_arn=profile,
        placement_groups=deployed.get("placement_groups", {}),
        # A pool's own come later, and so take precedence.
        custom_tags=(*tags, *settings.custom_tags),
        kms_key=deployed.get("kms_key", ""),
    )


def _create_price_client() -> Any:
    """Make a client of the Price List API that holds up no tick for long."""
    from botocore.config import Config

    from detcloud.shared.aws import new_session
    from provisioner.clouds.aws.price_list import PRICE_LIST_REGION

    config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=4)
    return new_session().create_client("pricing", PRICE_LIST_REGION, config=config)


def _create_registry_client(region: str, keys: StorageCredentials) -> Any:
    """Make a client of ECR with the keys of a session."""
    from detcloud.shared.aws import new_session

    return new_session().create_client(
        "ecr",
        region,
        aws_access_key_id=keys.key_id,
        aws_secret_access_key=keys.secret,
        aws_session_token=keys.session_token,
    )


def _setting(name: str) -> str:
    return os.environ[f"DETCLOUD_{name}"]


def _agent_code_place() -> str:
    """The URL in the bucket of objects below which the agent's code is."""
    from control_plane.agents.agent_code import AGENT_CODE_NAMESPACE

    bucket, other = _setting("OBJECTS"), _s3_url()
    own = f"https://{bucket}.s3.{os.environ['AWS_REGION']}.amazonaws.com"
    return f"{f'{other}/{bucket}' if other else own}/{AGENT_CODE_NAMESPACE}"


def _s3_url() -> str | None:
    """The address of another store than Amazon's, which trials are told of too."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _token_service_url() -> str:
    region = os.environ["AWS_REGION"]
    url = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    return url or f"https://sts.{region}.amazonaws.com"


adapters = AwsAdapters()
cluster = Cluster(adapters)
