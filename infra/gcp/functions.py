"""The functions: a service of Cloud Run for each, which scales to nothing. All are of one image but
`suggest`, whose model takes more room than all the others need.

Each deployment makes a revision of every service, all with one label, by which those of a
deployment are found again; see rollback.py.
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
    """The time, memory and concurrent requests of an instance of a function, and how many there may
    be.
    """

    seconds_max: int
    memory: str
    concurrency: int
    instances_max: int


SIZES: Final[Mapping[str, Size]] = {
    "advance": Size(60, "512Mi", 8, 20),
    # What wakes it at once shares a pass.
    "tick": Size(60, "512Mi", 32, 2),
    # Two collectors, or two suggesters, would do the same work: one is at it, and the second
    # request is told so.
    "checkpoint_gc": Size(900, "512Mi", 2, 1),
    "suggest": Size(300, "2Gi", 2, 1),
}


def size_of(settings: Settings, name: str) -> Size:
    """Return the size of a function; the API's is the settings'."""
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
    """Make every function; returns them by name. `images` are by their kinds, `environment` is that
    of all, `extra` of single ones; `deployment` is the label of the revisions.
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
    """Return the label of a deployment's revisions: a digest of all that makes it another one."""
    digest = hashlib.sha256(cluster_config.encode())
    for archive in () if settings.image else (settings.archive, settings.suggest_archive):
        digest.update(hashlib.sha256(Path(str(archive)).read_bytes()).digest())
    # Where the files lie is nobody's business.
    said = settings.model_dump_json(exclude={"archive", "suggest_archive", "cluster_config"})
    digest.update(said.encode())
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def _make_function(
    scope: Scope,
    name: str,
    accounts: Accounts,
    image: Any,
    environment: Mapping[str, Any],
    deployment: str,
) -> Any:
    names, settings, size = scope.names, scope.settings, size_of(scope.settings, name)
    # What the tick starts is called over the internet, by a caller that Cloud Run knows.
    is_inside = name not in ("api", *STARTED_BY_TICK)
    variables = {
        **environment,
        # Which function a container serves, and when it stops by itself.
        "DETCLOUD_FUNCTION": name,
        "DETCLOUD_TIMEOUT_SECONDS": str(size.seconds_max),
    }
    container = {
        "image": image,
        "envs": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {
            "limits": {"cpu": "1", "memory": size.memory},
            # It is paid for while it answers, and starts with twice the processor. For what the
            # tick starts nobody waits: that is paid for as long as its instance is there.
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
        # The API knows its callers by their tokens; callers of the others are let in by IAM.
        invoker_iam_disabled=name == "api",
        # What protects a cluster are its stores.
        deletion_protection=False,
        labels=scope.labels,
        scaling={"min_instance_count": 0},
        template={
            "service_account": accounts.email(name),
            "timeout": f"{size.seconds_max}s",
            "max_instance_request_concurrency": size.concurrency,
            "scaling": {"min_instance_count": 0, "max_instance_count": size.instances_max},
            "execution_environment": "EXECUTION_ENVIRONMENT_GEN2",
            "labels": {**scope.labels, DEPLOYMENT_LABEL: deployment},
            "containers": [container],
            **({"encryption_key": settings.kms_key} if settings.kms_key else {}),
        },
        # After a rollback, the next deployment is what is called again.
        traffics=[{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}],
        # Without its roles, a function would fail as it starts.
        opts=scope.options(accounts.given.get(name, [])),
    )
