"""The Pulumi component of a team's whole cluster on Google Cloud."""

import hashlib
from typing import Any, Final

import pulumi

from control_plane.config.pools import check_cluster
from control_plane.gcp.pool_provider import GcpProvider
from infra.gcp.accounts import Accounts, Places, give_roles, make_accounts
from infra.gcp.alarms import make_alarms
from infra.gcp.copies import make_copy_buckets, start_copies
from infra.gcp.dashboard import make_dashboard
from infra.gcp.events import connect_events
from infra.gcp.functions import describe_deployment, make_functions
from infra.gcp.image import ImageBuilder, make_image, make_repository
from infra.gcp.names import RELAY
from infra.gcp.network import describe_network, make_subnetworks
from infra.gcp.policies import STATE_COPY, list_copy_grants, list_grants, list_relay_grants
from infra.gcp.relay import Secret, make_relay, make_secret
from infra.gcp.scope import Scope
from infra.gcp.settings import Settings
from infra.gcp.storage import (
    make_buckets,
    make_database,
    put_collector_headers,
    put_configuration,
)
from infra.remote_settings import describe_deployed, describe_remote_accounts
from lambdas.deployed_adapters import PURGE_VARIABLE
from lambdas.gcp.function_names import RELAY_SECRET as SECRET_VARIABLE
from lambdas.other_clouds import VARIABLE

# The kinds of places on which roles are granted before the functions exist.
_GRANTED_FIRST: Final = (
    *("project", "account", "bucket", "subnetwork", "repository", "image_repository", "secret"),
)


class TeamStack(pulumi.ComponentResource):
    """The Pulumi component of a team's cluster.

    The constructor declares all resources of the cluster. Raises OSError if an archive cannot be
    read, and ConfigInvalid for an invalid cluster configuration.

    Args:
        cluster_config: the text of the cluster configuration.
        builder: builds the functions' images unless the settings name images. None builds none.

    Attributes:
        outputs: the stack's outputs for users, such as `url`.
    """

    def __init__(
        self,
        settings: Settings,
        cluster_config: str,
        builder: ImageBuilder | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("detcloud:gcp:TeamStack", settings.team, {}, opts)
        scope, names = Scope(settings, self), settings.names
        database, buckets = make_database(scope), make_buckets(scope)
        copied = make_copy_buckets(scope)
        put_configuration(scope, buckets["objects"], cluster_config)
        put_collector_headers(scope, buckets["objects"])
        network, subnetworks = make_subnetworks(scope)
        repository = make_repository(scope)
        logs = _has_logging_pools(cluster_config)
        grants = list_grants(names, settings.subnetwork_regions, logs_instances=logs)
        grants += settings.trial_access.list_grants(names)
        grants += list_copy_grants(names) if copied else []
        grants += list_relay_grants() if settings.relay else []
        accounts = make_accounts(scope, grants)
        secret = make_secret(scope) if settings.relay else None
        places = Places({**buckets, **copied}, subnetworks, {}, repository, secret)
        give_roles(scope, accounts, grants, _GRANTED_FIRST, places)
        images = _make_images(scope, accounts, buckets["objects"], builder)
        common = {
            "DETCLOUD_CLUSTER": names.cluster,
            "DETCLOUD_API_URL": names.url("api"),
            "DETCLOUD_PROJECT": settings.project,
            "DETCLOUD_REGION": settings.region,
            "DETCLOUD_DATABASE": database.name,
            "DETCLOUD_OBJECTS": buckets["objects"].name,
            "DETCLOUD_CHECKPOINTS": buckets["checkpoints"].name,
            "DETCLOUD_ADMIN_SHA256": settings.admin_sha256,
            "DETCLOUD_CONFIG_SHA256": hashlib.sha256(cluster_config.encode()).hexdigest(),
            **(settings.telemetry.common_variables if settings.telemetry else {}),
        }
        description = describe_network(scope, network, subnetworks, accounts.email("instance"))
        own = _function_settings(scope, accounts, description)
        own["api"] |= _relay_settings(scope, secret)
        if copied:
            own["tick"]["DETCLOUD_STATE_COPY"] = copied[STATE_COPY].name
        deployment = describe_deployment(settings, cluster_config)
        functions = make_functions(scope, accounts, images, common, own, deployment)
        if secret is not None:
            make_relay(scope, accounts, images["functions"], secret, deployment)
        give_roles(scope, accounts, grants, ("service",), Places(services=functions))
        connect_events(scope, accounts, functions, database)
        start_copies(scope, accounts, functions["tick"], buckets, copied)
        make_alarms(scope)
        if settings.dashboard:
            make_dashboard(scope)
        self.outputs = {
            "url": names.url("api"),
            "cluster": names.cluster,
            "project": settings.project,
            "region": settings.region,
            "database": database.name,
            "objects": buckets["objects"].name,
            "checkpoints": buckets["checkpoints"].name,
            "image": images["functions"],
            "suggestImage": images["suggest"],
            # Users who create a file system for instances need the network's names.
            "network": description,
            **describe_deployed(settings.other_clouds),
        }
        self.register_outputs(self.outputs)


def _make_images(
    scope: Scope, accounts: Accounts, bucket: Any, builder: ImageBuilder | None
) -> dict[str, Any]:
    """Return the images `functions` and `suggest`, built from the archives if necessary.

    Return the images of the settings if named, or if `builder` is None.
    """
    settings = scope.settings
    if settings.image or builder is None:
        return {"functions": settings.image, "suggest": settings.suggest_image}
    archives = {"functions": settings.archive, "suggest": settings.suggest_archive}
    return {
        kind: make_image(scope, accounts, bucket, builder, kind, str(archive))
        for kind, archive in archives.items()
    }


def _relay_settings(scope: Scope, secret: Secret | None) -> dict[str, Any]:
    """Return the API's variables with the address and the secret of the relay, if any."""
    if secret is None:
        return {}
    return {
        "DETCLOUD_RELAY_URL": scope.names.url(RELAY),
        SECRET_VARIABLE: secret.variable,
    }


def _has_logging_pools(cluster_config: str) -> bool:
    """Return whether agents of any pool write journals to Cloud Logging."""
    providers = [pool.provider for pool in check_cluster(cluster_config).resource_pools]
    return any(
        isinstance(provider, GcpProvider) and provider.use_cloud_logging for provider in providers
    )


def _function_settings(
    scope: Scope, accounts: Accounts, network: pulumi.Output[str]
) -> dict[str, dict[str, Any]]:
    """Return the additional environment variables of functions, by function name.

    The API gets the service accounts for instances, storage and trials' access. The tick and `wake`
    get the URLs of the functions that they start, and `network`, the JSON of `describe_network`.
    The tick also gets the URL of the runbook and the digest of the collector's headers. All three
    get the remote accounts. The function `checkpoint_gc` learns whether it purges versions.
    Variables of unset settings are left out.
    """
    names, described = scope.names, describe_remote_accounts(scope.settings.remote_accounts)
    others = {VARIABLE: described} if described else {}
    access = scope.settings.trial_access.describe(names)
    granted = {"DETCLOUD_TRIAL_GRANTS": access} if access else {}
    wake = {
        "DETCLOUD_GC_URL": names.url("checkpoint_gc"),
        "DETCLOUD_SUGGEST_URL": names.url("suggest"),
        "DETCLOUD_NETWORK": network,
        **others,
    }
    runbook, collector = scope.settings.runbook_url, scope.settings.telemetry
    return {
        "api": {
            "DETCLOUD_INSTANCE_ACCOUNT": accounts.email("instance"),
            "DETCLOUD_STORAGE_ACCOUNT": accounts.email("storage"),
            **granted,
            **others,
        },
        **({"checkpoint_gc": PURGE_VARIABLE} if scope.settings.purges_versions else {}),
        "tick": {
            **wake,
            **({"DETCLOUD_RUNBOOK_URL": runbook} if runbook else {}),
            **(collector.tick_variables if collector else {}),
        },
        "wake": wake,
    }
