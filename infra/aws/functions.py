"""The functions, and the log group of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws.names import FUNCTIONS, INVOKED_BY_TICK
from infra.aws.roles import Roles
from infra.aws.scope import Scope
from infra.aws.settings import Settings

RUNTIME = "python3.13"


@dataclass(frozen=True)
class Size:
    """The time and memory of a function, which gets processor in proportion to its memory."""

    seconds_max: int
    memory_mb: int


SIZES = {
    # A gateway waits 30 s for an answer, and a person for the first one.
    "api": Size(30, 1024),
    "advance": Size(60, 512),
    "tick": Size(60, 512),
    "spot_notice": Size(30, 256),
    "checkpoint_gc": Size(900, 512),
    # A model of a thousand trials takes seconds of a whole processor.
    "suggest": Size(300, 1769),
}


def make_functions(
    scope: Scope,
    roles: Roles,
    environment: Mapping[str, Any],
    extra: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Any]:
    """Make every function; returns them by name. `environment` is that of all, `extra` of single
    ones.
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
        )
        for name in FUNCTIONS
    }


def make_permission(scope: Scope, name: str, function: Any, service: str, source: Any) -> Any:
    """Let the `source` at `service` call the function."""
    return aws.lambda_.Permission(
        name,
        function=function.name,
        action="lambda:InvokeFunction",
        principal=service,
        source_arn=source,
        opts=scope.options(),
    )


def _concurrency(settings: Settings, name: str) -> int | None:
    """Return how many of a function may run at once; -1 or None: as many as are called."""
    if name == "tick":
        return settings.tick_concurrency
    # Two collectors, or two suggesters, would do the same work.
    return min(1, settings.tick_concurrency) if name in INVOKED_BY_TICK else None


def _make_function(
    scope: Scope, name: str, roles: Roles, archive: pulumi.Archive, environment: Mapping[str, Any]
) -> Any:
    names, settings, size = scope.names, scope.settings, SIZES[name]
    group = aws.cloudwatch.LogGroup(
        name,
        name=names.log_group(name),
        retention_in_days=settings.log_days,
        kms_key_id=settings.kms_key or None,
        tags=scope.tags(),
        opts=scope.options(),
    )
    # Lambda would make the group itself, and keep what is in it for ever.
    after = [group, roles.granted[name]]
    return aws.lambda_.Function(
        name,
        name=names.part(name),
        role=roles.functions[name].arn,
        runtime=RUNTIME,
        architectures=[settings.architecture],
        handler=f"lambdas.aws.{name}.handler",
        code=archive,
        timeout=size.seconds_max,
        memory_size=size.memory_mb,
        reserved_concurrent_executions=_concurrency(settings, name),
        environment={"variables": {**environment, "POWERTOOLS_SERVICE_NAME": name}},
        tracing_config={"mode": "Active" if settings.tracing else "PassThrough"},
        tags=scope.tags(),
        opts=scope.options(after),
    )
