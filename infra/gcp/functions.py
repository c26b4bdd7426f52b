"""The functions: a Cloud Run service for each, which scales to zero.

All functions share an image, except `suggest`, because its model's packages are larger than all
others together. Each deployment creates a revision of every service. All revisions of a deployment
have the same label, by which rollback.py finds them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulumi_gcp import cloudrunv2

from infra.gcp.accounts import Accounts
from infra.gcp.names import STARTED_BY_TICK
from infra.gcp.scope import Scope
from infra.gcp.settings import Settings
from lambdas.gcp.function_names import FUNCTIONS

DEPLOYMENT_LABEL: Final = "detcloud-deployment"
DIGEST_CHARACTERS: Final = 12


@dataclass(frozen=True)
class Size:
    """The timeout, memory and concurrency of a function."""

    seconds_max: int
    """The timeout of a request."""
    memory: str
    """The memory of an instance, like `512Mi`."""
    concurrency: int
    """The concurrent requests of an instance."""
    instances_max: int
    """The most instances at a time."""


SIZES: Final[Mapping[str, Size]] = {
    "advance": Size(60, "512Mi", 8, 20),
    # A retried minute may run beside the next minute.
    "tick": Size(60, "512Mi", 4, 2),
    # Concurrent events share a pass.
    "wake": Size(60, "512Mi", 32, 2),
    # Two concurrent runs would do the same work: the first request runs, and the second request
    # learns that a run is in progress.
    "checkpoint_gc": Size(900, "512Mi", 2, 1),
    "suggest": Size(300, "2Gi", 2, 1),
}


def size_of(settings: Settings, name: str) -> Size:
    """Return the timeout, memory and concurrency of a function.

    The API's concurrency and number of instances are settings. Raise KeyError for an unknown name.
    """
    if name == "api":
        return Size(60, "1Gi", settings.api_concurrency, settings.api_instances)
    return SIZES[name]


def make_functions(
    scope: Scope,
    accounts: Accounts,
    images: Mapping[str, Any],
    environment: Mapping[str, Any],
    extra: Mapping[str, Mapping[str, Any]],
    deployment: str,
) -> Mapping[str, Any]:
    """Create all functions as Cloud Run services, and return the services by name.

    `images` has the image of the function `suggest`, and as `functions` the image of all others.
    Every function gets the environment variables `environment`; a function named in `extra` also
    gets these variables. A value is a text, or the map of a `value_source`. `deployment` becomes
    the label of the revisions.
    """
    return {
        name: _make_function(
            scope,
            name,
            accounts,
            images.get(name, images["functions"]),
            {**environment, **extra.get(name, {})},
            deployment,
        )
        for name in FUNCTIONS
    }


def describe_deployment(settings: Settings, cluster_config: str) -> str:
    """Return the label of a deployment's revisions: DIGEST_CHARACTERS digits of a SHA-256.

    The digest covers the text `cluster_config`, all settings except file paths, and without the
    setting `image` the content of both archives. Raise OSError if an archive cannot be read.
    """
    digest = hashlib.sha256(cluster_config.encode())
    for archive in () if settings.image else (settings.archive, settings.suggest_archive):
        digest.update(hashlib.sha256(Path(str(archive)).read_bytes()).digest())
    # The paths of files do not distinguish deployments.
    said = settings.model_dump_json(exclude={"archive", "suggest_archive", "cluster_config"})
    digest.update(said.encode())
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def environment_entries(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the environment of a container. A value is a text, or a `value_source` in a map."""
    return [
        {"name": name, **(value if isinstance(value, dict) else {"value": value})}
        for name, value in variables.items()
    ]


def _make_function(
    scope: Scope,
    name: str,
    accounts: Accounts,
    image: Any,
    environment: Mapping[str, Any],
    deployment: str,
) -> Any:
    """Create and return the Cloud Run service of a function, after the grants to the account.

    All requests go to the new revision, which has the label `deployment`. Only the API and the
    functions of STARTED_BY_TICK can be reached from the internet. The API accepts any caller, and
    the others accept only the accounts in the service's IAM policy.
    """
    names, settings, size = scope.names, scope.settings, size_of(scope.settings, name)
    # The tick calls STARTED_BY_TICK over the internet, and Cloud Run authenticates the caller.
    is_inside = name not in ("api", *STARTED_BY_TICK)
    variables = {
        **environment,
        # The function to serve, and the time limit that a call may use.
        "DETCLOUD_FUNCTION": name,
        "DETCLOUD_TIMEOUT_SECONDS": str(size.seconds_max),
    }
    container = {
        "image": image,
        "envs": environment_entries(variables),
        "resources": {
            "limits": {"cpu": "1", "memory": size.memory},
            # Most functions have a processor, and cost money, only while answering. The tick does
            # not wait for the functions in STARTED_BY_TICK, so they keep the processor.
            "cpu_idle": name not in STARTED_BY_TICK,
            "startup_cpu_boost": True,
        },
    }
    return cloudrunv2.Service(
        name,
        project=settings.project,
        location=settings.region,
        name=names.part(name),
        description=f"{names.cluster}: {name}",
        ingress=f"INGRESS_TRAFFIC_{'INTERNAL_ONLY' if is_inside else 'ALL'}",
        # The API checks tokens itself; IAM authorizes the callers of all other functions.
        invoker_iam_disabled=name == "api",
        # Only the stores hold data that needs protection.
        deletion_protection=False,
        labels=scope.labels,
        scaling={"min_instance_count": 0},
        template={
            "service_account": accounts.email_of_function(name),
            "timeout": f"{size.seconds_max}s",
            "max_instance_request_concurrency": size.concurrency,
            "scaling": {"min_instance_count": 0, "max_instance_count": size.instances_max},
            "execution_environment": "EXECUTION_ENVIRONMENT_GEN2",
            "labels": {**scope.labels, DEPLOYMENT_LABEL: deployment},
            "containers": [container],
            **({"encryption_key": settings.kms_key} if settings.kms_key else {}),
        },
        # After a rollback, the next deployment moves the traffic to the latest revision again.
        traffics=[{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}],
        # A function that starts before the roles are granted would fail.
        opts=scope.options(accounts.given_of_function(name)),
    )
