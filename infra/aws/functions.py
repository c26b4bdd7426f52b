"""The functions, the log groups, and the aliases through which functions are invoked.

Each deployment publishes a version of every function. All versions of a deployment have the same
description, by which rollback.py finds them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws

from detcloud.shared.version import __version__
from infra.aws.names import FUNCTIONS, INVOKED_BY_TICK, LIVE
from infra.aws.roles import Roles
from infra.aws.scope import Scope
from infra.aws.settings import Settings

RUNTIME = "python3.13"


@dataclass(frozen=True)
class Size:
    """The time and memory of a function. Lambda assigns processor time in proportion to memory."""

    seconds_max: int
    """The time after which Lambda stops a run."""
    memory_mb: int
    """The memory in MB."""


SIZES = {
    # The gateway waits 30 s for an answer; more memory shortens the first, cold start.
    "api": Size(30, 1024),
    "advance": Size(60, 512),
    "tick": Size(60, 512),
    "wake": Size(60, 512),
    "spot_notice": Size(30, 256),
    "checkpoint_gc": Size(900, 512),
    # A whole processor, because a model of a thousand trials computes for seconds.
    "suggest": Size(300, 1769),
}


def make_functions(
    scope: Scope,
    roles: Roles,
    environment: Mapping[str, Any],
    extra: Mapping[str, Mapping[str, Any]],
    deployment: str,
) -> Mapping[str, Any]:
    """Create all functions and log groups, and return the functions by name.

    Every function gets the environment variables `environment`. A function named in `extra` also
    gets these variables. Publish a version of each function, with the description `deployment`.
    """
    archive = pulumi.FileArchive(scope.settings.archive)
    archives = {"suggest": pulumi.FileArchive(scope.settings.suggest_archive)}
    return {
        name: _make_function(
            scope,
            name,
            roles,
            archives.get(name, archive),
            {**environment, **extra.get(name, {})},
            deployment,
        )
        for name in FUNCTIONS
    }


def make_aliases(scope: Scope, functions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Create or move the alias LIVE of each function to the version of this deployment.

    Return the aliases by the functions' names.
    """
    return {
        name: aws.lambda_.Alias(
            name,
            name=LIVE,
            description="the version that serves calls",
            function_name=function.name,
            function_version=function.version,
            opts=scope.options(),
        )
        for name, function in functions.items()
    }


def describe_deployment(settings: Settings, cluster_config: str) -> str:
    """Return the description of a deployment's versions, like `detcloud 1.2.3 0123456789ab`.

    The description consists of the software version and 12 digits of a SHA-256. The SHA-256 covers
    the text `cluster_config`, the content of both archives and all settings except file paths and
    the secret. Raise OSError if an archive cannot be read.
    """
    digest = hashlib.sha256(cluster_config.encode())
    for archive in (settings.archive, settings.suggest_archive):
        digest.update(hashlib.sha256(Path(archive).read_bytes()).digest())
    # The paths of files do not distinguish deployments.
    said = replace(settings, archive="", suggest_archive="", cluster_config="")
    digest.update(repr(said).encode())
    return f"detcloud {__version__} {digest.hexdigest()[:12]}"


def make_permission(scope: Scope, name: str, alias: Any, service: str, source: Any) -> Any:
    """Create and return the permission for a service's resource to invoke the function's alias.

    `name` is the permission's name in Pulumi, `service` a host name such as
    `events.amazonaws.com`, and `source` the resource's ARN.
    """
    return aws.lambda_.Permission(
        name,
        function=alias.function_name,
        qualifier=alias.name,
        action="lambda:InvokeFunction",
        principal=service,
        source_arn=source,
        opts=scope.options(),
    )


def concurrency_of(settings: Settings, name: str) -> int | None:
    """Return the reserved concurrency of a function. -1 and None reserve nothing.

    The API and the tick have the settings' values. `wake` has as many as the tick. Functions that
    the tick invokes have 1, if the tick reserves any.
    """
    if name == "api":
        return settings.api_concurrency
    if name in ("tick", "wake"):
        return settings.tick_concurrency
    # A second concurrent run would do the same work.
    return min(1, settings.tick_concurrency) if name in INVOKED_BY_TICK else None


def _make_function(
    scope: Scope,
    name: str,
    roles: Roles,
    archive: pulumi.Archive,
    environment: Mapping[str, Any],
    deployment: str,
) -> Any:
    """Create the log group and the function `name`, publish a version, and return the function.

    `environment` has the environment variables, and `deployment` the description of the version.
    """
    names, settings, size = scope.names, scope.settings, SIZES[name]
    group = aws.cloudwatch.LogGroup(
        name,
        name=names.log_group(name),
        retention_in_days=settings.log_days,
        kms_key_id=settings.kms_key or None,
        tags=scope.tags(),
        opts=scope.options(),
    )
    # Without an existing group, Lambda would create a group that keeps logs for ever.
    after = [group, roles.granted[name]]
    return aws.lambda_.Function(
        name,
        name=names.part(name),
        description=deployment,
        publish=True,
        role=roles.functions[name].arn,
        runtime=RUNTIME,
        architectures=[settings.architecture],
        handler=f"lambdas.aws.{name}.handler",
        code=archive,
        timeout=size.seconds_max,
        memory_size=size.memory_mb,
        reserved_concurrent_executions=concurrency_of(settings, name),
        environment={"variables": {**environment, "POWERTOOLS_SERVICE_NAME": name}},
        tracing_config={"mode": "Active" if settings.tracing else "PassThrough"},
        tags=scope.tags(),
        opts=scope.options(after),
    )
