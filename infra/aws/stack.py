"""The Pulumi component of a team's whole cluster on AWS."""

import hashlib
from typing import Any

import pulumi

from control_plane.config.pools import check_cluster
from infra.aws.alarms import make_alarms, make_dead_letters
from infra.aws.copies import make_copies
from infra.aws.dashboard import make_dashboard
from infra.aws.events import connect_events
from infra.aws.front import make_front
from infra.aws.functions import describe_deployment, make_aliases, make_functions
from infra.aws.gateway import api_url, make_api, make_domain, route_requests
from infra.aws.mail_settings import mail_variables
from infra.aws.network import make_network, make_vpc
from infra.aws.pool_checks import capacity_reservations, journal_groups
from infra.aws.relay import make_relay
from infra.aws.roles import Roles, make_roles
from infra.aws.scope import Scope
from infra.aws.settings import Settings
from infra.aws.storage import (
    grant_key_to_spot_market,
    make_buckets,
    make_table,
    put_collector_headers,
    put_configuration,
)
from infra.remote_settings import describe_deployed, describe_remote_accounts
from lambdas.deployed_adapters import PURGE_VARIABLE
from lambdas.other_clouds import VARIABLE


class TeamStack(pulumi.ComponentResource):
    """The Pulumi component of a team's cluster.

    The constructor declares all resources of the cluster. Raises OSError if an archive of functions
    cannot be read, and ConfigInvalid for an invalid cluster configuration.

    Args:
        cluster_config: the text of the cluster configuration.

    Attributes:
        outputs: the stack's outputs for users, such as `url`.
    """

    def __init__(
        self, settings: Settings, cluster_config: str, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("detcloud:aws:TeamStack", settings.team, {}, opts)
        scope = Scope(settings, self)
        versionings: dict[str, Any] = {}
        table, api = make_table(scope), make_api(scope)
        buckets = make_buckets(scope, versionings)
        put_configuration(scope, buckets["objects"], cluster_config)
        put_collector_headers(scope, buckets["objects"])
        grant_key_to_spot_market(scope)
        cluster = check_cluster(cluster_config)
        roles = make_roles(scope, journal_groups(cluster), capacity_reservations(cluster))
        front = make_front(scope, api) if settings.web_acl else None
        url = api_url(scope, api, front)
        has_other_name = bool(settings.domain or settings.web_acl)
        common = {
            "DETCLOUD_TABLE": table.name,
            "DETCLOUD_OBJECTS": buckets["objects"].id,
            "DETCLOUD_CHECKPOINTS": buckets["checkpoints"].id,
            "DETCLOUD_CLUSTER": scope.names.cluster,
            "DETCLOUD_API_URL": url,
            "DETCLOUD_ADMIN_SHA256": settings.admin_sha256,
            "DETCLOUD_CONFIG_SHA256": _sha256(cluster_config),
            "POWERTOOLS_TRACE_DISABLED": "false" if settings.tracing else "true",
            # Existing instances keep using the API's original address.
            **({"DETCLOUD_API_FORMER_URL": api.api_endpoint} if has_other_name else {}),
            **(settings.telemetry.common_variables if settings.telemetry else {}),
        }
        deployment = describe_deployment(settings, cluster_config)
        vpc = make_vpc(scope)
        network = make_network(scope, roles.instance_profile, vpc)
        own = _function_settings(scope, roles, network)
        if settings.has_relay:
            assert vpc is not None
            own["api"]["DETCLOUD_RELAY"] = make_relay(scope, vpc, buckets["objects"], table)
        functions = make_functions(scope, roles, common, own, deployment)
        aliases = make_aliases(scope, functions)
        stage = route_requests(scope, api, aliases["api"])
        domain = make_domain(scope, api, stage) if settings.domain else None
        dead_letters = make_dead_letters(scope)
        connect_events(scope, aliases, roles, table, dead_letters)
        make_copies(scope, buckets, versionings, dead_letters)
        topic = make_alarms(scope, dead_letters, functions, table, api)
        if settings.dashboard:
            make_dashboard(scope, table, api, dead_letters)
        self.outputs = {
            "url": url,
            "cluster": scope.names.cluster,
            "region": settings.region,
            "table": table.name,
            "objects": buckets["objects"].id,
            "checkpoints": buckets["checkpoints"].id,
            "deadLetters": dead_letters.url,
            "alarms": topic.arn,
            # Users who create a file system for instances need the subnets and security group.
            "network": network,
            **({"domainTarget": domain} if domain is not None else {}),
            **describe_deployed(settings.other_clouds),
        }
        self.register_outputs(self.outputs)


def _sha256(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _function_settings(
    scope: Scope, roles: Roles, network: pulumi.Output[str]
) -> dict[str, dict[str, Any]]:
    """Return the additional environment variables of functions, by function.

    The API gets the roles for storage, instances and trials, the key and the digest of the origin's
    secret. The tick and `wake` get the names of the functions that they start, and `network`. The
    tick also gets the topic for alarms, the URL of the runbook, and the digest of the collector's
    headers. All three get the remote accounts, and the sender of mails. The function
    `checkpoint_gc` learns whether it purges versions. Variables of unset settings are left out.

    Args:
        network: the JSON that `make_network` returns.
    """
    secret, runbook = scope.settings.origin_secret, scope.settings.runbook_url
    collector = scope.settings.telemetry
    wake = {
        "DETCLOUD_GC_FUNCTION": scope.names.live_function("checkpoint_gc"),
        "DETCLOUD_SUGGEST_FUNCTION": scope.names.live_function("suggest"),
        "DETCLOUD_NETWORK": network,
        **mail_variables(scope.settings.mail_sender),
        **_other_clouds(scope.settings),
    }
    return {
        "api": {
            "DETCLOUD_STORAGE_ROLE": roles.storage.arn,
            "DETCLOUD_INSTANCE_ROLE": roles.instance.arn,
            **({"DETCLOUD_KMS_KEY": key} if (key := scope.settings.kms_key) else {}),
            **({"DETCLOUD_ORIGIN_SHA256": _sha256(secret)} if secret else {}),
            **_trial_grants(scope.settings, roles),
            **mail_variables(scope.settings.mail_sender),
            **_other_clouds(scope.settings),
        },
        **({"checkpoint_gc": PURGE_VARIABLE} if scope.settings.purges_versions else {}),
        "tick": {
            **wake,
            "DETCLOUD_ALARMS_TOPIC": scope.names.alarms_arn,
            **({"DETCLOUD_RUNBOOK_URL": runbook} if runbook else {}),
            **(collector.tick_variables if collector else {}),
        },
        "wake": wake,
    }


def _other_clouds(settings: Settings) -> dict[str, str]:
    """Return the environment variable that describes the remote accounts; {} without any."""
    described = describe_remote_accounts(settings.remote_accounts)
    return {VARIABLE: described} if described else {}


def _trial_grants(settings: Settings, roles: Roles) -> dict[str, Any]:
    """Return the API's variable with the roles and repositories for trials, besides checkpoints.

    Return {} if the settings name no buckets, roles or repositories.
    """
    grants = {
        **({"data_role": roles.data.arn} if roles.data is not None else {}),
        **({"pool_roles": dict(settings.task_roles)} if settings.task_roles else {}),
        **({"pull_role": roles.pull.arn} if roles.pull is not None else {}),
    }
    if settings.image_repositories:
        grants["repositories"] = list(settings.image_repositories)
    return {"DETCLOUD_TRIAL_GRANTS": pulumi.Output.json_dumps(grants)} if grants else {}
