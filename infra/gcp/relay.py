"""The relay of tunnels: a Cloud Run service that scales to zero, with a secret (decision 0143).

The service costs money only while a tunnel is connected.
"""

import base64
import secrets
from dataclasses import dataclass
from typing import Any, Final

import pulumi
from pulumi_gcp import cloudrunv2, secretmanager

from infra.gcp.accounts import Accounts
from infra.gcp.functions import DEPLOYMENT_LABEL, environment_entries
from infra.gcp.names import RELAY
from infra.gcp.scope import Scope
from lambdas.gcp.function_names import RELAY_SECRET

# Cloud Run ends each request, and with it each WebSocket, after an hour at most.
SECONDS_MAX: Final = 3600
# The connections of an instance. The relay itself refuses more.
CONCURRENCY: Final = 1000
MEMORY: Final = "512Mi"
SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class Secret:
    """The secret by which the API signs tickets and the relay verifies tickets."""

    secret: Any
    """The secret, on which grants are given."""
    version: Any
    """The only version of the secret."""

    @property
    def secret_id(self) -> Any:
        """The name of the secret, as a Pulumi output."""
        return self.secret.secret_id

    @property
    def variable(self) -> dict[str, Any]:
        """The value of an environment variable with the secret."""
        source = {"secret": self.secret.secret_id, "version": self.version.version}
        return {"value_source": {"secret_key_ref": source}}


def make_secret(scope: Scope) -> Secret:
    """Create the relay's secret with a random value, which later deployments keep."""
    settings = scope.settings
    key = settings.kms_key
    encryption = {"customer_managed_encryption": {"kms_key_name": key}} if key else {}
    secret = secretmanager.Secret(
        RELAY,
        project=settings.project,
        secret_id=scope.names.part(RELAY),
        replication={"user_managed": {"replicas": [{"location": settings.region, **encryption}]}},
        labels=scope.labels,
        opts=scope.options(),
    )
    value = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    version = secretmanager.SecretVersion(
        RELAY,
        secret=secret.id,
        secret_data=pulumi.Output.secret(value),
        opts=pulumi.ResourceOptions.merge(
            scope.options(), pulumi.ResourceOptions(ignore_changes=["secretData"])
        ),
    )
    return Secret(secret, version)


def make_relay(
    scope: Scope, accounts: Accounts, image: Any, secret: Secret, deployment: str
) -> None:
    """Create the relay's service, after the grant on the secret.

    Everybody may connect, because the relay checks the ticket of each connection. `image` is the
    functions' image, and `deployment` becomes the label of the revision.
    """
    names, settings = scope.names, scope.settings
    variables = {"DETCLOUD_FUNCTION": RELAY, RELAY_SECRET: secret.variable}
    container = {
        "image": image,
        "envs": environment_entries(variables),
        "resources": {
            "limits": {"cpu": "1", "memory": MEMORY},
            # A WebSocket is a request, so connected tunnels have a processor.
            "cpu_idle": True,
            "startup_cpu_boost": True,
        },
    }
    cloudrunv2.Service(
        RELAY,
        project=settings.project,
        location=settings.region,
        name=names.part(RELAY),
        description=f"{names.cluster}: the relay of tunnels",
        ingress="INGRESS_TRAFFIC_ALL",
        invoker_iam_disabled=True,
        deletion_protection=False,
        labels=scope.labels,
        scaling={"min_instance_count": 0},
        template={
            "service_account": accounts.email(RELAY),
            "timeout": f"{SECONDS_MAX}s",
            "max_instance_request_concurrency": CONCURRENCY,
            # A second instance would not find the peers of the first.
            "scaling": {"min_instance_count": 0, "max_instance_count": 1},
            "execution_environment": "EXECUTION_ENVIRONMENT_GEN2",
            "labels": {**scope.labels, DEPLOYMENT_LABEL: deployment},
            "containers": [container],
            **({"encryption_key": settings.kms_key} if settings.kms_key else {}),
        },
        traffics=[{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}],
        opts=scope.options(accounts.given[RELAY]),
    )
