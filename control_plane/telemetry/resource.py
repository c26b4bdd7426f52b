"""The resource of exported spans and metrics: the cluster."""

import os

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource

SERVICE = "detcloud"


def cluster_resource(cluster_id: str, version: str) -> Resource:
    """Return the resource with the cluster's id and the version.

    The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to the resource.
    """
    name = os.environ.get("OTEL_SERVICE_NAME") or SERVICE
    attributes = {SERVICE_NAME: name, SERVICE_VERSION: version, "detcloud.cluster": cluster_id}
    return Resource.create(attributes)
