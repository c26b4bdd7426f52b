"""The HTTP API gateway, which forwards every request to the API's function.

The gateway authorizes nothing; the function does.
"""

import json
from collections.abc import Sequence
from typing import Any

import pulumi_aws as aws

from infra.aws.functions import make_permission
from infra.aws.scope import Scope

# The log leaves out queries, which may contain signatures, and headers, which contain tokens.
LOGGED = {
    "time": "$context.requestTime",
    "request": "$context.requestId",
    "from": "$context.identity.sourceIp",
    "method": "$context.httpMethod",
    "path": "$context.path",
    "status": "$context.status",
    "bytes": "$context.responseLength",
    "ms": "$context.responseLatency",
    "error": "$context.integrationErrorMessage",
}


def make_api(scope: Scope) -> Any:
    """Create and return the HTTP API, without routes.

    The functions need the address of the API, so the API is created before the functions.
    `route_requests` adds the routes.
    """
    return aws.apigatewayv2.Api(
        "api",
        name=scope.names.cluster,
        protocol_type="HTTP",
        tags=scope.tags(),
        opts=scope.options(),
    )


def api_url(scope: Scope, api: Any, front: Any = None) -> Any:
    """Return the URL of the API.

    Return the URL of the CloudFront distribution `front` if given. Otherwise return the URL of the
    setting `domain`, or without this setting the endpoint that AWS assigned.
    """
    if front is not None:
        return front.domain_name.apply(lambda name: f"https://{name}")
    domain = scope.settings.domain
    return f"https://{domain}" if domain else api.api_endpoint


# A separate route allows a separate throttle for syncs.
SYNC_ROUTE = "POST /api/v1/agents/{agent}/sync"
SYNC_SOURCE = "POST/api/v1/agents/*/sync"


def route_requests(scope: Scope, api: Any, function: Any) -> Any:
    """Route all requests of the API to the function, and return the API's stage.

    `function` is the function's alias. Also create the permissions to invoke it, the throttles and
    the access log.
    """
    integration = aws.apigatewayv2.Integration(
        "api",
        api_id=api.id,
        integration_type="AWS_PROXY",
        integration_uri=function.invoke_arn,
        payload_format_version="2.0",
        opts=scope.options(),
    )
    routes = []
    for name, key, place in (("api", "$default", "$default"), ("sync", SYNC_ROUTE, SYNC_SOURCE)):
        route = aws.apigatewayv2.Route(
            name,
            api_id=api.id,
            route_key=key,
            target=integration.id.apply(lambda id: f"integrations/{id}"),
            opts=scope.options(),
        )
        source = api.execution_arn.apply(lambda arn, place=place: f"{arn}/*/{place}")
        make_permission(scope, name, function, "apigateway.amazonaws.com", source)
        routes.append(route)
    return _make_stage(scope, api, routes)


def _make_stage(scope: Scope, api: Any, routes: Sequence[Any]) -> Any:
    """Create and return the stage, with throttles and an access log, after the routes.

    The log group of the access log is created too.
    """
    group = aws.cloudwatch.LogGroup(
        "access",
        # All log groups with this prefix share a resource policy; AWS limits the policies' size.
        name=f"/aws/vendedlogs/{scope.names.part('access')}",
        retention_in_days=scope.settings.log_days,
        kms_key_id=scope.settings.kms_key or None,
        tags=scope.tags(),
        opts=scope.options(),
    )
    return aws.apigatewayv2.Stage(
        "api",
        api_id=api.id,
        name="$default",
        auto_deploy=True,
        default_route_settings={
            "throttling_rate_limit": scope.settings.requests_per_second,
            "throttling_burst_limit": scope.settings.requests_at_once,
        },
        route_settings=[
            {
                "route_key": SYNC_ROUTE,
                "throttling_rate_limit": scope.settings.syncs_per_second,
                "throttling_burst_limit": scope.settings.syncs_at_once,
            }
        ],
        access_log_settings={"destination_arn": group.arn, "format": json.dumps(LOGGED)},
        tags=scope.tags(),
        opts=scope.options(routes),
    )


def make_domain(scope: Scope, api: Any, stage: Any) -> Any:
    """Map the setting `domain` to the API, and return the target of the domain's DNS record.

    With the setting `hosted_zone`, also create the DNS record. The API's original endpoint keeps
    working, because running instances know only that address.
    """
    settings = scope.settings
    domain = aws.apigatewayv2.DomainName(
        "domain",
        domain_name=settings.domain,
        domain_name_configuration={
            "certificate_arn": settings.certificate,
            "endpoint_type": "REGIONAL",
            "security_policy": "TLS_1_2",
        },
        tags=scope.tags(),
        opts=scope.options(),
    )
    aws.apigatewayv2.ApiMapping(
        "domain", api_id=api.id, domain_name=domain.id, stage=stage.id, opts=scope.options()
    )
    target = domain.domain_name_configuration
    if settings.hosted_zone:
        alias = {"name": target.target_domain_name, "zone_id": target.hosted_zone_id}
        aws.route53.Record(
            "domain",
            zone_id=settings.hosted_zone,
            name=settings.domain,
            type="A",
            aliases=[{**alias, "evaluate_target_health": False}],
            opts=scope.options(),
        )
    return target.target_domain_name
