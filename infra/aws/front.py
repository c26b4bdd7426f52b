"""A CloudFront distribution with a company's web ACL in front of the API.

AWS does not support web ACLs on HTTP APIs themselves.
"""

from typing import Any

import pulumi_aws as aws

from infra.aws.scope import Scope

ORIGIN_HEADER = "x-detcloud-origin"
# AWS's managed policies CachingDisabled and AllViewerExceptHostHeader. The caller's Host header is
# not forwarded, because the gateway accepts no other host name than the API's endpoint.
CACHING_DISABLED = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
ALL_BUT_HOST = "b689b0a8-53d0-40ab-baf2-68738e2966ac"
METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
# By default, CloudFront caches errors for 10 s by path alone, despite CachingDisabled: a
# caller with another token or query would get the cached error.
KEPT_ERRORS = (400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504)


def make_front(scope: Scope, api: Any) -> Any:
    """Create and return the CloudFront distribution that forwards all requests to the API.

    With the setting `origin_secret`, requests to the API carry the secret in ORIGIN_HEADER.
    """
    settings = scope.settings
    host = api.id.apply(lambda id: f"{id}.execute-api.{settings.region}.amazonaws.com")
    secret = settings.origin_secret
    return aws.cloudfront.Distribution(
        "front",
        comment=scope.names.cluster,
        enabled=True,
        http_version="http2",
        is_ipv6_enabled=True,
        price_class="PriceClass_100",
        web_acl_id=settings.web_acl,
        origins=[
            {
                "origin_id": "api",
                "domain_name": host,
                "custom_origin_config": {
                    "http_port": 80,
                    "https_port": 443,
                    "origin_protocol_policy": "https-only",
                    "origin_ssl_protocols": ["TLSv1.2"],
                },
                **(
                    {"custom_headers": [{"name": ORIGIN_HEADER, "value": secret}]} if secret else {}
                ),
            }
        ],
        default_cache_behavior={
            "target_origin_id": "api",
            "allowed_methods": METHODS,
            "cached_methods": ["GET", "HEAD"],
            "viewer_protocol_policy": "https-only",
            "cache_policy_id": CACHING_DISABLED,
            "origin_request_policy_id": ALL_BUT_HOST,
        },
        custom_error_responses=[
            {"error_code": code, "error_caching_min_ttl": 0} for code in KEPT_ERRORS
        ],
        restrictions={"geo_restriction": {"restriction_type": "none"}},
        viewer_certificate={"cloudfront_default_certificate": True},
        tags=scope.tags(),
        opts=scope.options(),
    )
